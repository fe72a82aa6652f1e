"""Simulated engines on real sockets, in the running event loop."""

import asyncio
import errno
import functools
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.simulator.block_cache import BlockCache
from gateway.simulator.call import reset
from gateway.simulator.config import EngineConfig
from gateway.simulator.engine_app import EngineApp, RecordedRequest
from gateway.simulator.engine_scheduler import Scheduler
from gateway.simulator.faults import Fault, FaultInjector, FaultSpec
from gateway.simulator.publisher import EventPublisher, ListenError
from gateway.simulator.ranks import CachedBlock, Ranks
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

TOKENIZER = "builtin:demo"
_KEEP_ALIVE_SECONDS = 75
_GRACE_SECONDS = 0.5
_BACKLOG = 2048


class SimulatedEngine:
    """One engine with its own port, caches and clock.

    Several can run in one event loop; they share nothing but the tokenizer, which does not change.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._faults = FaultInjector()
        self._event_fault: FaultSpec | None = None
        for spec in config.parse_faults(config.fault):
            if spec.fault.of_events:
                self._event_fault = spec
            else:
                self._faults.set(spec)
        self._ranks = Ranks(config)
        self._app = EngineApp(config, self._ranks, _encoder(config.chat_template), self._faults, self.set_fault)
        self._state = ServerState()
        self._uvicorn = uvicorn.Config(
            self._app,
            lifespan="off",
            ws="none",
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._uvicorn.load()
        self._listener: asyncio.Server | None = None
        self._port = config.port

    @property
    def config(self) -> EngineConfig:
        """The engine's configuration."""
        return self._config

    @property
    def port(self) -> int:
        """The port in use; before the start the configured one."""
        return self._port

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        return f"http://{host}:{self._port}"

    @property
    def ranks(self) -> Ranks:
        """The data-parallel ranks, for inspection."""
        return self._ranks

    @property
    def cache(self) -> BlockCache:
        """The block cache of rank 0, for inspection."""
        return self._ranks.all[0].cache

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of rank 0, for inspection."""
        return self._ranks.all[0].scheduler

    @property
    def content(self) -> list[list[CachedBlock]]:
        """For each rank every cached block, in no order."""
        return [rank.content() for rank in self._ranks.all]

    @property
    def event_endpoints(self) -> list[str]:
        """For each rank where its events are published, with the port in use; empty when events are off."""
        return [str(publisher.events) for publisher in self._publishers]

    @property
    def replay_endpoints(self) -> list[str]:
        """For each rank where its past events can be requested; empty without replay."""
        return [str(publisher.replay) for publisher in self._publishers if publisher.replay is not None]

    @property
    def requests(self) -> list[RecordedRequest]:
        """The last ``record_requests`` POST requests, oldest first."""
        return list(self._app.requests)

    async def start(self) -> None:
        """Listen. Raises ListenError if an address cannot be used; nothing listens then."""
        await self._ranks.set_fault(self._event_fault)
        try:
            for publisher in self._publishers:
                await publisher.open()
            if self._faults.shown_at_the_door is Fault.REFUSE:
                # Find a port without keeping it.
                self._open().close()
            else:
                await self._listen()
        except ListenError:
            await self._close_publishers()
            raise

    async def stop(self) -> None:
        """Stop listening, wait briefly for running answers, then close every connection."""
        self._close_listener()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._drain()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await self._drain()
        await self._close_publishers()

    async def kill(self) -> None:
        """Die: stop listening, stop publishing and reset every connection at once.

        ``start`` lets the same engine listen again, with its cache and its past events as they were; a new one on its
        ports has an empty cache and counts its events from 0.
        """
        self._close_listener()
        await self._close_publishers()
        for connection in list(self._state.connections):
            reset(connection.transport)
        await self._drain()

    async def set_fault(self, specs: str) -> None:
        """Put faults in force, see ``faults``; an empty spec ends all of them.

        Raises:
            ValueError: The spec is bad; nothing is changed.
            ListenError: A closed socket cannot be opened again.
        """
        parsed = self._config.parse_faults(specs)
        for spec in parsed or (None,):
            if spec is None or spec.fault.of_events:
                momentary = spec is not None and spec.fault is Fault.EVENTS_RESTART
                self._event_fault = None if momentary else spec
                await self._ranks.set_fault(spec)
            if spec is None or not spec.fault.of_events:
                await self._set_http_fault(spec)

    def replace_model(
        self, *, root: str = "", version: str = "", max_model_len: int | None = None, restart: bool = False
    ) -> None:
        """Simulate a model update; see ``EngineApp.replace_model``."""
        self._app.replace_model(root=root, version=version, max_model_len=max_model_len, restart=restart)

    async def _set_http_fault(self, spec: FaultSpec | None) -> None:
        before = self._faults.shown_at_the_door
        self._faults.set(spec)
        now = self._faults.shown_at_the_door
        if now is Fault.REFUSE:
            self._close_listener()
        elif before is Fault.REFUSE:
            await self._listen()
        for connection in list(self._state.connections):
            if isinstance(connection, _Connection):
                if now is not Fault.CONNECT_HANG:
                    connection.listen()
                if now is not None and connection.idle:
                    connection.transport.close()

    @property
    def _publishers(self) -> list[EventPublisher]:
        return [rank.publisher for rank in self._ranks.all if rank.publisher is not None]

    async def _close_publishers(self) -> None:
        for publisher in self._publishers:
            await publisher.close()

    async def _drain(self) -> None:
        """Wait briefly for requests to end."""
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=_GRACE_SECONDS)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = functools.partial(_Connection, self._faults, self._uvicorn, self._state, {})
        self._listener = await loop.create_server(protocol, sock=self._open(), backlog=_BACKLOG)

    def _open(self) -> socket.socket:
        """A bound socket; with port 0 the port found stays this engine's for good."""
        host = self._config.host
        try:
            opened = _bind(host, self._port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
            hint = "; choose another one with --port" if error.errno == errno.EADDRINUSE else ""
            raise ListenError(f"cannot listen on {host}:{self._port}: {reason}{hint}") from error
        self._port = opened.getsockname()[1]
        return opened

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class _Connection(HttpToolsProtocol):
    """uvicorn's HTTP connection, which passes its transport to the application and shows the faults of connections."""

    def __init__(
        self, faults: FaultInjector, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, state, app_state)
        self.access_log = False
        self._faults = faults
        self._unread: list[bytes] | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self._unread is None and (self.cycle is None or self.cycle.response_complete)

    def listen(self) -> None:
        """Install the transport and the handling of connection faults."""
        unread, self._unread = self._unread or [], None
        for data in unread:
            super().data_received(data)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        match self._faults.shown_at_the_door:
            case Fault.CONNECT_HANG:
                self._unread = []
            case Fault.CONNECT_RESET:
                reset(transport)

    def data_received(self, data: bytes) -> None:
        if self._unread is None:
            super().data_received(data)
        else:
            self._unread.append(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


def _bind(host: str, port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off only where the protocol is named; left on, each answer is late by a delayed
    # acknowledgement (40 ms).
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


@functools.cache
def _encoder(chat_template: Path | None) -> LocalEncoder:
    template = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    # Without a cache of tokens: the time of a response must not depend on whether a text was sent before.
    return load_local(TOKENIZER, chat_template=template, cache_mib=0)


async def serve_engines(
    configs: Sequence[EngineConfig], ready: Callable[[list[SimulatedEngine]], None] = lambda _: None
) -> None:
    """Run engines until SIGTERM or SIGINT arrives or the task is cancelled; needs the main thread.

    Args:
        configs: One for each engine.
        ready: Called once, when all of them listen.

    Raises:
        ListenError: One of the addresses cannot be used; none of the engines runs then.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    engines = [SimulatedEngine(config) for config in configs]
    try:
        for engine in engines:
            await engine.start()
        ready(engines)
        await stopped.wait()
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
