"""Runs an ASGI application for the exchanges of a port: a task per request.

Protocol: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from gateway.core.errors import ClientGone, PayloadTooLarge
from gateway.core.exchange import Exchange, InvalidResponse

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_HIGH_WATER_BYTES = 64 * 1024
"""Bytes of a request body that are held before reading pauses until the application has taken them."""

_log = structlog.get_logger("gateway.api")


class AsgiHandler:
    """Answers exchanges with an ASGI application.

    Args:
        app: The application.
        trusts_proxy: Whether ``x-forwarded-for`` names the client: the port is a Unix socket that only proxies of this
            installation connect to.

    Attributes:
        tasks: The tasks of exchanges that are under way.
    """

    def __init__(self, app: AsgiApp, *, trusts_proxy: bool = False) -> None:
        self._app = app
        self._trusts_proxy = trusts_proxy
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> "AsgiReceiver":
        """Begin to answer a request whose head is complete."""
        client = exchange.owner.client
        if self._trusts_proxy:
            forwarded = b",".join(value for name, value in exchange.headers if name == b"x-forwarded-for")
            if first := forwarded.partition(b",")[0].strip().decode("latin-1"):
                client = (first, 0)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": exchange.version,
            "server": None,
            "client": client,
            "scheme": "http",
            "method": exchange.method,
            "root_path": "",
            "path": exchange.path,
            "raw_path": exchange.raw_path,
            "query_string": exchange.query,
            "headers": exchange.headers,
            "state": {},
        }
        receiver = AsgiReceiver(exchange)
        task = asyncio.get_running_loop().create_task(_run(self._app, scope, receiver), name="http-request")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return receiver


class AsgiReceiver:
    """The application's side of an exchange: its ``receive`` and ``send``."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._body: list[bytes] = []
        self._bytes = 0
        self._ended = False
        self._event = asyncio.Event()
        self._writable: asyncio.Event | None = None

    def body_received(self, data: bytes) -> None:
        """See ``Receiver``."""
        self._body.append(data)
        self._bytes += len(data)
        if self._bytes > _HIGH_WATER_BYTES:
            self.exchange.pause_body()
        self._event.set()

    def body_complete(self) -> None:
        """See ``Receiver``."""
        self._ended = True
        self._event.set()

    def client_gone(self) -> None:
        """See ``Receiver``."""
        self._event.set()
        self.writing_resumed()

    def writing_paused(self) -> None:
        """See ``Receiver``. ``send`` waits."""

    def writing_resumed(self) -> None:
        """See ``Receiver``."""
        if self._writable is not None:
            self._writable.set()

    async def receive(self) -> Message:
        """ASGI's ``receive``."""
        exchange = self.exchange
        exchange.ask_for_body()
        if not exchange.gone and not exchange.complete:
            exchange.resume_body()
            await self._event.wait()
            self._event.clear()
        if exchange.gone or exchange.complete:
            return {"type": "http.disconnect"}
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._bytes = 0
        return {"type": "http.request", "body": body, "more_body": not self._ended}

    async def send(self, message: Message) -> None:
        """ASGI's ``send``."""
        exchange = self.exchange
        while exchange.owner.congested and not exchange.gone:
            self._writable = asyncio.Event()
            await self._writable.wait()
        if exchange.gone:
            return
        if not exchange.started:
            if message["type"] != "http.response.start":
                raise InvalidResponse(f"expected http.response.start, not {message['type']}")
            exchange.start(message["status"], message.get("headers", ()))
            exchange.flush()
            return
        if message["type"] != "http.response.body":
            raise InvalidResponse(f"expected http.response.body, not {message['type']}")
        exchange.write(message.get("body", b""), more=message.get("more_body", False))
        if exchange.complete:
            self._event.set()


async def _run(app: AsgiApp, scope: Scope, receiver: AsgiReceiver) -> None:
    exchange = receiver.exchange
    try:
        await app(scope, receiver.receive, receiver.send)
        if not exchange.complete and not exchange.gone:
            raise InvalidResponse("the application returned before the response was complete")
    except BaseException as error:  # noqa: BLE001 - the client gets an answer also if the application raised
        if not isinstance(error, asyncio.CancelledError):
            _log.exception("request_failed", path=exchange.path)
        if exchange.started:
            if not exchange.complete and not exchange.gone:
                exchange.abort()
        else:
            exchange.keep_alive = False
            exchange.respond(500, [(b"content-type", b"text/plain; charset=utf-8")], b"Internal Server Error")


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body.

    Args:
        receive: ASGI's.
        limit: Maximum bytes.

    Raises:
        PayloadTooLarge: it is larger; the rest is not read.
        ClientGone: the client disconnected before it was complete.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise PayloadTooLarge(f"The body is larger than {limit} bytes.", code="request_too_large")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
