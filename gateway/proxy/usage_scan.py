"""Finds the usage in a response that is too large to be parsed."""

import json

from gateway.core.outcome import Usage
from gateway.engines import parse_usage

_KEY = b'"usage"'
_BACKSLASH = b"\\"
_WINDOW = 4096
"""Maximum size of the member; an engine's has about 200 bytes."""

_SCANNED_AT_ONCE = 64 * 1024
_MAX_TRIES = 16
"""Occurrences that are checked per response: ``"usage"`` may also be a token of a prompt with log probabilities."""

_decoder = json.JSONDecoder()


class UsageScan:
    """Reads one JSON text piece by piece, in time linear in its bytes.

    In JSON text, ``"usage"`` with unescaped quotes is the name of a member or a whole string, never a part of what a
    user or a model wrote. The last one with an object of token counts as its value is taken.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        """Scan the next piece."""
        self._held += data
        if len(self._held) >= _SCANNED_AT_ONCE:
            self._scan()
            del self._held[:-_WINDOW]

    def finish(self) -> Usage | None:
        """The usage; None if it was not found."""
        self._scan()
        self._held.clear()
        return self._usage

    def _scan(self) -> None:
        text = bytes(self._held)
        at = len(text)
        for _ in range(_MAX_TRIES):
            at = text.rfind(_KEY, 1, at)  # what stands in front of it must be seen, too
            if at < 0:
                return
            if text[at - 1 : at] != _BACKSLASH and (found := _usage_after(text[at + len(_KEY) : at + _WINDOW])):
                self._usage = found
                return


def _usage_after(text: bytes) -> Usage | None:
    """Parse the value behind the member's name; None if it is not a complete usage object."""
    value = text.lstrip()
    if not value.startswith(b":"):
        return None
    try:
        usage, _ = _decoder.raw_decode(value[1:].lstrip().decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    return parse_usage(usage)
