"""Server-sent events on their way to the client: read the usage, take its chunk out if only the gateway wanted it, and
stop at what is no event.

Events travel on in the pieces they came in, and whole. A piece that is more than one event of plain JSON, or less, is
looked at more closely. Wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import itertools
import json
import re

import msgspec
import orjson

from gateway.core.outcome import Usage
from gateway.engines import parse_usage, payloads

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_END_BYTES = 4
_HEAD = b"data: {"
_LINE_FEED, _RETURN = b"\n\r"  # as numbers, which are found twice as fast
_LONGEST_EVENT = 2**19
"""An event that does not end within this is passed on unread."""

_MAX_LINES = 4096
"""Lines of one event. Engines send one to three; each is looked at."""

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
        kept: list[bytes] = []
        try:
            for event in self._take_events(data):
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
        rest, self._pending = bytes(self._pending), bytearray()
        return rest

    def _take_events(self, data: bytes) -> list[bytes]:
        """The whole events of what is held and a new piece. Each byte is searched twice at most, however small the
        pieces are."""
        self._has_returns = self._has_returns or b"\r" in data
        if self._pending:
            start = max(len(self._pending) - _END_BYTES + 1, 0)
            self._pending += data
            if not self._ends_behind(start):
                return []
            data = bytes(self._pending)
        events, rest = _divided(data)
        self._pending = bytearray(rest)
        return events

    def _ends_behind(self, start: int) -> bool:
        """Whether an event ends in what is held from ``start`` on."""
        if self._has_returns:
            return _END.search(self._pending, start) is not None
        return self._pending.find(b"\n\n", start) >= 0

    def _read(self, event: bytes) -> bool:
        """Take note of an event's usage; False if the event is to be left out. Raises ValueError if it is none."""
        if event.count(b"\n") + event.count(b"\r") > _MAX_LINES:
            raise ValueError(f"more than {_MAX_LINES} lines")
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


def _divided(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole events, and the beginning of the next one."""
    if b"\r" not in data:
        *bodies, rest = data.split(b"\n\n")
        return [body + b"\n\n" for body in bodies], rest
    edges = [0, *(end.end() for end in _END.finditer(data))]
    return [data[start:end] for start, end in itertools.pairwise(edges)], data[edges[-1] :]


def _is_plain(data: bytes) -> bool:
    """Whether a piece is one whole event of JSON with nothing to read in it, as most are."""
    if not data.startswith(_HEAD) or not data.endswith(b"}\n\n") or b'"usage"' in data:
        return False
    if _LINE_FEED in data[:-2] or _RETURN in data:
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
