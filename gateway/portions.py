"""Long work on the event loop, in portions: generators that yield often, and two ways to run them.

A thread does not help where one call holds the interpreter lock for long, and a long loop in a thread still takes half
of the event loop's time. Work that yields after a few milliseconds delays others by no more than that.
"""

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Portioned = Generator[None, None, T]
"""Work that yields after each portion of some milliseconds and returns its result. Short work does not yield at all."""


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


def finished(work: Portioned[T]) -> T:
    """The result of some work, done without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
