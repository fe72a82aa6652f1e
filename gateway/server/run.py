"""Runs a gateway: both ports in one event loop, until a signal ends it.

SIGHUP, or a change of one of its files, reloads the configuration.

Shutdown has three steps. First ``/readyz`` fails while requests are still accepted, so that load balancers send theirs
to other gateways (``server.drain_seconds``). Then no more requests are accepted, and those in flight have
``server.shutdown_grace_seconds`` to complete. The rest is ended with an error.
"""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.core.errors import ConfigInvalid
from gateway.core.worker_place import WorkerPlace
from gateway.heap import return_free_memory, return_large_blocks
from gateway.http_client.open_files import FileLimits, open_files, raise_open_files
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.event_loop import Loop
from gateway.server.forced_end import ForcedEnd
from gateway.server.http_server import HttpServer, bound, url_of
from gateway.server.port import PortOptions
from gateway.server.public_handler import PublicHandler
from gateway.server.reload import Reloader
from gateway.tasks import TaskGroupOwner

_log = structlog.get_logger("gateway.server.run")

_STALLED_SECONDS = 1.0
"""Seconds that clients of the admin port's event stream have to read its end."""

_FEW_FILES = 16_384
"""A lower limit of open files is logged at the start."""

_AGAIN_SECONDS = 0.2
"""Requests that came in while the port was being closed are ended that much later."""

_FORCED_SECONDS = 6.0
"""Seconds after the grace period until the process is ended by force. The steps before have limits of their own, less
than two seconds together; the rest is for a machine that stalls. Deployments give ten."""

_SWITCH_SECONDS = 0.001
"""After which the event loop gets the interpreter lock from a thread that computes. Every call to the system gives it
away, so that a request waits that long several times while threads search or encode long texts; Python's own 5 ms add
up to 50 ms and more."""


class ServeOptions:
    """Signals and orders to a serving process.

    Args:
        reload: Reloads the configuration.
        gateway: Takes orders about replicas.

    Attributes:
        reload: The same.
        gateway: The same.
        ending: Set at shutdown.
        hurry: Set to end without waiting for open answers.
        drains: Whether requests are accepted for ``server.drain_seconds`` after the signal.
    """

    def __init__(self, reload: Callable[[], None], gateway: Gateway) -> None:
        self.reload = reload
        self.gateway = gateway
        self.ending = asyncio.Event()
        self.hurry = asyncio.Event()
        self.drains = False

    def end(self, *, drain: bool) -> None:
        """Begin the shutdown. Idempotent."""
        if not self.ending.is_set():
            self.drains = drain
            self.ending.set()

    def end_now(self) -> None:
        """End without waiting for open answers."""
        self.hurry.set()
        self.ending.set()


@dataclass(frozen=True, slots=True)
class Part:
    """The resources of one of several workers.

    Attributes:
        place: Its number and files. The supervisor has the admin port, and forwards requests to ``place.admin_at``.
        public: The public socket, bound.
        listen: Called in the event loop with the object that takes orders, which replace signals.
    """

    place: WorkerPlace
    public: socket.socket
    listen: Callable[[ServeOptions], None]


def serve(
    settings: Settings,
    config: Path,
    ready: Callable[[str, str], None] | None = None,
    part: Part | None = None,
    beside: Callable[[Gateway], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve until SIGTERM, or SIGINT, which skips ``drain_seconds``; a second one ends it now.

    Args:
        settings: The configuration.
        config: The file it came from; read again when it changes, and on SIGHUP.
        ready: Called with the public and the admin URL once both ports accept connections.
        part: Its resources as one of several workers; None: it is the only process.
        beside: Runs in a task beside the serving gateway, from when it is ready until its shutdown begins.

    Raises:
        ConfigInvalid: a port is taken or an address is not this machine's.
    """
    raise_open_files()
    sys.setswitchinterval(_SWITCH_SECONDS)
    return_large_blocks()
    if open_files() < _FEW_FILES:
        _log.warning("few_open_files", limit=open_files(), needed="one for each connection, of clients and to replicas")
    with contextlib.ExitStack() as ended, asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(_serve(settings, config, ready, part, ended, beside=beside))


async def _serve(
    settings: Settings,
    config: Path,
    ready: Callable[[str, str], None] | None,
    part: Part | None,
    ended: contextlib.ExitStack,
    *,
    beside: Callable[[Gateway], Coroutine[Any, Any, None]] | None,
) -> None:
    """As ``serve``.

    Args:
        settings: As there.
        config: As there.
        ready: As there.
        part: As there.
        ended: Closed once the event loop is.
        beside: As there.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in _sockets(settings, part)]
        gateway = Gateway(settings, part.place if part else None)
        public = HttpServer(
            PublicHandler(gateway.public), PortOptions.of(settings, FileLimits.of_public_port), cors=gateway.public.cors
        )
        admin = HttpServer(
            AsgiHandler(gateway.admin, trusts_proxy=part is not None),
            PortOptions.of(settings, FileLimits.of_admin_port),
            str(part.place.admin_at) if part else None,
        )
        reloader = Reloader(config, settings, gateway.reload, gateway.reload_refused)
        await gateway.start()
        _relax_garbage_collection()
        return_free_memory()
        orders = ServeOptions(reloader.ask, gateway)
        (part.listen if part else _listen_to_signals)(orders)
        loop = asyncio.get_running_loop()
        running = [
            loop.create_task(public.serve(sockets[:1])),
            loop.create_task(admin.serve(sockets[1:])),
        ]
        await asyncio.gather(*(one.listens(task) for one, task in zip((public, admin), running, strict=True)))
        urls = url_of(sockets[0]), "" if part else url_of(sockets[1])
        if part is None:
            log_ready(settings, *urls)
        if ready is not None:
            ready(*urls)
        gateway.admin.build()
        reloader.start()
        tasks = TaskGroupOwner()
        if beside is not None:
            tasks.spawn(beside(gateway), name="beside")
        await orders.ending.wait()
        await tasks.cancel()
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
        loop.call_later(_STALLED_SECONDS, admin.hurry_clients)
        public.stop()
        admin.stop()
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
    # Ctrl-C: an operator at a terminal, without a load balancer to wait for.
    loop.add_signal_handler(signal.SIGINT, lambda: signalled(drain=False))
    loop.add_signal_handler(signal.SIGHUP, orders.reload)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _relax_garbage_collection() -> None:
    """Exclude the objects of the start-up (tokenizers, templates, libraries) from garbage collection.

    Requests make a few hundred short-lived objects each and hardly any cycles, so with Python's default thresholds the
    collector would run for every other request and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def log_ready(settings: Settings, public: str, admin: str) -> None:
    """Log the addresses."""
    _log.info(
        "gateway_ready",
        public=public,
        admin=admin,
        dashboard=f"{admin}/dashboard",
        policy=settings.placement.policy,
    )
