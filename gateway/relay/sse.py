"""Server-sent events on their way to the client: read the usage, and take its chunk out if only the gateway wanted it.

Events travel on in the pieces they came in. Only a piece with a usage in it, or one that ends inside an event, is
looked at more closely. Wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import re

import orjson

from gateway.values.outcome import Usage
from gateway.vendors import parse_usage, payloads

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_ENDINGS = (b"\n\n", b"\r\n\r\n")
_LONGEST_EVENT = 4 * 2**20
"""An event that does not end within this is passed on unread."""


class EventFilter:
    """One stream.

    Args:
        keep_usage: Whether the client asked for the usage chunk.

    Attributes:
        usage: The last usage seen.
    """

    def __init__(self, *, keep_usage: bool) -> None:
        self._keep_usage = keep_usage
        self._pending = b""
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """A piece of the stream; returns what goes to the client now."""
        if not self._pending and b'"usage"' not in data and data.endswith(_ENDINGS):
            return data
        data = self._pending + data
        kept: list[bytes] = []
        start = 0
        for end in _END.finditer(data):
            event = data[start : end.end()]
            start = end.end()
            if self._read(event):
                kept.append(event)
        self._pending = data[start:]
        if len(self._pending) > _LONGEST_EVENT:
            kept.append(self._pending)
            self._pending = b""
        return b"".join(kept)

    def finish(self) -> bytes:
        """What is left when the stream has ended inside an event."""
        rest, self._pending = self._pending, b""
        return rest

    def _read(self, event: bytes) -> bool:
        """Take note of an event's usage; False if the event is to be left out."""
        if b'"usage"' not in event:
            return True
        for payload in payloads(event):
            try:
                chunk = orjson.loads(payload)
            except orjson.JSONDecodeError:
                continue
            if not isinstance(chunk, dict) or (usage := parse_usage(chunk.get("usage"))) is None:
                continue
            self.usage = usage
            if not chunk.get("choices") and not self._keep_usage:
                return False
        return True
