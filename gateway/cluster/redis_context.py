"""Context blocks of conversations in Redis, shared by several gateways.

Reads are batched: all keys requested while a read is in progress go into the next one. Writes wait in the background.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pydantic import SecretStr

from gateway.cluster.connect import BACKEND, PAUSE_SECONDS, Client, RedisConnections, RedisHealth, is_ending
from gateway.cluster.seal import Seal
from gateway.config.state_settings import read_address
from gateway.tasks import TaskGroupOwner

_ENTRY_BYTES = 200
"""Overhead of an entry in addition to its key and block."""


class PendingWrites:
    """Entries to be written, each key once; the oldest are dropped beyond the limit.

    Args:
        max_bytes: Memory limit.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def put(self, key: bytes, block: bytes | None) -> int:
        """Add an entry, replacing an earlier one of the same key.

        Args:
            key: Its key.
            block: The value; None to renew the TTL of the stored one.

        Returns:
            Number of dropped entries.
        """
        if block is None and key in self._entries:
            return 0
        self._take(key)
        self._entries[key] = block
        self._bytes += _size(key, block)
        dropped = 0
        while self._bytes > self._max_bytes:
            self._take(next(iter(self._entries)))
            dropped += 1
        return dropped

    def first(self, most: int) -> list[tuple[bytes, bytes | None]]:
        """The oldest entries. They stay until ``done``."""
        return [entry for entry, _ in zip(self._entries.items(), range(most), strict=False)]

    def done(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Remove written entries, except those replaced meanwhile."""
        for key, block in entries:
            if key in self._entries and self._entries[key] is block:
                self._take(key)

    def _take(self, key: bytes) -> None:
        if key in self._entries:
            self._bytes -= _size(key, self._entries.pop(key))


def _size(key: bytes, block: bytes | None) -> int:
    return len(key) + len(block or b"") + _ENTRY_BYTES


_MAX_AT_ONCE = 256


class BackgroundWrites:
    """Writes the waiting entries, and retries those that failed. ``run`` has to be running.

    Args:
        client: The connection.
        waiting: The entries to write.
        health: Records failures and successes.
        ttl_seconds: TTL of blocks in Redis.
    """

    def __init__(self, client: Client, waiting: PendingWrites, health: RedisHealth, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._client = client
        self._waiting = waiting
        self._health = health
        self._came = asyncio.Event()
        self._done = asyncio.Event()

    def wake(self) -> None:
        """Entries were added."""
        self._came.set()

    async def drained(self, key: bytes | None = None) -> None:
        """Wait until all entries, or that of a key, are written or a write failed."""
        while (self._waiting if key is None else key in self._waiting) and not self._health.failing:
            self._done.clear()
            await self._done.wait()

    async def run(self) -> None:
        """Write, until cancelled."""
        while not is_ending():
            if not self._waiting:
                self._done.set()
                self._came.clear()
                await self._came.wait()
            self._done.clear()
            are_written = await self._write(self._waiting.first(_MAX_AT_ONCE))
            self._done.set()
            if not are_written:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, entries: Sequence[tuple[bytes, bytes | None]]) -> bool:
        """Write entries; returns whether all were written."""
        milliseconds = round(self.ttl_seconds * 1000)
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for key, block in entries:
                    if block is None:
                        pipeline.pexpire(name_of(key), milliseconds)
                    else:
                        pipeline.set(name_of(key), block, px=milliseconds)
                results = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # noqa: BLE001 - requests continue, and the write is retried
            self._health.failed(error)
            return False
        refused = [result for result in results if isinstance(result, Exception)]
        self._waiting.done(
            [entry for entry, result in zip(entries, results, strict=True) if not isinstance(result, Exception)]
        )
        if refused:
            self._health.failed(refused[0])
            return False
        self._health.worked()
        return True


def name_of(key: bytes) -> str:
    """A block's key in Redis."""
    return f"pgw:ctx:{key.hex()}"


_MAX_KEYS = 512
"""Most keys of one read, unless a single request has more: a longer one would block Redis for other clients."""

Found = Mapping[str, bytes | None]
"""Values by name; None for missing ones."""


class _Ask(NamedTuple):
    names: Sequence[str]
    answer: "asyncio.Future[Found]"


class BatchedReads:
    """Batches reads, one at a time. ``run`` has to be running.

    A request that times out does not cancel the read: Redis or the connection is slow then, and a new connection would
    delay the next request, too.

    Args:
        connections: Connections to Redis.
    """

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections
        self._asked: deque[_Ask] = deque()
        self._came = asyncio.Event()

    def ask(self, names: Sequence[str]) -> "asyncio.Future[Found]":
        """Request values. Cancel the future to stop waiting."""
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._asked.append(_Ask(names, answer))
        self._came.set()
        return answer

    async def run(self) -> None:
        """Process reads until cancelled."""
        while not is_ending():
            if not self._asked:
                self._came.clear()
                await self._came.wait()
            await self._answer(self._next())

    def _next(self) -> list[_Ask]:
        asks: list[_Ask] = []
        keys = 0
        while self._asked and (not asks or keys + len(self._asked[0].names) <= _MAX_KEYS):
            ask = self._asked.popleft()
            if not ask.answer.done():
                asks.append(ask)
                keys += len(ask.names)
        return asks

    async def _answer(self, asks: Sequence[_Ask]) -> None:
        names = list(dict.fromkeys(name for ask in asks for name in ask.names))
        if not names:
            return
        try:
            values = await self._connections.values(names)
            found = dict(zip(names, values, strict=True))
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_exception(error)
            return
        for ask in asks:
            if not ask.answer.done():
                ask.answer.set_result(found)


_DEADLINE_SECONDS = 0.02
_STOP_SECONDS = 0.5
_WAITING_BYTES = 16 * 1024 * 1024
"""About 50,000 blocks: minutes of a busy gateway without Redis."""


class RedisContextStore:
    """A ``ContextStore``. Requests wait for it no longer than the deadline, and not at all while it fails.

    Args:
        url: Address of Redis, validated by the settings.
        secret: Shared secret of all gateways; blocks are encrypted with it.
        ttl_seconds: How long a block is kept after its last write or read.
        on_error: Called with the backend's name on every failure: a read that failed or timed out, a write that is
            retried, a dropped block, an invalid value.
        deadline_seconds: How long a request waits.
        waiting_bytes: Memory limit of blocks that wait to be written.
        clock: Monotonic seconds.
        purpose: See ``Seal``.

    Attributes:
        reading: Whether reads fail.
        writing: Whether writes fail.
    """

    def __init__(
        self,
        url: SecretStr,
        secret: SecretStr,
        *,
        ttl_seconds: float,
        on_error: Callable[[str], None],
        deadline_seconds: float = _DEADLINE_SECONDS,
        waiting_bytes: int = _WAITING_BYTES,
        clock: Callable[[], float] = time.monotonic,
        purpose: str = "context blocks",
    ) -> None:
        # One connection to read, one to write, one for the first ping.
        self._connections = RedisConnections(read_address(url.get_secret_value()), most=3)
        self._seal = Seal(secret, purpose)
        self._on_error = on_error
        self._deadline_seconds = deadline_seconds
        self.reading = RedisHealth("read", on_error, clock)
        self.writing = RedisHealth("write", on_error, clock)
        self._waiting = PendingWrites(waiting_bytes)
        self._reads = BatchedReads(self._connections)
        self._writes = BackgroundWrites(self._connections.client, self._waiting, self.writing, ttl_seconds)
        self._tasks = TaskGroupOwner()

    def configure(self, ttl_seconds: float) -> None:
        """Apply another TTL."""
        self._writes.ttl_seconds = ttl_seconds

    def start(self) -> None:
        """Start. Does not wait for Redis."""
        self._tasks.spawn(self._reads.run(), name="state-reads")
        self._tasks.spawn(self._writes.run(), name="state-writes")
        self._tasks.spawn(self._greet(), name="state-greeting")

    async def stop(self) -> None:
        """Write pending blocks, for at most ``_STOP_SECONDS``, and stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._writes.drained()
        await self._tasks.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._connections.close()

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        """The stored blocks of ``keys``; empty if Redis does not answer in time. Never raises."""
        if not keys or not self.reading.may_try():
            return {}
        names = {key: self._seal.name(key) for key in keys}
        answer = self._reads.ask([name_of(name) for name in names.values()])
        try:
            found = await self._in_time(answer)
        except Exception as error:  # noqa: BLE001 - the request continues without context blocks
            self.reading.failed(error)
            return {}
        finally:
            _forget(answer)
        self.reading.worked()
        blocks = {}
        for key, name in names.items():
            block = self._text(name, found[name_of(name)])
            if block is not None:
                blocks[key] = block
                self._put(name, None)
        return blocks

    def keep(self, blocks: Mapping[bytes, str]) -> None:
        """Store blocks in the background. Returns at once, and never raises."""
        for key, block in blocks.items():
            name = self._seal.name(key)
            try:
                self._put(name, self._seal.closed(name, block))
            except UnicodeEncodeError:
                self._on_error(BACKEND)

    async def written(self, key: bytes) -> None:
        """Wait until a block is written, or a write failed."""
        await self._writes.drained(self._seal.name(key))

    async def _greet(self) -> None:
        """Connect before the first request, and log if Redis cannot be reached."""
        try:
            await self._connections.client.ping()
        except Exception as error:  # noqa: BLE001 - requests continue without Redis
            self.reading.failed(error)

    async def _in_time(self, answer: "asyncio.Future[Found]") -> Found:
        """The answer.

        Raises:
            TimeoutError: there was none within the deadline.
        """
        began = time.monotonic()
        await asyncio.wait([answer], timeout=self._deadline_seconds)
        if not answer.done() and time.monotonic() - began > 2 * self._deadline_seconds:
            # Woken much too late: the gateway was busy, and the answer may be unread.
            await asyncio.wait([answer], timeout=self._deadline_seconds)
        if not answer.done():
            raise TimeoutError
        return answer.result()

    def _put(self, name: bytes, block: bytes | None) -> None:
        for _ in range(self._waiting.put(name, block)):
            self._on_error(BACKEND)
        self._writes.wake()

    def _text(self, name: bytes, value: bytes | None) -> str | None:
        """A decrypted block; None if there is none or it is invalid."""
        if value is None:
            return None
        text = self._seal.opened(name, value)
        if text is None:
            self._on_error(BACKEND)
        return text


def _forget(answer: "asyncio.Future[Found]") -> None:
    """Cancel a read and ignore its error."""
    if answer.done() and not answer.cancelled():
        answer.exception()
    answer.cancel()
