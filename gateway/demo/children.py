"""Starts the child processes, watches them, and ends them."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gateway.demo.demo_plan import SLOWEST_START_SECONDS

_STOP_SECONDS = 5.0
_LOG_TAIL = 2000


class ChildFailed(Exception):
    """A child process did not start, or ended unexpectedly. The message names it and has its last output."""


@dataclass(frozen=True, slots=True, eq=False)
class _Child:
    name: str
    process: Process
    log: Path

    def failed(self, what: str) -> ChildFailed:
        said = self.log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip()
        return ChildFailed(f"{self.name} {what}" + (f"; its log ends with:\n{said}" if said else ""))


class Children:
    """The child processes of one demo. Leaving the context ends all of them.

    Args:
        folder: Where their logs go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[_Child] = []

    async def __aenter__(self) -> "Children":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.gather(*(_end(child.process) for child in self._children))

    async def start(self, name: str, *arguments: str) -> list[str]:
        """Start one and wait until it is ready. Returns the URLs it listens on.

        Args:
            name: For messages, and for its log file.
            arguments: As ``child`` takes them.

        Raises:
            ChildFailed: it did not start.
        """
        log = self._folder / f"{name.replace(' ', '-')}.log"
        # A session of its own, so that Ctrl-C reaches this process alone, which then ends the children in order.
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.demo.child",
                *arguments,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                start_new_session=True,
            )
        child = _Child(name, process, log)
        self._children.append(child)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SLOWEST_START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            raise child.failed(f"was not ready within {SLOWEST_START_SECONDS:.0f} s") from None
        said = json.loads(line) if line else {}
        if "urls" not in said:
            problem = said.get("problem")
            raise ChildFailed(f"{name} did not start: {problem}") if problem else child.failed("did not start")
        urls: list[str] = said["urls"]
        return urls

    async def watch(self) -> None:
        """Wait until one of them ends unexpectedly.

        Raises:
            ChildFailed: one has ended.
        """
        waits = {asyncio.ensure_future(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        ended = next(iter(done))
        raise waits[ended].failed(f"ended by itself (exit code {ended.result()})")


async def _end(process: Process) -> None:
    """Close the pipe, which ends the child."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
