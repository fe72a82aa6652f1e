"""Keeps one process that explains running: starts it, sees that it is lost or hangs, and starts it again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from gateway.explain.worker.child_process import ExplainProcess
from gateway.explain.worker.explain_messages import RawMessage
from gateway.tasks import TaskGroupOwner

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
