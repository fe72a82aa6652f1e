"""``GET /admin/api/live``: the events of ``live_feed`` as a stream of server-sent events."""

import asyncio
import time
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admin.access import AdminAccess, check_same_site
from gateway.admin.guard import authorization_of
from gateway.admin.live_feed import Listener, LiveFeed
from gateway.admin.query import read_filters
from gateway.core.errors import Unauthorized

_FILTERS = ("model", "tenant", "source", "template", "reason")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would buffer the events
]
_SIGN_SECONDS = 15.0
"""Interval of keepalive comments without events, so that proxies do not close the connection."""

_SIGN_OF_LIFE = b": nothing new\n\n"
_CHECK_SECONDS = 1.0
"""Interval at which the token is checked again."""


def show_live(app: FastAPI, live: LiveFeed, access: AdminAccess) -> None:
    """Add the path."""

    @app.get("/admin/api/live")
    async def listen(request: Request) -> Response:
        # Unlike other answers this one occupies a listener while it is open, also for a page that may not read it.
        check_same_site(request.headers)
        authorization = authorization_of(request)

        def is_let_in() -> bool:
            try:
                access.operator(authorization, time.time())
            except Unauthorized:
                return False
            return True

        return _LiveStream(live, read_filters(request, _FILTERS), is_let_in)


class _LiveStream(Response):
    """The stream. Ends when the client disconnects, the gateway stops, or the token expires."""

    def __init__(self, live: LiveFeed, filters: Mapping[str, str], is_let_in: Callable[[], bool]) -> None:
        super().__init__()
        self._live = live
        self._filters = filters
        self._is_let_in = is_let_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": b""})
            return
        async with self._live.listening(self._filters) as listener:
            leaving = asyncio.ensure_future(_left(receive))
            leaving.add_done_callback(lambda _: listener.end())
            try:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await self._send_events(listener, send)
            finally:
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)

    async def _send_events(self, listener: Listener, send: Send) -> None:
        # `send` waits for a slow client; meanwhile the listener merges events within a bounded size.
        told_at = time.monotonic()
        while not listener.ended and self._is_let_in():
            events = listener.taken()
            if not events and time.monotonic() - told_at >= _SIGN_SECONDS:
                events = _SIGN_OF_LIFE
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
                told_at = time.monotonic()
            await listener.wait(_CHECK_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Wait for the client's disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass
