"""The process that explains, as the gateway sees it: started, written to, heard, ended."""

import asyncio
import contextlib
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.explain.worker.explain_messages import MessageSplitter, RawMessage

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
