"""Places of the operator's own."""

import re
from collections.abc import Iterator, Sequence

from gateway.canon.code_spans import touched
from gateway.canon.rules.dynamic.values import VaryingValue
from gateway.config.canon_settings import SlotSettings
from gateway.config.operator_patterns import Found, OwnRegex, TooSlow


class OperatorSlots:
    """Finds them.

    Args:
        settings: The places.
    """

    def __init__(self, settings: Sequence[SlotSettings]) -> None:
        self._slots = [(each, OwnRegex(each.regex)) for each in settings]

    def find(self, text: str, model: str, pointer: re.Pattern[str]) -> Iterator[VaryingValue]:
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
            for found in _all_or_none(regex, text):
                start, end = found.value
                if start < 0 or not text[start:end].strip():
                    continue
                if pointers is None:
                    pointers = [match.span() for match in pointer.finditer(text)]
                if touched(pointers, start, end):
                    continue
                about, until = (found.start, found.end) if _is_line(text, found.start, found.end) else (start, end)
                yield VaryingValue(start, end, about, until, slot.name, slot.varies == "conversation")


def _is_line(text: str, start: int, end: int) -> bool:
    """Whether it is all of a line."""
    if text[end : end + 1] not in ("", "\n", "\r") or "\n" in text[start:end]:
        return False
    while start and text[start - 1] != "\n":
        if not text[start - 1].isspace():
            return False
        start -= 1
    return True


def _all_or_none(regex: OwnRegex, text: str) -> Sequence[Found]:
    """What a regular expression finds in a text; nothing where that takes too long."""
    try:
        return list(regex.find(text))
    except TooSlow:
        return ()
