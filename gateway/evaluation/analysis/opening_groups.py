"""Groups requests into applications by what their prompts begin with, as explanations choose what to compare with.

Requests whose leading messages and tools are equal but for varying values, or similar, belong to one application.
Prompts without leading messages form one if several different ones begin alike; the others are counted together.
"""

from dataclasses import dataclass, field

from gateway.core.bounded_cache import BoundedCache
from gateway.explain.prompt_text import LEADING_ROLES, PromptText
from gateway.explain.reference import Frames
from gateway.explain.reference.frame import Frame, are_similar, masked, similarity

OTHERS = 0
"""Number of the group of all requests without a common opening."""

_MAX_GROUPS = 200
_MAX_SKELETONS = 20_000
_MAX_BEGINNINGS = 20_000
_LEAST_OPENINGS = 3
"""Different prompts without leading messages that begin alike, from which they are an application."""

_OPENING_CHARS = 72


@dataclass(slots=True)
class OpeningGroup:
    """An application.

    Attributes:
        number: Its number, from 1.
        opening: The first words of its prompts, without values that vary.
        features: By which similar frames are found.
    """

    number: int
    opening: str
    features: frozenset[int]


@dataclass(slots=True)
class _Beginning:
    skeletons: set[int] = field(default_factory=set)
    number: int = OTHERS


class OpeningGroups:
    """The applications of a log, bounded in number; later ones are counted with the others.

    Args:
        frames: Reads frames, with a cache.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.groups: dict[int, OpeningGroup] = {}
        self._numbers: BoundedCache[int, int] = BoundedCache(_MAX_SKELETONS)
        self._beginnings: BoundedCache[int, _Beginning] = BoundedCache(_MAX_BEGINNINGS)

    def number_of(self, text: PromptText) -> int:
        """The number of a request's application."""
        frame = self._frames.of(text)
        if frame.skeleton is None:
            return OTHERS
        if frame.is_opening:
            return self._of_opening(text, frame, frame.skeleton)
        number = self._numbers.get(frame.skeleton)
        if number is None:
            number = self._similar(frame) or self._begin(text, frame.features)
            self._numbers.put(frame.skeleton, number)
        return number

    def _of_opening(self, text: PromptText, frame: Frame, skeleton: int) -> int:
        if not frame.beginnings:
            return OTHERS
        found = self._beginnings.get(frame.beginnings[0])
        if found is None:
            found = _Beginning()
            self._beginnings.put(frame.beginnings[0], found)
        if found.number == OTHERS and len(found.skeletons) < _LEAST_OPENINGS:
            found.skeletons.add(skeleton)
            if len(found.skeletons) == _LEAST_OPENINGS:
                found.number = self._begin(text, frozenset())
        return found.number

    def _similar(self, frame: Frame) -> int | None:
        best: tuple[float, int] | None = None
        for group in self.groups.values():
            share = similarity(frame.features, group.features)
            if are_similar(len(frame.features & group.features), share, is_opening=False):
                best = max(best or (0.0, 0), (share, group.number))
        return best[1] if best else None

    def _begin(self, text: PromptText, features: frozenset[int]) -> int:
        if len(self.groups) >= _MAX_GROUPS:
            return OTHERS
        number = len(self.groups) + 1
        self.groups[number] = OpeningGroup(number, _opening(text), features)
        return number


def _opening(text: PromptText) -> str:
    """The first words of a prompt; of one without leading messages and text, the names of its tools."""
    leading = text.leading or tuple(each for each in text.messages if each.role in LEADING_ROLES)
    for message in leading or text.messages[:1]:
        for line in message.text.splitlines():
            words = masked(line[: 4 * _OPENING_CHARS]).strip(" #*-=_")
            if any(map(str.isalpha, words)):
                return words if len(words) <= _OPENING_CHARS else words[: _OPENING_CHARS - 1].rstrip() + "…"
    names = ", ".join(sorted(tool.name for tool in text.tools))
    return f"tools {names}"[:_OPENING_CHARS] if names else ""
