"""The supervisor: runs the workers, and serves the admin port for all of them."""

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import structlog

from gateway.component_options import configure_explain, explain_front, space_rules
from gateway.config.settings import Settings
from gateway.core.canonical import RuleMode
from gateway.core.errors import ConfigInvalid, GatewayError
from gateway.core.reasons import Reason
from gateway.core.worker_place import WorkerPlace
from gateway.http_client.open_files import FileLimits
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.event_loop import Loop
from gateway.server.http_server import HttpServer, bound, url_of
from gateway.server.port import PortOptions
from gateway.server.reload import Reloader
from gateway.server.run import log_ready
from gateway.server.workers.admin_port import AdminPort
from gateway.server.workers.worker_client import WorkerClient
from gateway.server.workers.worker_process import WorkerProcess, WorkerStart
from gateway.tasks import TaskGroupOwner

_PATIENCE_SECONDS = 6.5
"""Seconds after the grace period; workers that are still running then are killed."""
_LOOK_SECONDS = 2.0
"""Interval of the liveness check of the workers and the explain worker."""

_MAX_ORDERS = 1000
"""Maximum orders that are kept for workers that start later: drains of removed replicas are never revoked."""

_LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket, on Linux."""
_MAX_DIGITS = 99

_log = structlog.get_logger("gateway.server.workers")


class WorkersFailed(Exception):
    """A worker ended before any of them served. Its log has the reason."""


def supervise(
    settings: Settings,
    config: Path,
    workers: int,
    ready: Callable[[str, str], None] | None = None,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve with several processes until SIGTERM or SIGINT; as ``gateway.server.run.serve``.

    Args:
        settings: The configuration.
        config: The file it came from; read again when it changes, and on SIGHUP.
        workers: How many.
        ready: Called with the public and the admin URL once all workers serve.
        beside: Runs in a task of this process from then on, until the end.

    Raises:
        ConfigInvalid: a port is taken, or a worker cannot use the configuration.
        WorkersFailed: a worker failed for another reason before any of them served.
    """
    with _sockets(settings) as (public, admin), _folder() as folder:
        supervisor = WorkerSupervisor(settings, config, workers, public, folder)
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(supervisor.run(admin, ready, beside))


class WorkerSupervisor:
    """One run of the supervisor, which gets the events of the workers."""

    def __init__(self, settings: Settings, config: Path, workers: int, public: socket.socket, folder: Path) -> None:
        self._settings = settings
        self._config = config
        self._public = public
        self._folder = folder
        self._crew = [WorkerProcess(number, self._start_of, self) for number in range(workers)]
        self._upstreams = [WorkerClient(self._place(member.number).admin_at) for member in self._crew]
        self._port = AdminPort(self._upstreams, on_order=self._take_order)
        self._orders: dict[tuple[str, str], dict[str, object]] = {}
        self._all_serve = asyncio.Event()
        self._explains = False
        self._over = asyncio.Event()
        self._failure: Exception | None = None
        self._ending = False
        self._tasks = TaskGroupOwner()

    def _warn(self) -> None:
        """Log which limits and files several workers do not share."""
        if space_rules(self._settings).numbered and self._settings.state is None:
            _log.warning(
                "spaces_not_shared",
                instead="each worker has prefix spaces of its own: what one has filled the others cannot use",
                to_change="set state to a Redis",
            )

    async def run(
        self,
        admin: socket.socket,
        ready: Callable[[str, str], None] | None,
        beside: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        """Serve until the end."""
        loop = asyncio.get_running_loop()
        reloader = Reloader(self._config, self._settings, self._take_over, lambda: None)

        def reload() -> None:
            reloader.ask()
            self._send_all(do="reload")

        self._warn()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._end(drain=True))
        loop.add_signal_handler(signal.SIGINT, lambda: self._end(drain=False))
        loop.add_signal_handler(signal.SIGHUP, reload)
        with _listening(self._folder) as door:
            self._explain = explain_front(self._settings, _NoExplainObserver(), listen_fd=door.fileno())
            try:
                await self._serve(admin, ready, reloader, beside)
            finally:
                await reloader.stop()
                await self._tasks.cancel()
                await self._explain.stop()
        if self._failure is not None:
            raise self._failure

    async def _serve(
        self,
        admin: socket.socket,
        ready: Callable[[str, str], None] | None,
        reloader: Reloader,
        beside: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        kept = asyncio.gather(*(loop.create_task(member.keep()) for member in self._crew))
        kept.add_done_callback(lambda _: self._over.set())
        starting = loop.create_task(self._all_serve.wait())
        either: list[asyncio.Future[Any]] = [kept, starting]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if kept.done():
            await kept
            return
        server = HttpServer(AsgiHandler(self._port), PortOptions.of(self._settings, FileLimits.of_admin_port))
        answering = loop.create_task(server.serve([admin]))
        await server.listens(answering)
        urls = url_of(self._public), url_of(admin)
        log_ready(self._settings, *urls)
        if ready is not None:
            ready(*urls)
        reloader.start()
        self._tasks.spawn(self._look(), name="workers-look")
        if beside is not None:
            self._tasks.spawn(beside(), name="beside")
        await self._over.wait()
        limits = self._settings.server
        await asyncio.wait([kept], timeout=limits.drain_seconds + limits.shutdown_grace_seconds + _PATIENCE_SECONDS)
        while not kept.done():
            for member in self._crew:
                member.kill()
            await asyncio.wait([kept], timeout=1)
        await kept
        server.stop()
        loop.call_later(1, server.hurry_clients)
        await answering
        for upstream in self._upstreams:
            await upstream.close()

    # For ``WorkerProcess``.

    def on_ready(self, member: WorkerProcess) -> None:
        """It has begun to serve."""
        if not self._explains:  # not before: its imports delay the start of the workers
            self._explains = True
            self._explain.start()
        self._upstreams[member.number].open()
        for order in self._orders.values():
            member.say(**order)
        _log.info("worker_ready", number=member.number, life=member.lives)
        if all(each.has_served for each in self._crew):
            self._all_serve.set()

    def on_lost(self, member: WorkerProcess) -> None:
        """It serves no more; it is about to be started again."""
        self._upstreams[member.number].lost()
        self._port.lost(member.number)

    def on_hopeless(self, problems: list[str]) -> None:
        """It ended before any worker served: for these reasons, or for what it has logged."""
        if not any(member.has_served for member in self._crew) and self._failure is None:
            self._failure = ConfigInvalid(problems) if problems else WorkersFailed()
            self._end(drain=False)

    def _end(self, *, drain: bool) -> None:
        if self._ending:
            self._send_all(do="now")  # asked twice
            return
        self._ending = True
        for member in self._crew:
            member.end(drain=drain)
        self._over.set()

    def _send_all(self, **members: object) -> None:
        for member in self._crew:
            if member.serves:
                member.say(**members)

    def _start_of(self, number: int) -> WorkerStart:
        return WorkerStart(self._settings, self._config, self._place(number), self._public.getsockname()[1])

    def _place(self, number: int) -> WorkerPlace:
        return WorkerPlace(number, self._folder)

    async def _take_over(self, settings: Settings) -> None:
        self._settings = settings
        await configure_explain(self._explain, settings)

    def _take_order(self, kind: str, replica: str, order: object) -> None:
        """Keep an order for workers that start later, and send it to those that may have missed it: just started, or
        too busy to answer."""
        said: dict[str, object] = {"do": kind, "order": [replica, order, time.time()]}
        self._orders.pop((kind, replica), None)
        if order:  # else a new worker starts with it: neither drained nor added
            self._orders[kind, replica] = said
        if len(self._orders) > _MAX_ORDERS:
            del self._orders[next(iter(self._orders))]
        self._send_all(**said)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for member, upstream in zip(self._crew, self._upstreams, strict=True):
                member.look()
                upstream.reacts = member.reacts
            # Any answer is sufficient. A missing one is detected by the owner of the process.
            with contextlib.suppress(GatewayError):
                await self._explain.ask("request", {"id": ""})


class _NoExplainObserver:
    """An ``ExplainObserver``: the workers count."""

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """See ``ExplainObserver``."""

    def on_explain_skipped(self, count: int) -> None:
        """See ``ExplainObserver``."""

    def on_canonical(self, rule: str, mode: RuleMode, edits: float, saved: float, lost: float) -> None:
        """See ``ExplainObserver``."""


@contextlib.contextmanager
def _sockets(settings: Settings) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The public one, which only holds the port for the workers, and that of the admin port."""
    server = settings.server
    with contextlib.ExitStack() as stack:
        # Asked for alone first: another gateway of the same user would not be noticed otherwise.
        with bound("server.port", server.host, server.port) as free:
            port = free.getsockname()[1]
        public = stack.enter_context(bound("server.port", server.host, port, shared=True))
        yield public, stack.enter_context(bound("server.admin_port", server.admin_host, server.admin_port))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder that only this user can look into, until the end."""
    try:
        made = tempfile.TemporaryDirectory(prefix="prefix-gateway-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_folder(f"none can be written ({error.strerror or error})") from error
    with made as name:
        folder = Path(name)
        if len(os.fsencode(WorkerPlace(_MAX_DIGITS, folder).admin_at)) > _LONGEST_SOCKET:
            raise _no_folder(f"the name of {folder} is too long for sockets in it")
        yield folder


def _no_folder(why: str) -> ConfigInvalid:
    problem = (
        f"server.workers: several need a folder for temporary files, and {why}. Name a short one that can be written"
    )
    return ConfigInvalid([f"{problem} in the environment variable TMPDIR."])


@contextlib.contextmanager
def _listening(folder: Path) -> Iterator[socket.socket]:
    """The socket at which workers connect to the explain worker; it listens before that runs, and while it is
    replaced."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(WorkerPlace(0, folder).explain_at))
        door.listen()
        yield door
