"""Server-sent events on their way to the client: read the usage, take its chunk out if only the gateway wanted it, and
stop at what is no event.

Events travel on in the pieces they came in, and whole. A piece that is more than one event of plain JSON, or less, is
looked at more closely. Wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import json
import re

import msgspec
import orjson

from gateway.values.outcome import Usage
from gateway.vendors import parse_usage, payloads

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_END_BYTES = 4
_LINE_FEEDS = b"\n\n"
_HEAD = b"data: {"
_LONGEST_EVENT = 4 * 2**20
"""An event that does not end within this is passed on unread."""

_OBJECT = msgspec.json.Decoder(msgspec.defstruct("_Object", ()))
"""Checks an object without building it, in a third of the time."""

_LINE = re.compile(rb"(?:data|event|id|retry)?:|(?:data|event|id|retry)?$")
"""How the lines of an event begin. Readers pass over others, so what stood there would be missing without a word."""


class EventFilter:
    """One stream.

    Args:
        keep_usage: Whether the client asked for the usage chunk.

    Attributes:
        usage: The last usage seen; None also if its counts cannot be right.
        garbled: Whether something came that is no event; nothing from there on is passed on.
    """

    def __init__(self, *, keep_usage: bool) -> None:
        self._keep_usage = keep_usage
        self._pending = bytearray()
        self._scanned = 0
        self._has_returns = False
        self._unread = False
        self.usage: Usage | None = None
        self.garbled = False

    def feed(self, data: bytes) -> bytes:
        """A piece of the stream; returns what goes to the client now."""
        if self.garbled:
            return b""
        if not self._pending and _is_plain(data):
            return data
        self._pending += data
        kept: list[bytes] = []
        try:
            for event in self._take_events():
                if self._unread or _is_plain(event) or self._read(event):
                    kept.append(event)
                self._unread = False  # the end of one that was too long is not an event of its own
        except ValueError:
            self.garbled = True
            self._pending = bytearray()
        if len(self._pending) > _LONGEST_EVENT:
            kept.append(self.finish())
            self._unread = True
        return b"".join(kept)

    def finish(self) -> bytes:
        """What is left when the stream has ended inside an event."""
        rest, self._pending, self._scanned = bytes(self._pending), bytearray(), 0
        return rest

    def _take_events(self) -> list[bytes]:
        """Remove the whole events from what is held. Each byte is searched once, however small the pieces are."""
        ends = self._ends(max(self._scanned - _END_BYTES + 1, 0))
        starts = [0, *ends]
        events = [bytes(self._pending[start:end]) for start, end in zip(starts, ends, strict=False)]
        del self._pending[: starts[-1]]
        self._scanned = len(self._pending)
        return events

    def _ends(self, start: int) -> list[int]:
        """Where events end that end behind ``start``."""
        self._has_returns = self._has_returns or b"\r" in self._pending[start:]
        if self._has_returns:
            return [end.end() for end in _END.finditer(self._pending, start)]
        ends = []
        while (start := self._pending.find(_LINE_FEEDS, start) + len(_LINE_FEEDS)) >= len(_LINE_FEEDS):
            ends.append(start)
        return ends

    def _read(self, event: bytes) -> bool:
        """Take note of an event's usage; False if the event is to be left out. Raises ValueError if it is none."""
        if not all(_LINE.match(line) for line in event.splitlines()):
            raise ValueError("a line of no event")
        payload = b"\n".join(payloads(event))
        if not payload:
            return True
        chunk = json_of(payload)
        if not isinstance(chunk, dict) or not isinstance(chunk.get("usage"), dict):
            return True
        self.usage = parse_usage(chunk["usage"])
        return bool(chunk.get("choices")) or self._keep_usage


def _is_plain(data: bytes) -> bool:
    """Whether a piece is one whole event of JSON with nothing to read in it, as most are."""
    if not data.startswith(_HEAD) or not data.endswith(b"}\n\n") or b'"usage"' in data:
        return False
    if data.find(b"\n") != len(data) - len(_LINE_FEEDS) or b"\r" in data:
        return False  # line breaks between the parts of the JSON divide it into lines, or even into events
    try:
        data.decode()
        _OBJECT.decode(data[len(_HEAD) - 1 :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def json_of(data: bytes) -> object:
    """JSON as the engines' own parser, Python's, takes it: with NaN. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
