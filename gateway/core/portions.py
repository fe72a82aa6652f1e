"""Long work on the event loop, in portions: generators that yield often; ``turns`` runs them.

A thread does not help where one call holds the interpreter lock for long, and a long loop in a thread still takes half
of the event loop's time. Work that yields after a few milliseconds delays others by no more than that.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Portioned = Generator[None, None, T]
"""Work that yields after each portion of some milliseconds and returns its result. Short work does not yield at all."""


def finished(work: Portioned[T]) -> T:
    """The result of some work, done without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
