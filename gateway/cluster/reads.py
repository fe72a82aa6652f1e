"""Reads from Redis: all that is asked for while one answer is under way goes into one question."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.cluster.connect import RedisConnections
from gateway.cluster.redis_health import is_ending

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
