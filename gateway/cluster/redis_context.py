"""Context blocks of conversations in Redis, shared by several gateways.

Reads are batched: all keys requested while a read is in progress go into the next one.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pydantic import SecretStr

from gateway.cluster.connect import RedisConnections
from gateway.cluster.redis_health import BACKEND, RedisHealth, is_ending
from gateway.cluster.seal import Seal
from gateway.cluster.writes import BackgroundWrites, PendingWrites, name_of
from gateway.config.state_settings import read_address
from gateway.tasks import TaskGroupOwner

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
    ) -> None:
        # One connection to read, one to write, one for the first ping.
        self._connections = RedisConnections(read_address(url.get_secret_value()), most=3)
        self._seal = Seal(secret)
        self._on_error = on_error
        self._deadline_seconds = deadline_seconds
        self._reading = RedisHealth("read", on_error, clock)
        self._writing = RedisHealth("write", on_error, clock)
        self._waiting = PendingWrites(waiting_bytes)
        self._reads = BatchedReads(self._connections)
        self._writes = BackgroundWrites(self._connections.client, self._waiting, self._writing, ttl_seconds)
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
        if not keys or not self._reading.may_try():
            return {}
        names = {key: self._seal.name(key) for key in keys}
        answer = self._reads.ask([name_of(name) for name in names.values()])
        try:
            found = await self._in_time(answer)
        except Exception as error:  # noqa: BLE001 - the request continues without context blocks
            self._reading.failed(error)
            return {}
        finally:
            _forget(answer)
        self._reading.worked()
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

    async def _greet(self) -> None:
        """Connect before the first request, and log if Redis cannot be reached."""
        try:
            await self._connections.client.ping()
        except Exception as error:  # noqa: BLE001 - requests continue without Redis
            self._reading.failed(error)

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
