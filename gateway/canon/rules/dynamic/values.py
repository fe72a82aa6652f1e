"""What is found: values in a text that vary."""

import dataclasses
from dataclasses import dataclass
from enum import Enum, auto

from gateway.canon.rules.dynamic.near import Moment


class Need(Enum):
    """What else is needed for a value to be moved, than that a date which can be read is near now."""

    NOTHING = auto()
    NEAR = auto()
    """Neighbours that are no data: the label may stand in any document."""
    ALOUD = auto()
    """No letter around it, and no heading of which nobody knows what stands under it: anybody may say so."""
    COMPANION = auto()
    """A date beside it that is moved: a time of day whose label may stand in any document."""
    FEW = auto()
    """Few others like it: an id without a label."""


@dataclass(frozen=True, slots=True)
class VaryingValue:
    """A value.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        about: Where what only speaks of it begins: its label.
        until: Where what only speaks of it ends.
        name: What it is called, in reports and in the key of a conversation.
        lasts: Whether it is the same in all turns of a conversation.
        read: The date it says, if it can be read.
        need: What else it needs.
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
        """The same with another need."""
        return dataclasses.replace(self, need=need)

    def moved(self, by: int) -> "VaryingValue":
        """The same further behind."""
        return dataclasses.replace(
            self, start=self.start + by, end=self.end + by, about=self.about + by, until=self.until + by
        )


def lowered(text: str) -> str:
    """The text in small letters, of the same length, with plain apostrophes and blanks."""
    low = text.lower()
    if len(low) != len(text):
        low = "".join(small if len(small := each.lower()) == 1 else each for each in text)
    return low if low.isascii() else low.translate(_PLAIN)


_PLAIN = {ord("’"): "'", 0xA0: " ", 0x202F: " ", 0x3000: " "}
