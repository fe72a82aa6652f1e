"""Runs long work on the event loop, a portion per turn."""

import asyncio
from typing import TypeVar

from gateway.portions import Portioned

T = TypeVar("T")


class Turns:
    """Runs work on the event loop: of all of it together one portion per turn of the loop, in the order of arrival.

    So ten large requests delay a small one by one portion per turn, as one does, and none of them waits for the end of
    another one.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, work: Portioned[T]) -> T:
        """The result of some work. The first portion is done at once: what is short waits for nothing."""
        try:
            next(work)
            while True:
                async with self._turn:
                    await asyncio.sleep(0)
                    next(work)
        except StopIteration as done:
            result: T = done.value
            return result
