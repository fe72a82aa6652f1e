"""Varying values in a text: the findings of ``finding``, ``id_finder`` and ``OperatorSlots``."""

import dataclasses
from dataclasses import dataclass
from enum import Enum, auto

from gateway.canon.recognizer.moments import Moment


class Need(Enum):
    """Condition for moving a value, besides that a readable date is near now."""

    NOTHING = auto()
    NEAR = auto()
    """The neighbours are not data, because the label may occur in any document."""
    ALOUD = auto()
    """Not in a letter, and not under an unknown heading, because the phrase may occur in any text."""
    COMPANION = auto()
    """A moved date is next to it: a time of day whose label may occur in any document."""
    FEW = auto()
    """Few others of its kind: an id without a label."""


@dataclass(frozen=True, slots=True)
class VaryingValue:
    """A value.

    Attributes:
        start: Start offset.
        end: End offset.
        about: Start of the text that belongs to it only: its label.
        until: End of the text that belongs to it only.
        name: Its name in reports and in the key of a conversation.
        lasts: Whether it is constant within a conversation.
        read: The parsed date, if it is one.
        need: Condition for moving it.
    """

    start: int
    end: int
    about: int
    until: int
    name: str
    lasts: bool
    read: Moment | None = None
    need: Need = Need.NOTHING

    def needing(self, need: Need) -> "VaryingValue":
        """A copy with another condition."""
        return dataclasses.replace(self, need=need)

    def moved(self, by: int) -> "VaryingValue":
        """A copy with shifted offsets."""
        return dataclasses.replace(
            self, start=self.start + by, end=self.end + by, about=self.about + by, until=self.until + by
        )


def lowered(text: str) -> str:
    """The text in lower case, of the same length, with ASCII apostrophes and spaces."""
    low = text.lower()
    if len(low) != len(text):
        low = "".join(small if len(small := each.lower()) == 1 else each for each in text)
    return low if low.isascii() else low.translate(_PLAIN)


_PLAIN = {ord("’"): "'", 0xA0: " ", 0x202F: " ", 0x3000: " "}
