"""What gateways exchange about explained requests: totals, through shared records, and computed prompts.

Each gateway writes its totals every few seconds, as long as there are others. A gateway that is asked for the totals of
all reads the records; only queries of the admin API wait for this. Messages about computed prompts are opaque here: the
explain workers encode and decode them.
"""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from gateway.core.ports import SharedRecords
from gateway.tasks import TaskGroupOwner

WRITTEN_SECONDS = 180.0
"""Lifetime of a gateway's record; a gateway that crashed drops out after it."""

_WRITE_SECONDS = 5.0
_READ_SECONDS = 1.0

_CLEAN_ROUNDS = 36
"""Number of writes between cleanups of expired records."""

_NAME_BYTES = 8
_Written = tuple[float, bytes]
_decoder = msgspec.msgpack.Decoder(_Written)
_log = structlog.get_logger("gateway.explain.worker")


class PeerFigures:
    """Writes this gateway's totals, and reads those of the others.

    Args:
        records: The shared records, which count and log their failures.
        own: Returns this gateway's encoded totals.
        peers: Returns the number of other gateways.
        writes: Whether this gateway writes. Of several gateways with one journal, one does.
        wall: Unix seconds.
        write_seconds: Interval of writes.
    """

    def __init__(
        self,
        records: SharedRecords,
        own: Callable[[], Awaitable[bytes]],
        peers: Callable[[], int],
        *,
        writes: bool = True,
        wall: Callable[[], float] = time.time,
        write_seconds: float = _WRITE_SECONDS,
    ) -> None:
        self._records = records
        self._own = own
        self._peers = peers
        self._writes = writes
        self._wall = wall
        self._write_seconds = write_seconds
        self._name = os.urandom(_NAME_BYTES).hex()
        self._written = False
        self._ending = False
        self._rounds = 0
        self._tasks = TaskGroupOwner()

    def start(self) -> None:
        """Start writing in the background."""
        if self._writes:
            self._tasks.spawn(self._write_on(), name="explain-figures")

    async def stop(self) -> None:
        """Delete the own record, within a timeout, and stop."""
        self._ending = True
        await self._tasks.cancel()
        if self._written:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_READ_SECONDS):
                    await self._records.write({self._name: None})

    async def read(self) -> tuple[bytes, ...] | None:
        """The current records of all gateways, possibly including this one; None if they are unavailable."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                found = await self._records.read()
        except Exception as error:  # noqa: BLE001 - after any failure the own totals are shown
            _log.debug("figures_not_read", error=type(error).__name__)
            return None
        return tuple(written for written in map(self._current, found.values()) if written is not None)

    async def write(self) -> None:
        """Write this gateway's totals.

        Raises:
            Exception: The write failed.
        """
        figures = await self._own()
        self._written = True
        changes: dict[str, bytes | None] = {self._name: msgspec.msgpack.encode((self._wall(), figures))}
        self._rounds += 1
        if self._rounds % _CLEAN_ROUNDS == 0:
            changes |= dict.fromkeys(self._expired(await self._records.read()))
        await self._records.write(changes)

    async def _write_on(self) -> None:
        while not self._ending:  # redis-py swallows a cancellation now and then
            await asyncio.sleep(self._write_seconds)
            if not self._peers():
                continue
            try:
                await self.write()
            except Exception as error:  # noqa: BLE001 - Redis is away, mostly; it is counted where it happens
                _log.debug("figures_not_written", error=type(error).__name__)

    def _current(self, value: bytes) -> bytes | None:
        try:
            at, figures = _decoder.decode(value)
        except msgspec.MsgspecError:
            return None
        return figures if abs(self._wall() - at) < WRITTEN_SECONDS else None

    def _expired(self, found: Mapping[str, bytes]) -> list[str]:
        return [name for name, value in found.items() if name != self._name and self._current(value) is None]


_MAX_BYTES = 512 * 1024
"""Maximum bytes waiting to be sent; beyond it the oldest messages are dropped."""


class SeenMessages(msgspec.Struct, array_like=True, frozen=True):
    """What the explain workers send each other.

    Attributes:
        encoded: Each is a ``SeenMessage``, encoded.
    """

    encoded: tuple[bytes, ...]


class ReplicatedSeen:
    """A replicated component. Prompts in lost messages count as never seen at the other gateways.

    A full update repeats the last messages, which may not have been delivered. Receiving them twice has no effect.

    Args:
        receive: Takes the messages of another gateway.
    """

    def __init__(self, receive: Callable[[tuple[bytes, ...]], None]) -> None:
        self._receive = receive
        self._waiting: deque[bytes] = deque()
        self._sent: list[bytes] = []
        self._bytes = 0

    def add(self, message: bytes) -> None:
        """Add a message of this gateway's worker."""
        self._waiting.append(message)
        self._bytes += len(message)
        self._trim()

    def changes(self, now: float, *, everything: bool) -> SeenMessages | None:  # noqa: ARG002 - it takes no time
        """See ``Replicated``."""
        if everything:
            self._waiting.extendleft(reversed(self._sent))
            self._bytes += sum(map(len, self._sent))
            self._trim()
        self._sent = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return SeenMessages(tuple(self._sent)) if self._sent else None

    def receive(self, peer: str, message: SeenMessages, now: float) -> None:  # noqa: ARG002 - any sender is equal
        """See ``Replicated``."""
        self._receive(message.encoded)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. Messages are independent of each other."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. Its prompts stay recorded."""

    def _trim(self) -> None:
        while self._bytes > _MAX_BYTES:
            self._bytes -= len(self._waiting.popleft())
