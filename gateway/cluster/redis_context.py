"""Context blocks of conversations in Redis, for several gateways.

Reads from Redis: all that is asked for while one answer is under way goes into one question.
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
from gateway.cluster.waiting import PendingWrites
from gateway.cluster.writes import BackgroundWrites, name_of
from gateway.config.state_settings import read_address
from gateway.tasks import TaskGroupOwner

_MOST_KEYS = 512
"""Of one question, unless a single request has more: a longer one would keep Redis from answering others."""

Found = Mapping[str, bytes | None]
"""Values by name; None where there is none."""


class _Ask(NamedTuple):
    names: Sequence[str]
    answer: "asyncio.Future[Found]"


class BatchedReads:
    """Asks for whoever waits, one question at a time. ``run`` has to be running.

    A request that waits no longer does not cut the question short: what is late is Redis or the connection to it, and
    tearing that down would make the next request late, too.

    Args:
        connections: To Redis.
    """

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections
        self._asked: deque[_Ask] = deque()
        self._came = asyncio.Event()

    def ask(self, names: Sequence[str]) -> "asyncio.Future[Found]":
        """Ask for some values. Cancel what is returned to wait no longer."""
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._asked.append(_Ask(names, answer))
        self._came.set()
        return answer

    async def run(self) -> None:
        """Answer, until cancelled."""
        while not is_ending():
            if not self._asked:
                self._came.clear()
                await self._came.wait()
            await self._answer(self._next())

    def _next(self) -> list[_Ask]:
        asks: list[_Ask] = []
        keys = 0
        while self._asked and (not asks or keys + len(self._asked[0].names) <= _MOST_KEYS):
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
        except Exception as error:  # noqa: BLE001 - whoever asked is told
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
"""Some 50 000 blocks: minutes of a busy gateway without Redis."""


class RedisContextStore:
    """A ``ContextStore``. Requests wait for it no longer than the deadline, and not at all while it fails.

    Args:
        url: Where Redis is, as ``State`` has checked it.
        secret: What all gateways have in common; nobody else can read what is written.
        ttl_seconds: How long a block is kept after it was written or read last.
        on_error: Called with the backend's name at every failure: a request that went on without, a write that has to
            be tried again, a block that was dropped, a value that is no block.
        deadline_seconds: How long a request waits.
        waiting_bytes: What blocks that could not be written yet may take.
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
        # A connection to read, one to write, one to greet.
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
        """Go by another setting from now on."""
        self._writes.ttl_seconds = ttl_seconds

    def start(self) -> None:
        """Begin. Does not wait for Redis."""
        self._tasks.spawn(self._reads.run(), name="state-reads")
        self._tasks.spawn(self._writes.run(), name="state-writes")
        self._tasks.spawn(self._greet(), name="state-greeting")

    async def stop(self) -> None:
        """Write what waits, if that is quick, and end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._writes.drained()
        await self._tasks.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._connections.close()

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        """Those that are there; empty also if Redis cannot be reached in time. Never raises."""
        if not keys or not self._reading.may_try():
            return {}
        names = {key: self._seal.name(key) for key in keys}
        answer = self._reads.ask([name_of(name) for name in names.values()])
        try:
            found = await self._in_time(answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on without
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
        """Write some, later. Returns at once, and never raises."""
        for key, block in blocks.items():
            name = self._seal.name(key)
            try:
                self._put(name, self._seal.closed(name, block))
            except UnicodeEncodeError:
                self._on_error(BACKEND)

    async def _greet(self) -> None:
        """Connect before the first request has to wait for that, and have it logged if nobody is there."""
        try:
            await self._connections.client.ping()
        except Exception as error:  # noqa: BLE001 - requests go on without
            self._reading.failed(error)

    async def _in_time(self, answer: "asyncio.Future[Found]") -> Found:
        """The answer.

        Raises:
            TimeoutError: there is none yet.
        """
        began = time.monotonic()
        await asyncio.wait([answer], timeout=self._deadline_seconds)
        if not answer.done() and time.monotonic() - began > 2 * self._deadline_seconds:
            # Woken much too late: the gateway was busy, and the answer may lie there unread.
            await asyncio.wait([answer], timeout=self._deadline_seconds)
        if not answer.done():
            raise TimeoutError
        return answer.result()

    def _put(self, name: bytes, block: bytes | None) -> None:
        for _ in range(self._waiting.put(name, block)):
            self._on_error(BACKEND)
        self._writes.wake()

    def _text(self, name: bytes, value: bytes | None) -> str | None:
        """A block as it was kept; None if there is none, or somebody else wrote something there."""
        if value is None:
            return None
        text = self._seal.opened(name, value)
        if text is None:
            self._on_error(BACKEND)
        return text


def _forget(answer: "asyncio.Future[Found]") -> None:
    """Nobody waits any more, nor wants to hear of an error."""
    if answer.done() and not answer.cancelled():
        answer.exception()
    answer.cancel()
