"""Supervises the explain worker: starts the process, detects its loss or a hang, and starts it again."""

import asyncio
import contextlib
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gateway.explain.worker.explain_messages import FrameSplitter, RawMessage
from gateway.tasks import TaskGroupOwner

if TYPE_CHECKING:
    from gateway.explain.worker.explain_client import ExplainClient

_END_SECONDS = 2.0

_STARVED_SHARE = 0.5
"""A process that waits for a core this share of the time does not hang: others take the cores."""


@dataclass(frozen=True, slots=True)
class ExplainTimeouts:
    """Timeouts of the supervisor and the client.

    Attributes:
        tick_seconds: Interval of health checks.
        silent_ticks: Number of checks without any frame, while work is pending, after which the process counts as hung.
            Counting checks instead of time tolerates a pause of the whole machine. Those in which it mostly waited for
            a core do not count.
        starting_ticks: The same until its first frame.
        first_pause_seconds: Pause before the first restart.
        longest_pause_seconds: Maximum pause; pauses double while the process does not run this long.
        answer_seconds: Timeout of a question.
        drain_seconds: Timeout at shutdown for outstanding counts.
    """

    tick_seconds: float = 1.0
    silent_ticks: int = 10
    starting_ticks: int = 60
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    answer_seconds: float = 10.0
    drain_seconds: float = 1.0


class ExplainSupervisor:
    """Keeps the worker process running.

    Args:
        command: Command line, to which the descriptor number of its connection is appended. Or the path of the socket
            of a worker that another process supervises: then only the connection is kept.
        timeouts: Timeouts.
        host: The user of the process.
        listen_fd: Descriptor of a listening socket that every started process inherits, for other gateways.

    Attributes:
        child: The process; None while there is none.
        pid: Of the process; one that another process started sends it, and before that it is 0.
    """

    def __init__(
        self,
        command: Sequence[str] | Path,
        timeouts: ExplainTimeouts,
        host: "ExplainClient",
        listen_fd: int | None = None,
    ) -> None:
        self._command = command
        self._listen_fd = listen_fd
        self._timeouts = timeouts
        self._host = host
        self._tasks = TaskGroupOwner()
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._frames_received = 0
        self._lost_before = False
        self.child: ExplainProcess | None = None
        self.pid = 0

    def start(self) -> None:
        """Start the process in the background, and keep it running."""
        if self._running is None:
            self._ending = asyncio.get_running_loop().create_future()
            self._running = self._tasks.spawn(self._run(self._ending), name="explain-supervisor")

    async def stop(self) -> None:
        """End the process and wait for it."""
        running, self._running = self._running, None
        if running is not None and self._ending is not None:
            self._ending.set_result(None)
            await running

    async def _run(self, ending: "asyncio.Future[None]") -> None:
        timeouts, loop = self._timeouts, asyncio.get_running_loop()
        pause = timeouts.first_pause_seconds
        while not ending.done():
            began = loop.time()
            problem = await self._run_process(ending)
            if ending.done():
                return
            self._lost_before = True
            if loop.time() - began > timeouts.longest_pause_seconds:
                pause = timeouts.first_pause_seconds
            _log.error(
                "explain_lost",
                problem=problem,
                instead="requests go on; the tokens of those that waited count as unclassified, and what was known of"
                " earlier ones is forgotten",
                again_in_seconds=pause,
            )
            await asyncio.wait([ending], timeout=pause)
            pause = min(2 * pause, timeouts.longest_pause_seconds)

    async def _run_process(self, ending: "asyncio.Future[None]") -> str:
        """Run one process until it is lost or ``ending`` is done; returns how it was lost."""
        self._frames_received = self.pid = 0
        child = ExplainProcess(self._take)
        try:
            if isinstance(self._command, Path):
                await child.join(self._command)
            else:
                await child.start(self._command, self._listen_fd)
                self.pid = child.pid
        except OSError as error:
            self._host.on_lost()
            return f"it cannot be started: {error.strerror or type(error).__name__}"
        self.child = child
        self._host.on_started()
        problem = await self._watch(child, ending)
        if ending.done() and self._frames_received:
            await self._host.drain()
        self.child = None
        self._host.on_lost()
        # A process that is still starting does not read its connection yet, so it is killed.
        await child.end(kill=not ending.done() or not self._frames_received)
        return problem

    async def _watch(self, child: "ExplainProcess", ending: "asyncio.Future[None]") -> str:
        silent, frames, waited, tick_seconds = 0, self._frames_received, 0.0, self._timeouts.tick_seconds
        ends: list[asyncio.Future[Any]] = [child.over, ending]
        while True:
            await asyncio.wait(ends, timeout=tick_seconds, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ""
            if child.over.done():
                return child.over.result()
            before, waited = waited, waited_seconds(self.pid)
            if self._frames_received != frames or not (self._host.awaits_reply or not frames):
                silent = 0
            elif waited - before < _STARVED_SHARE * tick_seconds:
                silent += 1
            frames = self._frames_received
            if silent >= (self._timeouts.silent_ticks if frames else self._timeouts.starting_ticks):
                return f"it hangs: for {silent * tick_seconds:g} s it has not reacted"

    def _take(self, frame: RawMessage) -> None:
        if not self._frames_received and self._lost_before:
            _log.info("explain_recovered")
        self._frames_received += 1
        self._host.on_frame(frame)


def waited_seconds(pid: int) -> float:
    """How long a process has been ready to run and waited for a core so far; 0 if the system does not count it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class ExplainProcess:
    """One worker process, connected by a socket pair. It ends when the gateway's end is closed for any reason.

    Args:
        received: Called with every frame from it.

    Attributes:
        over: Done when the process has ended or has closed its end of the connection. The result describes which.
    """

    def __init__(self, received: Callable[[RawMessage], None]) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._received = received
        self._process: Process | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, command: Sequence[str], listen_fd: int | None = None) -> None:
        """Start it. Returns before it is ready, but it can be written to at once.

        Args:
            command: The command line; the descriptor number of its end of the connection is appended.
            listen_fd: Descriptor of a listening socket that it inherits; its number is appended before that.

        Raises:
            OSError: It cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # A session of its own, so that Ctrl-C and a terminal hangup reach the gateway only, which then ends it.
                passed = (theirs.fileno(),) if listen_fd is None else (listen_fd, theirs.fileno())
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    *map(str, passed),
                    pass_fds=passed,
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    start_new_session=True,
                )
            ours.setblocking(False)
            self._transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: _ProcessLink(self._received, self._end_of_line), sock=ours
            )
        except BaseException:
            ours.close()
            await self.end(kill=True)
            raise
        self._watch = asyncio.create_task(self._wait(self._process), name="explain-watch")

    @property
    def pid(self) -> int:
        """Of the process; 0 if another process started it."""
        return 0 if self._process is None else self._process.pid

    async def join(self, path: Path) -> None:
        """Connect to a worker shared with other gateways and started by another process. ``end`` leaves it running.

        Args:
            path: Path of its listening socket.

        Raises:
            OSError: No process listens there.
        """
        self._transport, _ = await asyncio.get_running_loop().create_unix_connection(
            lambda: _ProcessLink(self._received, self._end_of_line), str(path)
        )

    def write(self, data: bytearray) -> None:
        """Send frames. Returns at once."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def end(self, *, kill: bool) -> None:
        """Close the connection and wait until the process has ended.

        Args:
            kill: Kill it without waiting for a regular exit.
        """
        if self._transport is not None:
            self._transport.abort()
        process = self._process
        if process is None:
            return
        if not kill:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if self._watch is not None:
            await self._watch

    async def _wait(self, process: Process) -> None:
        code = await process.wait()
        self._say_over(f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}")

    def _end_of_line(self) -> None:
        # The process has probably just ended; waiting a moment yields its exit code for the log.
        asyncio.get_running_loop().call_later(0.5, self._say_over, "it closed its end of the connection")

    def _say_over(self, how: str) -> None:
        if not self.over.done():
            self.over.set_result(how)


class _ProcessLink(asyncio.Protocol):
    def __init__(self, received: Callable[[RawMessage], None], ended: Callable[[], None]) -> None:
        self._frames = FrameSplitter()
        self._received = received
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._received(frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        self._ended()


_log = structlog.get_logger("gateway.explain.worker")
