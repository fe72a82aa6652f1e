"""Searches texts: at once what is short or known, in a thread what is long."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from gateway.canon.memo import Memo
from gateway.canon.patterns import Hit, Patterns

_INLINE_CHARACTERS = 16 * 1024
_MEMO_BYTES = 16 * 1024 * 1024


class Scanner:
    """Personal data in texts.

    Args:
        patterns: What is looked for.
        executor: Threads for long texts.
    """

    def __init__(self, patterns: Patterns, executor: Executor) -> None:
        self._patterns = patterns
        self._executor = executor
        self._memo = Memo(_MEMO_BYTES)

    async def find(self, texts: Sequence[str]) -> list[tuple[Hit, ...]]:
        """What is in each text. Returns without waiting if all are known, or few characters are not."""
        known = [self._memo.get(text) for text in texts]
        unknown = [text for text, hits in zip(texts, known, strict=True) if hits is None]
        if sum(map(len, unknown)) <= _INLINE_CHARACTERS:
            found = self._search(unknown)
        else:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, self._search, unknown)
        for text, hits in zip(unknown, found, strict=True):
            self._memo.put(text, hits)
        rest = iter(found)
        return [next(rest) if hits is None else hits for hits in known]

    def _search(self, texts: Sequence[str]) -> list[tuple[Hit, ...]]:
        return [self._patterns.find(text) for text in texts]
