"""Runs a gateway: both ports in one event loop, until it is told to end.

SIGHUP, or a change of a file that the configuration was made from, has the configuration read again.

The end comes in steps. First ``/readyz`` says that there soon will be no gateway here, while requests are still taken,
so that load balancers send theirs elsewhere (``server.drain_seconds``). Then no more are taken, and what is being
answered gets ``server.shutdown_grace_seconds``. What is left then is ended with an error.
"""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.core.errors import ConfigInvalid
from gateway.core.worker_place import WorkerPlace
from gateway.fleet.drains import DrainOrder
from gateway.heap import return_large_blocks
from gateway.server.event_loop import Loop
from gateway.server.forced_end import ForcedEnd
from gateway.server.http_server import HttpServer, bound, url_of
from gateway.server.open_files import open_files, raise_open_files
from gateway.server.reload import Reloader

_log = structlog.get_logger("gateway.server.run")

_STALLED_SECONDS = 1.0
"""How long whoever listens at the admin port may take to read its last words."""

_FEW_FILES = 16_384
"""A limit of open files below this is told at the start."""

_AGAIN_SECONDS = 0.2
"""Requests that came in while the port was being closed are ended that much later."""

_FORCED_SECONDS = 3.0
"""After the grace period: the process ends then, whatever is left to be done. Each step before has a limit of its own,
and together they take less than two seconds."""

_SWITCH_SECONDS = 0.001
"""After which the event loop gets the interpreter lock from a thread that computes. Every call to the system gives it
away, so that a request waits that long several times while threads search or encode long texts; Python's own 5 ms add
up to 50 ms and more."""


class ServeOptions:
    """What a serving process is told.

    Args:
        reload: Has the configuration read again.
        drain: Drains a replica, or does so no more, as an operator ordered.

    Attributes:
        reload: The same.
        drain: The same.
        ending: Set when it is to end.
        hurry: Set when it is to end without waiting for open answers.
        drains: Whether it is to go on taking requests for ``server.drain_seconds``.
    """

    def __init__(self, reload: Callable[[], None], drain: Callable[[DrainOrder], None]) -> None:
        self.reload = reload
        self.drain = drain
        self.ending = asyncio.Event()
        self.hurry = asyncio.Event()
        self.drains = False

    def end(self, *, drain: bool) -> None:
        """End; if it is ending already, nothing changes."""
        if not self.ending.is_set():
            self.drains = drain
            self.ending.set()

    def end_now(self) -> None:
        """End, and wait for nobody."""
        self.hurry.set()
        self.ending.set()


@dataclass(frozen=True, slots=True)
class Part:
    """What a process has that serves together with others.

    Attributes:
        place: Which one it is. The admin port is somebody else's, who passes on at ``place.admin_at`` what is asked.
        public: The public socket, bound.
        listen: Called in the event loop with the orders to fill: they do not come by signals.
    """

    place: WorkerPlace
    public: socket.socket
    listen: Callable[[ServeOptions], None]


def serve(
    settings: Settings,
    config: Path,
    ready: Callable[[str, str], None] | None = None,
    part: Part | None = None,
) -> None:
    """Serve until told to end: by SIGTERM, or by SIGINT, which skips ``drain_seconds``; a second one ends it now.

    Args:
        settings: The configuration.
        config: The file it came from; read again when it changes, and on SIGHUP.
        ready: Called with the public and the admin URL once both ports accept connections.
        part: How it serves together with other processes; None: it is alone.

    Raises:
        ConfigInvalid: a port is taken or an address is not this machine's.
    """
    raise_open_files()
    sys.setswitchinterval(_SWITCH_SECONDS)
    return_large_blocks()
    if open_files() < _FEW_FILES:
        _log.warning("few_open_files", limit=open_files(), needed="one for each connection, of clients and to replicas")
    with contextlib.ExitStack() as ended, asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(_serve(settings, config, ready, part, ended))


async def _serve(
    settings: Settings,
    config: Path,
    ready: Callable[[str, str], None] | None,
    part: Part | None,
    ended: contextlib.ExitStack,
) -> None:
    """As ``serve``.

    Args:
        settings: As there.
        config: As there.
        ready: As there.
        part: As there.
        ended: Closed once the event loop is.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in _sockets(settings, part)]
        gateway = Gateway(settings, part.place if part else None)
        public = HttpServer(gateway.public, settings, cors=gateway.public.cors)
        admin = HttpServer(gateway.admin, settings, str(part.place.admin_at) if part else None)
        reloader = Reloader(config, settings, gateway.reload, gateway.reload_refused)
        await gateway.start()
        _relax_garbage_collection()
        orders = ServeOptions(reloader.ask, gateway.take_order)
        (part.listen if part else _listen_to_signals)(orders)
        loop = asyncio.get_running_loop()
        running = [
            loop.create_task(public.serve(sockets=sockets[:1])),
            loop.create_task(admin.serve(sockets=sockets[1:] or None)),
        ]
        await asyncio.gather(*(one.listens(task) for one, task in zip((public, admin), running, strict=True)))
        urls = url_of(sockets[0]), "" if part else url_of(sockets[1])
        if part is None:
            log_ready(settings, *urls)
        if ready is not None:
            ready(*urls)
        reloader.start()
        await orders.ending.wait()
        await reloader.stop()
        if orders.drains and settings.server.drain_seconds:
            _log.info("gateway_draining", seconds=settings.server.drain_seconds)
            gateway.leave()
            public.leave()
            await _set_within(orders.hurry, settings.server.drain_seconds)
        _log.info("gateway_stopping", grace_seconds=settings.server.shutdown_grace_seconds)
        grace = settings.server.shutdown_grace_seconds
        ended.callback(ForcedEnd(grace + _FORCED_SECONDS, 1).cancel)
        gateway.end_live()
        loop.call_later(_STALLED_SECONDS, admin.cut_stalled)
        public.should_exit = admin.should_exit = True
        answered = asyncio.gather(*running)
        hurried = loop.create_task(orders.hurry.wait())
        either: list[asyncio.Future[Any]] = [answered, hurried]
        await asyncio.wait(either, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        while not answered.done():
            gateway.public.interrupt()
            await asyncio.wait([answered], timeout=_AGAIN_SECONDS)
        await answered
        await gateway.stop()


def _sockets(settings: Settings, part: Part | None) -> list[socket.socket]:
    """The public one, and that of the admin port if there is one here."""
    if part is not None:
        return [part.public]
    server = settings.server
    public = bound("server.port", server.host, server.port)
    try:
        return [public, bound("server.admin_port", server.admin_host, server.admin_port)]
    except ConfigInvalid:
        public.close()
        raise


def _listen_to_signals(orders: ServeOptions) -> None:
    def signalled(*, drain: bool) -> None:
        if orders.ending.is_set():
            orders.end_now()  # asked twice
        orders.end(drain=drain)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: signalled(drain=True))
    # Ctrl-C: whoever sits in front of it wants it to end, and there is no load balancer to wait for.
    loop.add_signal_handler(signal.SIGINT, lambda: signalled(drain=False))
    loop.add_signal_handler(signal.SIGHUP, orders.reload)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _relax_garbage_collection() -> None:
    """Spare every request its share of walking over what start-up built (tokenizers, templates, libraries).

    Requests make a few hundred short-lived objects each and hardly any cycles, so with Python's default thresholds the
    collector would run for every other request and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def log_ready(settings: Settings, public: str, admin: str) -> None:
    """Say where it can be reached."""
    _log.info(
        "gateway_ready",
        public=public,
        admin=admin,
        dashboard=f"{admin}/dashboard",
        policy=settings.placement.policy,
    )
