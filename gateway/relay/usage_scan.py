"""Find the usage in a response that is too large to be parsed as a whole."""

import json

from gateway.values.outcome import Usage
from gateway.vendors import parse_usage

_KEY = b'"usage"'
_BACKSLASH = b"\\"
_WINDOW = 4096
"""Bytes within which the member has to stand; an engine's has about 200."""

_decoder = json.JSONDecoder()


class UsageScan:
    """Reads one JSON text piece by piece, in time linear in its bytes.

    In JSON text, ``"usage"`` with unescaped quotes is the name of a member or a whole string, never a part of what a
    user or a model wrote. The last one with an object of token counts as its value is taken. Of several in one piece
    only the last is looked at.

    Attributes:
        usage: The usage found so far.
    """

    def __init__(self) -> None:
        self._tail = b""
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        """The next piece."""
        text = self._tail + data
        self._tail = text[-_WINDOW:]
        at = text.rfind(_KEY)
        if at >= 0 and text[at - 1 : at] != _BACKSLASH:
            self.usage = _usage_after(text[at + len(_KEY) : at + _WINDOW]) or self.usage


def _usage_after(text: bytes) -> Usage | None:
    """The usage whose member's name stands in front of this text; None if it is none, or not complete."""
    value = text.lstrip()
    if not value.startswith(b":"):
        return None
    try:
        usage, _ = _decoder.raw_decode(value[1:].lstrip().decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    return parse_usage(usage)
