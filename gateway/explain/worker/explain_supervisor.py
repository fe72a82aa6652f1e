"""Keeps one process that explains running: starts it, sees that it is lost or hangs, and starts it again.

The process that explains, as the gateway sees it: started, written to, heard, ended.
"""

import asyncio
import contextlib
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from gateway.explain.worker.explain_messages import MessageSplitter, RawMessage
from gateway.tasks import TaskGroupOwner

_END_SECONDS = 2.0


class ExplainProcess:
    """One such process. Its life hangs on a socket pair: it ends when the gateway's end is closed, by whatever.

    Args:
        received: Called with every frame that comes from it.

    Attributes:
        over: Done as soon as it is no longer of use: it ended, or its end of the connection is closed. The result is a
            sentence about it.
    """

    def __init__(self, received: Callable[[RawMessage], None]) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._received = received
        self._process: Process | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, command: Sequence[str], door: int | None = None) -> None:
        """Start it. Returns before it is ready; it may be written to all the same.

        Args:
            command: The command line; the number of its end of the connection is appended.
            door: A descriptor that it gets as well, whose number is appended before that.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # A session of its own: Ctrl-C and a hangup of the terminal are for the gateway, which then ends it.
                passed = (theirs.fileno(),) if door is None else (door, theirs.fileno())
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

    async def join(self, path: Path) -> None:
        """Connect to one that somebody else started, and that works for others, too. ``end`` leaves it as it is.

        Args:
            path: Where it listens.

        Raises:
            OSError: nobody listens there.
        """
        self._transport, _ = await asyncio.get_running_loop().create_unix_connection(
            lambda: _ProcessLink(self._received, self._end_of_line), str(path)
        )

    def write(self, data: bytearray) -> None:
        """Send frames. Returns at once."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def end(self, *, kill: bool) -> None:
        """Close the connection and wait until it is gone.

        Args:
            kill: Do not wait for it to end by itself.
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
        # Most often it has just ended, and how is what should be told.
        asyncio.get_running_loop().call_later(0.5, self._say_over, "it closed its end of the connection")

    def _say_over(self, how: str) -> None:
        if not self.over.done():
            self.over.set_result(how)


class _ProcessLink(asyncio.Protocol):
    def __init__(self, received: Callable[[RawMessage], None], ended: Callable[[], None]) -> None:
        self._frames = MessageSplitter()
        self._received = received
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._received(frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        self._ended()


_log = structlog.get_logger("gateway.explain.worker")


@dataclass(frozen=True, slots=True)
class ExplainTimeouts:
    """How long things may take.

    Attributes:
        tick_seconds: How often it is looked whether the process gives signs of life.
        silent_ticks: After how many looks without one it is given up, while something waits. They are counted, rather
            than the time taken, so that a pause of the whole machine is not held against the process.
        starting_ticks: The same until its first sign.
        first_pause_seconds: Before it is started again.
        longest_pause_seconds: To which that grows, doubling, while the process does not last as long as this.
        answer_seconds: For the answer to a question.
        farewell_seconds: At the end, for what is still to be counted.
    """

    tick_seconds: float = 1.0
    silent_ticks: int = 10
    starting_ticks: int = 60
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    answer_seconds: float = 10.0
    farewell_seconds: float = 1.0


class ExplainHost(Protocol):
    """Whom the process works for."""

    @property
    def awaits_sign(self) -> bool:
        """Whether anything was handed to the process that it should have reacted to by now."""
        ...

    def on_started(self) -> None:
        """A new process is there; it knows nothing yet."""
        ...

    def on_frame(self, frame: RawMessage) -> None:
        """It says something."""
        ...

    def on_lost(self) -> None:
        """It is not there any more, and with it what it knew."""
        ...

    async def say_farewell(self) -> None:
        """It is about to be ended."""
        ...


class ExplainSupervisor:
    """Keeps the process.

    Args:
        command: What to start; the number of the file descriptor of its connection is appended. Or where a process
            listens that somebody else keeps: then it is only the connection that is kept.
        patience: How long things may take.
        host: Whom it works for.
        door: Where others can connect to it: a descriptor of a listening socket that every process started gets.

    Attributes:
        child: The process; None while there is none.
    """

    def __init__(
        self, command: Sequence[str] | Path, patience: ExplainTimeouts, host: ExplainHost, door: int | None = None
    ) -> None:
        self._command = command
        self._door = door
        self._patience = patience
        self._host = host
        self._tasks = TaskGroupOwner()
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._signs = 0
        self._lost_before = False
        self.child: ExplainProcess | None = None

    def start(self) -> None:
        """Start it in the background, and keep it."""
        if self._running is None:
            self._ending = asyncio.get_running_loop().create_future()
            self._running = self._tasks.spawn(self._keep(self._ending), name="explain-keeper")

    async def stop(self) -> None:
        """End it. Nothing is left of it afterwards."""
        running, self._running = self._running, None
        if running is not None and self._ending is not None:
            self._ending.set_result(None)
            await running

    async def _keep(self, ending: "asyncio.Future[None]") -> None:
        patience, loop = self._patience, asyncio.get_running_loop()
        pause = patience.first_pause_seconds
        while not ending.done():
            began = loop.time()
            problem = await self._one_life(ending)
            if ending.done():
                return
            self._lost_before = True
            if loop.time() - began > patience.longest_pause_seconds:
                pause = patience.first_pause_seconds
            _log.error(
                "explain_lost",
                problem=problem,
                instead="requests go on; the tokens of those that waited count as unclassified, and what was known of"
                " earlier ones is forgotten",
                again_in_seconds=pause,
            )
            await asyncio.wait([ending], timeout=pause)
            pause = min(2 * pause, patience.longest_pause_seconds)

    async def _one_life(self, ending: "asyncio.Future[None]") -> str:
        """Start it and wait until it is lost or to be ended; returns how it was lost."""
        self._signs = 0
        child = ExplainProcess(self._take)
        try:
            if isinstance(self._command, Path):
                await child.join(self._command)
            else:
                await child.start(self._command, self._door)
        except OSError as error:
            self._host.on_lost()
            return f"it cannot be started: {error.strerror or type(error).__name__}"
        self.child = child
        self._host.on_started()
        problem = await self._watch(child, ending)
        if ending.done() and self._signs:
            await self._host.say_farewell()
        self.child = None
        self._host.on_lost()
        # One that is still starting does not look at its connection yet.
        await child.end(kill=not ending.done() or not self._signs)
        return problem

    async def _watch(self, child: ExplainProcess, ending: "asyncio.Future[None]") -> str:
        silent, heard = 0, self._signs
        ends: list[asyncio.Future[Any]] = [child.over, ending]
        while True:
            await asyncio.wait(ends, timeout=self._patience.tick_seconds, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ""
            if child.over.done():
                return child.over.result()
            silent = silent + 1 if self._signs == heard and (self._host.awaits_sign or not heard) else 0
            heard = self._signs
            if silent >= (self._patience.silent_ticks if heard else self._patience.starting_ticks):
                return f"it hangs: for {silent * self._patience.tick_seconds:g} s it has not reacted"

    def _take(self, frame: RawMessage) -> None:
        if not self._signs and self._lost_before:
            _log.info("explain_recovered")
        self._signs += 1
        self._host.on_frame(frame)
