"""Filters server-sent events: reads the usage, removes its chunk if only the gateway requested it, and stops at invalid
events.

Pieces are passed on as they arrive, cut at event boundaries. A piece that is exactly one event of plain JSON, as most
are, needs no filter. Wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import itertools
import json
import re
from typing import Any

import msgspec
import orjson

from gateway.core.outcome import Usage
from gateway.engines import parse_usage
from gateway.proxy.resume.joined_stream import END, ReopenedStream
from gateway.proxy.resume.sent_text import adds_content, has_content

_END_BYTES = 4
_HEAD = b"data: {"
_HEAD_BYTES = len(_HEAD)
_TEXT_AT = _HEAD_BYTES - 1
_DONE = b"data: [DONE]\n\n"
_LINE_FEED, _RETURN = b"\n\r"  # as integers, which are found twice as fast
_LONGEST_EVENT = 2**19
"""A longer event is passed on without being parsed."""

_MAX_LINES = 4096
"""Maximum lines of one event. Engines send one to three; each is checked."""

_COMMENTS = re.compile(rb"(?::[^\r\n]*+(?:\r\n|\n|\r(?=[^\n])))+")
"""Whole lines of comments. They are passed on before the event that they stand in is complete."""

_NO_FIELD = re.compile(rb"\s*[<>{}\[\]\"]|.*[\x00-\x08\x0e-\x1f]")
"""The beginning of a line of HTML or JSON, or binary data. Any other unknown name is a field that clients ignore."""

_WITH_JSON = (b"", b"message", b"error")
"""Kinds of events whose data is JSON in every API."""

_DONE_AT_END = re.compile(rb"(?:^|[\r\n])data:\s*\[DONE\]\s*$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMMENT = ord(":")


class _Chunk(msgspec.Struct, gc=False):
    """What is read of an event."""

    usage: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
"""Validates an object, and builds nothing of it but the usage, in a third of the time."""


class EventFilter:
    """Filters one stream.

    Args:
        keep_usage: Whether the client requested the usage chunk.
        seam: Rewrites what is sent to the client, if that has the beginning of another replica's stream.

    Attributes:
        at_event: Whether the next piece begins with an event, and may be passed on without ``feed`` if it ``is_plain``.
        usage: The last usage seen; None also if its counts are impossible.
        garbled: Whether an invalid event was received; nothing from there on is passed on.
        content: Whether a part of the answer was in a piece that ``feed`` got.
        silent: Whether the last piece that it got had only comments and other records without data.
        done: Whether the last event with data is the end mark.
    """

    def __init__(self, *, keep_usage: bool, seam: ReopenedStream | None = None) -> None:
        self._keep_usage = keep_usage
        self._seam = seam
        self._pending = bytearray()
        self._has_returns = False
        self._unread = False
        self.at_event = seam is None
        self.usage: Usage | None = None
        self.garbled = False
        self.content = self.silent = self.done = False

    def feed(self, data: bytes) -> bytes:
        """Process a piece of the stream; returns the bytes to send to the client."""
        if self.garbled:
            return b""
        kept: list[bytes] = []
        self.silent = not self._unread
        try:
            for event in self._take_events(data):
                if self._unread or self._is_usual(event) or self._read(event):
                    kept.append(event)
                self._unread = False  # the end of an overlong event is not an event of its own
        except ValueError:
            self.garbled = True
            self._pending = bytearray()
        if self._pending and self._pending[0] not in b":\r\n":
            self.silent = False
        if len(self._pending) > _LONGEST_EVENT:
            self.content = self.content or self._pending[0] != _COMMENT
            kept.append(self.finish())
            self._unread = True
        # What follows the end mark is read: another event with data would make it incomplete again.
        self.at_event = not (self._pending or self._unread or self.garbled or self.done or self._seam)
        sent = b"".join(kept)
        return sent if self._seam is None else self._seam.feed(sent)

    def finish(self) -> bytes:
        """The incomplete event at the end of the stream, which may be the end mark without its blank line."""
        rest, self._pending = bytes(self._pending), bytearray()
        self.done = self.done or _DONE_AT_END.search(rest) is not None
        return rest

    def _take_events(self, data: bytes) -> list[bytes]:
        """The complete events of the held bytes and a new piece. Each byte is searched twice at most."""
        self._has_returns = self._has_returns or b"\r" in data
        if self._pending:
            start = max(len(self._pending) - _END_BYTES + 1, 0)
            self._pending += data
            ends_comment = self._pending[0] == _COMMENT and (b"\n" in data or b"\r" in data)
            if not ends_comment and not self._ends_behind(start):
                return []
            data = bytes(self._pending)
        events, rest = _divided(data)
        if not self._unread and (comments := _COMMENTS.match(rest)):
            events.append(comments[0])
            rest = rest[comments.end() :]
        if rest or self._pending:
            self._pending = bytearray(rest)
        return events

    def _ends_behind(self, start: int) -> bool:
        """Whether an event ends in the held bytes from ``start`` on."""
        if self._has_returns:
            return END.search(self._pending, start) is not None
        return self._pending.find(b"\n\n", start) >= 0

    def _is_usual(self, event: bytes) -> bool:
        """Whether an event is one of those that need not be read: plain JSON, or the end mark."""
        is_end = event == _DONE
        if not is_end and not is_plain(event):
            return False
        self.done, self.silent = is_end, False
        self.content = self.content or adds_content(event)
        return True

    def _read(self, event: bytes) -> bool:
        """Record an event's usage; False if the event is to be removed. Raises ValueError if it is invalid."""
        if event.count(b"\n") + event.count(b"\r") > _MAX_LINES:
            raise ValueError(f"more than {_MAX_LINES} lines")
        data: list[bytes] = []
        kind = b""
        for line in event.removeprefix(_BYTE_ORDER_MARK).splitlines():
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.strip())
            elif name == b"event":
                kind = value.strip()
            elif name and (_NO_FIELD.match(name) or not name.decode()):
                raise ValueError("a line of no event")
        if not any(data):
            return True  # clients get no event of it
        was_silent, self.silent = self.silent, False
        self.done = data[-1] == b"[DONE]"
        payload = b"\n".join(part for part in data if part != b"[DONE]")
        if not payload:
            return True
        try:
            chunk = json_of(payload)
        except ValueError:
            if kind in _WITH_JSON:
                raise
            self.silent = was_silent
            return True  # an event of another kind, such as a ping, may have any text
        self.content = self.content or has_content(chunk)
        if not isinstance(chunk, dict) or not isinstance(chunk.get("usage"), dict):
            return True
        self.usage = parse_usage(chunk["usage"])
        return bool(chunk.get("choices")) or self._keep_usage


def _divided(data: bytes) -> tuple[list[bytes], bytes]:
    """Split into the complete events and the beginning of the next one."""
    if b"\r" not in data:
        *bodies, rest = data.split(b"\n\n")
        return [body + b"\n\n" for body in bodies], rest
    edges = [0, *(end.end() for end in END.finditer(data))]
    return [data[start:end] for start, end in itertools.pairwise(edges)], data[edges[-1] :]


def is_plain(data: bytes) -> bool:
    """Whether a piece is one complete JSON event without usage, as most are."""
    # Slices are compared in half the time of ``startswith``.
    if data[:_HEAD_BYTES] != _HEAD or data[-3:] != b"}\n\n":
        return False
    text = data[_TEXT_AT:-2]
    if _LINE_FEED in text or _RETURN in text:
        return False  # line breaks between the parts of the JSON divide it into lines, or even into events
    try:
        if not text.isascii():
            text.decode()
        return _decode(text).usage is None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def json_of(data: bytes) -> object:
    """JSON as the engines' own parser, Python's, takes it: with NaN. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
