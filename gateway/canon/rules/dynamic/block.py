"""The context block: what stands in it, and the pointers to it."""

import re
from collections.abc import Iterable, Mapping

from gateway.config.canon_settings import DynamicSuffixSettings

_NUMBER = "{number}"
_DIGITS = "([0-9]{1,9})"


class BlockForm:
    """How pointers and blocks are written.

    Args:
        settings: Their parts.
    """

    def __init__(self, settings: DynamicSuffixSettings) -> None:
        front, behind = settings.pointer.split(_NUMBER)
        self._front, self._behind = front, behind
        self._opening, self._closing = settings.opening, settings.closing
        pattern = re.escape(front) + _DIGITS + re.escape(behind)
        # Where nothing else ends the number, a longer one is another.
        self.pattern = re.compile(("" if front else "(?<![0-9])") + pattern + ("" if behind else "(?![0-9])"))
        self._entry = re.compile(rf"^{pattern} ", re.MULTILINE)

    def pointer(self, number: int) -> str:
        """What stands in a value's place."""
        return f"{self._front}{number}{self._behind}"

    def largest(self, texts: Iterable[str]) -> int:
        """The largest number that a pointer in these texts has; 0 if there is none."""
        return max((int(number) for text in texts for number in self.pattern.findall(text)), default=0)

    def is_in(self, text: str) -> bool:
        """Whether a text holds what looks like a piece of a block."""
        if self._opening in text:
            return True
        if not self._front:
            return self._entry.search(text) is not None
        at = text.find(self._front)  # many times faster than looking for the beginning of every line
        while at >= 0:
            if (not at or text[at - 1] == "\n") and self._entry.match(text, at):
                return True
            at = text.find(self._front, at + 1)
        return False

    def written(self, values: Mapping[int, str]) -> str:
        """A block of values by their numbers."""
        lines = [f"{self.pointer(number)} {value}" for number, value in sorted(values.items())]
        return "\n".join((self._opening, *lines, self._closing))

    def read(self, block: str, above: int) -> dict[int, str]:
        """The values of a block by their numbers.

        Args:
            block: A block; of one that was written in another way, nothing may be found.
            above: The largest number of the client's own pointers: a value may be a text with such in it.
        """
        inside = block.removeprefix(self._opening + "\n").removesuffix("\n" + self._closing)
        found: list[tuple[int, int, int]] = []
        for match in self._entry.finditer(inside):
            number = int(match[1])
            if number > max(above, found[-1][0] if found else 0):
                found.append((number, match.start(), match.end()))
        if not found:
            return {}
        ends = [start - 1 for _, start, _ in found[1:]] + [len(inside)]
        return {number: inside[start:end] for (number, _, start), end in zip(found, ends, strict=True)}
