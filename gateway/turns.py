"""Runs long computations on the event loop in portions, fairly between tenants."""

import asyncio
from collections import OrderedDict, deque
from typing import TypeVar

from gateway.core.portions import Portioned

T = TypeVar("T")


class Turns:
    """Runs one portion per iteration of the event loop, of all computations together.

    Round robin over the tenants, and within a tenant over its computations. So ten large requests delay a small one by
    one portion per iteration, as one does, and the number of one tenant's requests does not delay those of another.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_scheduled = False

    async def run(self, work: Portioned[T], tenant: str = "") -> T:
        """Run a computation and return its result. The first portion runs at once: a short one does not wait.

        Args:
            work: The computation; yields between portions.
            tenant: Id of the tenant that it is for.
        """
        try:
            next(work)
            while True:
                await self._turn(tenant)
                next(work)
        except StopIteration as done:
            result: T = done.value
            return result

    def _turn(self, tenant: str) -> "asyncio.Future[None]":
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._schedule(turn.get_loop())
        return turn

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled and self._waiting:
            self._is_scheduled = True
            loop.call_soon(self._give_next, loop)

    def _give_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():  # not cancelled
                turn.set_result(None)
                break
        self._schedule(loop)
