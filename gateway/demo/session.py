"""One demo from its start to its end: processes, traffic, view, summary.

Simulated users of one side: each asks, reads the answer, thinks, and asks again.

A user waits for the answer before the next question, so the slower side also serves fewer requests in the same time.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from argparse import Namespace
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, TypeVar

import uvloop
from rich.console import Console
from rich.live import Live

from gateway.demo import demo_view as view
from gateway.demo.applications import APPLICATIONS, DemoApplication, Script
from gateway.demo.demo_client import Client, RequestFailed
from gateway.demo.demo_plan import GATEWAY, REPLICAS, ROUND_ROBIN, SLOWEST_START_SECONDS, Side, configuration
from gateway.demo.demo_view import ReasonSummary, as_json, fetch_reasons, reasons_table, tokens_by_reason
from gateway.demo.score import Score

_THINK_SECONDS = (0.3, 1.7)
_PAUSE_AFTER_ERROR_SECONDS = 1.0
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


class Traffic:
    """All users of all applications, at one gateway.

    Args:
        url: The gateway's public URL.
        score: Where the answers are counted.
    """

    def __init__(self, url: str, score: Score) -> None:
        self._client = Client(url)
        self._score = score
        self._closing = asyncio.Event()
        self._users: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the users, each after a random delay."""
        for application in APPLICATIONS:
            for number in range(application.users):
                rng = Random(f"{application.name}, user {number}")  # noqa: S311 - has to be foreseeable
                self._users.append(asyncio.ensure_future(self._use(application, rng)))

    async def stop(self, patience_seconds: float) -> None:
        """Send no more requests. Those in flight may end within ``patience_seconds``; later ones are not counted."""
        self._closing.set()
        if self._users:
            await asyncio.wait(self._users, timeout=patience_seconds)
        for user in self._users:
            user.cancel()
        results = await asyncio.gather(*self._users, return_exceptions=True)
        await self._client.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _use(self, application: DemoApplication, rng: Random) -> None:
        await self._think(rng)
        while not self._closing.is_set():
            await self._converse(application, application.script(rng), rng)

    async def _converse(self, application: DemoApplication, script: Script, rng: Random) -> None:
        fields = next(script)
        while not self._closing.is_set():
            try:
                answer = await self._client.ask(fields, application.source)
            except RequestFailed as error:
                self._score.add_error(str(error))
                await self._wait(_PAUSE_AFTER_ERROR_SECONDS)
                return
            self._score.add(application.name, answer)
            await self._think(rng)
            try:
                fields = script.send(answer.message)
            except StopIteration:
                return

    async def _think(self, rng: Random) -> None:
        await self._wait(rng.uniform(*_THINK_SECONDS))

    async def _wait(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return


_T = TypeVar("_T")
_HOST = "127.0.0.1"
_FRAME_SECONDS = 0.25
_LINE_SECONDS = 3.0
_PATIENCE_SECONDS = 5.0
"""How long requests in flight may take once the time is over."""


class PortTaken(Exception):
    """The gateway's ports cannot be used.

    Attributes:
        lines: For each of them, which, why, and what to do.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def run_session(options: Namespace) -> int:
    """Run the demo with the options of the command line. Returns the exit code: 0, or 1 if requests failed.

    Raises:
        PortTaken: before anything was started.
    """
    _check_ports(options)
    console = Console(stderr=options.json, highlight=False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Session(options, console).run())


class _Session:
    def __init__(self, options: Namespace, console: Console) -> None:
        self._options = options
        self._console = console
        self._stop = asyncio.Event()
        names = [app.name for app in APPLICATIONS]
        self._gateway, self._other = Score.of(names), Score.of(names)
        self._reasons: ReasonSummary | None = None
        self._problem = ""
        self._elapsed = 0.0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        with tempfile.TemporaryDirectory(prefix="prefix-gateway-demo-") as folder:
            try:
                async with Children(Path(folder)) as children:
                    await self._play(children, Path(folder))
            except ChildFailed as error:
                self._problem = str(error)
        self._summarize()
        failed = bool(self._problem or self._gateway.errors or self._other.errors)
        return 1 if failed else 0

    async def _play(self, children: Children, folder: Path) -> None:
        urls = await self._unless_stopped(self._start(children, folder))
        if urls is None:
            return
        public, other, admin = urls
        async with self._traffic(public, other):
            await self._unless_stopped(self._watch(children))
        self._reasons = await fetch_reasons(admin)

    async def _start(self, children: Children, folder: Path) -> tuple[str, str, str]:
        """Start everything; returns the public URLs of both gateways, and the first one's admin port."""
        self._console.print(f"starting 2 x {REPLICAS} simulated engines ...")
        sides = (GATEWAY, ROUND_ROBIN)
        engines = await asyncio.gather(*(children.start(f"engines of {side.title}", "engines") for side in sides))
        self._console.print("starting the gateway, and a second one that goes round robin ...")
        ports = ((self._options.port, self._options.admin_port), (0, 0))

        async def start(side: Side, replicas: list[str], ports: tuple[int, int]) -> list[str]:
            file = folder / f"{side.key}.yaml"
            file.write_text(configuration(side, replicas, *ports), encoding="utf-8")
            return await children.start(f"the {side.title} gateway", "gateway", str(file))

        (public, admin), (other, _) = await asyncio.gather(*map(start, sides, engines, ports))
        self._console.print(view.introduction(public, admin), markup=False, soft_wrap=True)
        return public, other, admin

    @contextlib.asynccontextmanager
    async def _traffic(self, gateway: str, other: str) -> AsyncIterator[None]:
        both = [Traffic(gateway, self._gateway), Traffic(other, self._other)]
        for traffic in both:
            traffic.start()
        try:
            yield
        finally:
            # After a signal the demo ends at once; at the end of the time, slow requests must count as well.
            patience = 0.0 if self._stop.is_set() else _PATIENCE_SECONDS
            await asyncio.gather(*(traffic.stop(patience) for traffic in both))

    async def _watch(self, children: Children) -> None:
        """Show the run until its time is over. Raises ChildFailed if a child ends."""
        showing = asyncio.ensure_future(self._show())
        watching = asyncio.ensure_future(children.watch())
        try:
            done, _ = await asyncio.wait({showing, watching}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (showing, watching):
                task.cancel()
            await asyncio.wait({showing, watching})

    async def _show(self) -> None:
        """Draw until the time is over: a live table on a terminal, else a line now and then."""
        began = time.monotonic()
        end = self._options.seconds
        lively = self._console.is_terminal and not self._options.json
        screen = Live(console=self._console, auto_refresh=False, transient=True) if lively else None
        pause = _FRAME_SECONDS if lively else _LINE_SECONDS
        with screen or contextlib.nullcontext():
            while end is None or self._elapsed < end:
                await asyncio.sleep(pause if end is None else min(pause, end - self._elapsed))
                self._elapsed = time.monotonic() - began
                if screen is not None:
                    screen.update(view.live(self._gateway, self._other, self._elapsed, end), refresh=True)
                else:
                    line = view.progress_line(self._gateway, self._other, self._elapsed)
                    self._console.print(line, markup=False, soft_wrap=True)

    async def _unless_stopped(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The work's result, or None if a signal came first; the work is cancelled then."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.wait({working, stopped})

    def _summarize(self) -> None:
        if self._problem:
            print(f"prefix-gateway demo: {self._problem}", file=sys.stderr)
        if self._options.json:
            sides = ((GATEWAY, self._gateway), (ROUND_ROBIN, self._other))
            report = {side.key: dict(as_json(score)) for side, score in sides}
            if self._reasons is not None:
                report[GATEWAY.key]["missed_tokens"] = tokens_by_reason(self._reasons)
            print(json.dumps(report))
        elif self._gateway.requests or self._other.requests:
            why = reasons_table(self._reasons) if self._reasons is not None else None
            self._console.print(view.summary(self._gateway, self._other, self._elapsed, why))
        else:
            self._console.print("ended before the first answer")


def _check_ports(options: Namespace) -> None:
    """Check both ports before anything is started, so that one message reports all mistakes."""
    wanted = (("--port", "port", options.port), ("--admin-port", "admin port", options.admin_port))
    lines = [
        f"the {what} {port} cannot be used on {_HOST}: {problem}; choose another one with {flag} (0: any free one)"
        for flag, what, port in wanted
        if (problem := _port_problem(port))
    ]
    if options.port and options.port == options.admin_port:
        lines = [f"--port and --admin-port are both {options.port}; choose two different ones"]
    if lines:
        raise PortTaken(lines)


def _port_problem(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            return os.strerror(error.errno or 0)
    return ""
