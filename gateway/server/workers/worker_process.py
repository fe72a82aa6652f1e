"""One worker process: starts it, exchanges messages with it, and restarts it when it is lost.

Messages go over a socket pair. The first one to a worker is its ``WorkerStart`` (pickled: both run the same code, and
only they have an end of the connection). After that each message is a JSON object on a line of its own. To the worker:
``{"do": "end", "drain": true}``, ``{"do": "now"}``, ``{"do": "reload"}``, ``{"do": "drain", "order": ["r0", true,
1e9]}`` (``DrainOrder``), ``{"do": "replica", "order": ["r7", {...}, 1e9]}`` (added; null: removed), ``{"do": "ping"}``.
From the worker: ``{"ready": true}``, or ``{"problems": [...]}`` if the configuration cannot be used, and ``{"pong":
true}``. A closed end means that its process has ended.
"""

import asyncio
import contextlib
import pickle
import socket
import struct
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from gateway.config.settings import Settings
from gateway.core.worker_place import WorkerPlace

if TYPE_CHECKING:
    from gateway.server.workers.worker_supervisor import WorkerSupervisor

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The configuration of a worker.

    Attributes:
        settings: The configuration in force. Not read from the file again, which may be invalid by now.
        config: The file it came from.
        place: Which worker it is.
        port: The public port.
    """

    settings: Settings
    config: Path
    place: WorkerPlace
    port: int


def encode_worker_start(start: WorkerStart) -> bytes:
    """Encode the first message to a worker."""
    content = pickle.dumps(start)
    return _LENGTH.pack(len(content)) + content


def read_worker_start(line: socket.socket) -> WorkerStart:
    """Read the first message; blocks.

    Raises:
        EOFError: the supervisor is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    start = pickle.loads(_exactly(line, length))  # noqa: S301 - from the process that started this one
    assert isinstance(start, WorkerStart)
    return start


def message(**members: Any) -> bytes:
    """Encode a message."""
    return orjson.dumps(members) + b"\n"


class WorkerMessageSplitter:
    """Splits received bytes into messages.

    Args:
        take: Called with each of them.
    """

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Bytes were received."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(orjson.loads(line))


def _exactly(line: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = line.recv(count - len(content))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)


COMMAND = (sys.executable, "-m", "gateway.server.workers.worker_main")

_LAST_WORDS_SECONDS = 1.0
"""Seconds to wait for the last messages of a worker that has ended."""

_MAX_UNANSWERED = 8
"""Unanswered pings after which a worker is ended. Counted instead of timed: a pause of the whole machine must not
count."""

_LATE = 2
"""Unanswered pings after which other workers are preferred."""

_log = structlog.get_logger("gateway.server.workers")


@dataclass(frozen=True, slots=True)
class RestartDelays:
    """Delays before a worker is restarted.

    Attributes:
        first: Seconds, the first time.
        longest: To which that grows, doubling, while it does not last as long as this.
    """

    first: float = 0.2
    longest: float = 30.0


class WorkerProcess:
    """One worker.

    Args:
        number: Which, from 0.
        start_message: Makes its configuration, at every start.
        host: Gets its events.
        pauses: Delays before restarts.

    Attributes:
        number: The same.
        lives: How often it was started.
        serves: Whether it is there and has begun to serve.
        has_served: Whether it ever was.
    """

    def __init__(
        self,
        number: int,
        start_message: Callable[[int], WorkerStart],
        host: "WorkerSupervisor",
        pauses: RestartDelays = RestartDelays(),
    ) -> None:
        self.number = number
        self.lives = 0
        self.serves = False
        self.has_served = False
        self._start_message = start_message
        self._host = host
        self._pauses = pauses
        self._problems: list[str] = []
        self._unanswered = 0
        self._ending = asyncio.Event()
        self._process: Process | None = None
        self._transport: asyncio.Transport | None = None

    async def keep(self) -> None:
        """Run and restart it until ``end`` is called."""
        pause, loop = self._pauses.first, asyncio.get_running_loop()
        while not self._ending.is_set():
            began = loop.time()
            how = await self._live()
            served, self.serves = self.serves, False
            if self._ending.is_set():
                return
            if not self.has_served and not served:
                self._host.on_hopeless(self._problems)
            self._host.on_lost(self)
            if loop.time() - began > self._pauses.longest:
                pause = self._pauses.first
            _log.error(
                "worker_lost",
                number=self.number,
                problem=how,
                details=self._problems or None,
                instead="the other workers go on; its open answers are cut off",
                again_in_seconds=pause,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()
            pause = min(2 * pause, self._pauses.longest)

    @property
    def reacts(self) -> bool:
        """Whether it has reacted lately."""
        return self._unanswered < _LATE

    def say(self, **members: Any) -> None:
        """Send it a message, if it is there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(message(**members))

    def end(self, *, drain: bool) -> None:
        """End it without a restart. If it does not serve yet, it ends at once."""
        self._ending.set()
        if self.serves:
            self.say(do="end", drain=drain)
        else:
            self.kill()

    def look(self) -> None:
        """See whether it still reacts, and end it if it has not for several looks. To be called every few seconds."""
        if not self.serves:
            return
        if self._unanswered >= _MAX_UNANSWERED:
            _log.error("worker_hangs", number=self.number, looks=self._unanswered, instead="it is killed and replaced")
            self.kill()
            return
        self._unanswered += 1
        self.say(do="ping")

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _live(self) -> str:
        """Start it and wait for its end; returns how it ended."""
        self._problems = []
        self._unanswered = 0
        self.lives += 1
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # A session of its own: Ctrl-C and a hangup of the terminal are for the supervisor.
                self._process = await asyncio.create_subprocess_exec(
                    *COMMAND,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=DEVNULL,
                    start_new_session=True,
                )
            ours.setblocking(False)
            self._transport, line = await asyncio.get_running_loop().create_unix_connection(
                lambda: _WorkerLink(WorkerMessageSplitter(self._take)), sock=ours
            )
        except OSError as error:
            ours.close()
            return f"it cannot be started: {error.strerror or type(error).__name__}"
        if self._ending.is_set():
            self.kill()
        self._transport.write(encode_worker_start(self._start_message(self.number)))
        try:
            code = await self._process.wait()
            await asyncio.wait([line.closed], timeout=_LAST_WORDS_SECONDS)
        finally:
            self._transport.abort()
        return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    def _take(self, said: dict[str, Any]) -> None:
        if "pong" in said:
            self._unanswered = 0
        elif "problems" in said:
            self._problems = said["problems"]
        elif not self._ending.is_set():
            self.serves = self.has_served = True
            self._host.on_ready(self)


class _WorkerLink(asyncio.Protocol):
    def __init__(self, messages: WorkerMessageSplitter) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._messages = messages

    def data_received(self, data: bytes) -> None:
        self._messages.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        if not self.closed.done():
            self.closed.set_result(None)
