"""Places of the operator's own."""

import re
from collections.abc import Iterator, Sequence

from gateway.canon.fences import touched
from gateway.canon.rules.dynamic.values import Finding
from gateway.canon.settings import SlotSettings


class Slots:
    """Finds them.

    Args:
        settings: The places.
    """

    def __init__(self, settings: Sequence[SlotSettings]) -> None:
        self._slots = [(each, re.compile(each.regex, re.MULTILINE)) for each in settings]

    def find(self, text: str, model: str, pointer: re.Pattern[str]) -> Iterator[Finding]:
        """Their values.

        Args:
            text: Where.
            model: The model the text is for.
            pointer: What a pointer looks like; a value that has one was moved before.
        """
        pointers: list[tuple[int, int]] | None = None
        for slot, regex in self._slots:
            if slot.models and model not in slot.models:
                continue
            for match in regex.finditer(text):
                start, end = match.span(1 if regex.groups else 0)
                if start < 0 or not text[start:end].strip():
                    continue
                if pointers is None:
                    pointers = [found.span() for found in pointer.finditer(text)]
                if touched(pointers, start, end):
                    continue
                about, until = match.span() if _is_line(text, *match.span()) else (start, end)
                yield Finding(start, end, about, until, slot.name, slot.varies == "conversation")


def _is_line(text: str, start: int, end: int) -> bool:
    """Whether it is all of a line."""
    return (
        "\n" not in text[start:end]
        and not text[text.rfind("\n", 0, start) + 1 : start].strip()
        and text[end : end + 1] in ("", "\n", "\r")
    )
