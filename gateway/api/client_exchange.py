"""One HTTP exchange on plain ASGI: reading the body, noticing a disconnect, sending the answer.

Routing and request objects of a framework cost more than everything the gateway does to a request, so the generation
endpoints speak ASGI themselves. Protocol: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.core.errors import BadRequest, ClientGone, PayloadTooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LONGEST_LENGTH = 20
"""Digits of the largest 64-bit number."""


async def read_body(
    receive: Receive, declared_bytes: int | None, limit: int, hold: Callable[[int], None] | None = None
) -> bytes:
    """The whole body.

    Args:
        receive: ASGI's.
        declared_bytes: ``content-length``, or None.
        limit: Most bytes accepted.
        hold: Called with the size of each piece as it arrives. What it raises ends the reading.

    Raises:
        PayloadTooLarge: it is larger; the rest is not read.
        ClientGone: the client left before it was complete.
    """
    if declared_bytes is not None and declared_bytes > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        first: bytes = message.get("body", b"")
        if len(first) > limit:
            raise _too_large(limit)
        if hold is not None:
            hold(len(first))
        return first
    pieces: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if hold is not None:
            hold(len(piece))
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await receive()


def declared_length(value: bytes) -> int | None:
    """The number in a ``content-length`` header; None for no header, or for something else.

    Raises:
        BadRequest: it has more digits than a length can have, leading zeros included.
    """
    if not value.isdigit():
        return None
    if len(value) > _LONGEST_LENGTH:
        raise BadRequest(
            f"`content-length` has more than {_LONGEST_LENGTH} digits. Send the body's size in bytes, without leading"
            " zeros.",
            param="content-length",
            code="invalid_header",
        )
    return int(value)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body is larger than {limit} bytes. Send a shorter prompt, or raise server.max_body_bytes.",
        code="request_too_large",
    )


class ClientSink:
    """A ``Sink`` over ASGI. While it is open, a disconnect of the client cancels the task that made it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._gone = False
        self._finished = False
        self._interrupted = False
        self.started = False
        self._owner = asyncio.current_task()
        watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect(), name="client-watch")
        self._watch: asyncio.Task[None] | None = watch

    @property
    def gone(self) -> bool:
        """See ``Sink``."""
        return self._gone

    @property
    def interrupted(self) -> bool:
        """See ``Sink``."""
        return self._interrupted

    def interrupt(self) -> None:
        """The gateway is shutting down: have the owner end the answer now. Idempotent."""
        if not self._finished and not self._interrupted and self._owner is not None:
            self._interrupted = True
            self._owner.cancel()

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        """See ``Sink``."""
        if not more:
            self._finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def close(self) -> None:
        """End the exchange: a later disconnect cancels no task."""
        self._finished = True
        # A cancelled task refers to its frame, and so to this object: only the garbage collector could free both, and
        # the whole request with them.
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._finished and self._owner is not None:
            self._gone = True
            self._owner.cancel()
