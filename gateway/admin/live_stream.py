"""``GET /admin/api/live``: answered requests and replica states as a stream of server-sent events.

One watcher (``LiveFeed``) polls the journal and the replicas' states about once a second while there is a listener;
listeners with the same filters share a query. The pending events of a listener have a bounded size: the newest rows,
the number of older ones, and the replicas' last states.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admin.access import AdminAccess, check_same_site
from gateway.admin.guard import authorization_of, read_filters
from gateway.core.errors import BadRequest, GatewayError, ShuttingDown, Unauthorized
from gateway.explain.worker.explain_client import ExplainClient

if TYPE_CHECKING:
    from fastapi import FastAPI

Row = Mapping[str, Any]

MAX_LISTENERS = 50
SHOWN_ROWS = 20
"""Maximum rows per event."""

_LOOK_SECONDS = 1.0
_ASKED_ROWS = (100, 1000)
"""Rows per query; the larger number only if the smaller one were all new."""

_log = structlog.get_logger("gateway.admin")


class TooManyListeners(GatewayError):
    """The maximum number of listeners is reached."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 10


class Listener:
    """The pending events of one listener.

    Attributes:
        ended: Whether no more events follow.
    """

    def __init__(self, states: Sequence[Row]) -> None:
        self.ended = False
        self._rows: list[Row] = []
        self._left_out = 0
        self._states: Sequence[Row] | None = states
        self._something = asyncio.Event()
        self._something.set()

    def on_requests(self, rows: Sequence[Row]) -> None:
        """Add answered requests; newest first."""
        waiting = [*rows, *self._rows]
        self._rows = waiting[:SHOWN_ROWS]
        self._left_out += len(waiting) - len(self._rows)
        self._something.set()

    def on_replicas(self, states: Sequence[Row]) -> None:
        """Add a changed state of a replica."""
        self._states = states
        self._something.set()

    def end(self) -> None:
        """End the events."""
        self.ended = True
        self._something.set()

    async def wait(self, seconds: float) -> None:
        """Wait for an event or the end, up to a timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._something.wait()

    def taken(self) -> bytes:
        """Remove and return the pending events as server-sent events; empty if there are none."""
        events = bytearray()
        if self._states is not None:
            events += _event(b"replicas", {"replicas": self._states})
        if self._rows:
            events += _event(b"requests", {"requests": self._rows, "left_out": self._left_out})
        self._states, self._rows, self._left_out = None, [], 0
        if not self.ended:
            self._something.clear()
        return bytes(events)


class LiveFeed:
    """Polls while there is a listener.

    Args:
        desk: Answers queries of the journal.
        replicas: The document of ``GET /admin/api/replicas``.
        look_seconds: Interval of the polls.
    """

    def __init__(
        self,
        desk: ExplainClient,
        replicas: Callable[[], Sequence[Row]],
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._desk = desk
        self._replicas = replicas
        self._look_seconds = look_seconds
        self._places = MAX_LISTENERS
        self._news: dict[tuple[tuple[str, str], ...], _NewRequests] = {}
        self._states: Sequence[Row] = ()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def listening(self, filters: Mapping[str, str]) -> AsyncIterator[Listener]:
        """A context manager in which events are received: first all replicas' states, then requests answered from now
        on.

        Args:
            filters: As for ``GET /admin/api/requests``.

        Raises:
            BadRequest: A filter's value is not possible.
            TooManyListeners: The maximum number of listeners is reached.
            ShuttingDown: The gateway is being stopped.
        """
        if not self._places:
            raise TooManyListeners(
                f"{MAX_LISTENERS} listen already. Close one of the pages that do, or ask GET /admin/api/requests.",
                code="too_many_listeners",
            )
        self._places -= 1
        try:
            news = await self._news_for(filters)
            if self._closed:
                raise ShuttingDown("The gateway is shutting down.", code="shutting_down")
            listener = self._join(news)
            try:
                yield listener
            finally:
                self._leave(listener, news)
        finally:
            self._places += 1

    def close(self) -> None:
        """The gateway is being stopped: end all streams."""
        self._closed = True
        self._end_all()

    async def _news_for(self, filters: Mapping[str, str]) -> "_NewRequests":
        known = self._news.get(_key(filters))
        if known is not None:
            return known
        news = _NewRequests(self._desk, filters)
        try:
            await news.rows()
        except BadRequest:
            raise
        except GatewayError:
            pass  # the replicas' states are reported without it
        return self._news.get(_key(filters), news)

    def _join(self, news: "_NewRequests") -> Listener:
        if self._watching is None:
            self._states = self._present_states()
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="live-feed")
            self._watching.add_done_callback(self._watched)
        listener = Listener(self._states)
        self._news[_key(news.filters)] = news
        news.listeners.add(listener)
        return listener

    def _leave(self, listener: Listener, news: "_NewRequests") -> None:
        news.listeners.discard(listener)
        if not news.listeners:
            self._news.pop(_key(news.filters), None)
        if not self._news and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as both:  # a slow answer must not delay the states
            both.create_task(self._watch_requests())
            both.create_task(self._watch_replicas())

    async def _watch_requests(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            for news in list(self._news.values()):
                with contextlib.suppress(GatewayError):
                    if rows := await news.rows():
                        for listener in news.listeners:
                            listener.on_requests(rows)

    async def _watch_replicas(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            states = self._present_states()
            if states != self._states:
                self._states = states
                for listener in self._everybody():
                    listener.on_replicas(states)

    def _watched(self, watching: asyncio.Task[None]) -> None:
        """End the polling without listeners or after a failure; clients reconnect."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            _log.error("live_feed_failed", exc_info=error)
            self._watching = None
            self._end_all()

    def _end_all(self) -> None:
        for listener in self._everybody():
            listener.end()

    def _everybody(self) -> list[Listener]:
        return [listener for news in self._news.values() for listener in news.listeners]

    def _present_states(self) -> list[Row]:
        return [{name: replica[name] for name in ("id", "model", "state")} for replica in self._replicas()]


class _NewRequests:
    """Finds the new requests that pass some filters.

    Attributes:
        filters: The filters.
        listeners: The listeners with these filters.
    """

    def __init__(self, desk: ExplainClient, filters: Mapping[str, str]) -> None:
        self.filters = filters
        self.listeners: set[Listener] = set()
        self._desk = desk
        self._known: set[tuple[str, float]] | None = None

    async def rows(self) -> Sequence[Row]:
        """Requests that are new since the last call, newest first; none in the first call.

        Raises:
            GatewayError: As ``ExplainClient.ask``.
        """
        known = self._known
        for limit in _ASKED_ROWS:
            answer = orjson.loads(await self._desk.ask("requests", {**self.filters, "limit": str(limit)}))
            rows = answer["requests"]
            new = list(itertools.takewhile(lambda row: known is not None and _name(row) not in known, rows))
            if len(new) < len(rows) or not answer["more"]:
                break
        self._known = {_name(row) for row in rows}
        return new


def _name(row: Row) -> tuple[str, float]:
    return row["id"], row["at"]


def _key(filters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(filters.items()))


def _event(name: bytes, data: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, orjson.dumps(data))


_FILTERS = ("model", "tenant", "source", "template", "prompt", "reason")
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


def show_live(app: "FastAPI", live: LiveFeed, access: AdminAccess) -> None:
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
        sent_at = time.monotonic()
        while not listener.ended and self._is_let_in():
            events = listener.taken()
            if not events and time.monotonic() - sent_at >= _SIGN_SECONDS:
                events = _SIGN_OF_LIFE
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
                sent_at = time.monotonic()
            await listener.wait(_CHECK_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Wait for the client's disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass
