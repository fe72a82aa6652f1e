"""Memos of results by text, which can be dropped together.

A process that may keep texts only for a time drops them with ``forget_texts``. All memos of a process count: a text can
be in any of them.
"""

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_memos: weakref.WeakSet[Any] = weakref.WeakSet()


def text_memo(entries: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: remember the results of the last ``entries`` calls until ``forget_texts``. Arguments are hashable."""

    def remembering(function: Callable[P, R]) -> Callable[P, R]:
        memo = lru_cache(maxsize=entries)(function)
        _memos.add(memo)
        return cast("Callable[P, R]", memo)  # its type does not know the arguments

    return remembering


def forget_texts() -> None:
    """Drop what the memos of this process hold; it is worked out again when needed."""
    for memo in list(_memos):
        memo.cache_clear()
