"""Searches texts: at once what is short or known, in a thread what is long.

What was found in texts seen before. A system prompt comes with every request, and is searched once.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence

from gateway.canon.pii.patterns import Hit, Patterns
from gateway.core.ports import LongTexts
from gateway.core.tenant import Tenant

_LARGEST_SHARE = 4


class FoundCache:
    """Least recently used texts are forgotten. Texts are kept in memory only.

    Args:
        max_bytes: What all texts together may take; one that takes more than a quarter of it is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._hits: OrderedDict[tuple[str, str], tuple[Hit, ...]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the texts kept take, with what was found in them."""
        return self._bytes

    def get(self, owner: str, text: str) -> tuple[Hit, ...] | None:
        """What was found in a text of this owner's; None if it is not known."""
        hits = self._hits.get((owner, text))
        if hits is not None:
            self._hits.move_to_end((owner, text))
        return hits

    def put(self, owner: str, text: str, hits: tuple[Hit, ...]) -> None:
        """Remember what was found in a text of this owner's."""
        size = _size(text, hits)
        if size > self._max_bytes // _LARGEST_SHARE or (owner, text) in self._hits:
            return
        self._hits[owner, text] = hits
        self._bytes += size
        while self._bytes > self._max_bytes:
            (_, forgotten), found = self._hits.popitem(last=False)
            self._bytes -= _size(forgotten, found)


def _size(text: str, hits: tuple[Hit, ...]) -> int:
    # Half a kilobyte for the entry itself, so that a million short texts are bounded, too.
    return sys.getsizeof(text) + 512 + 200 * len(hits)


_INLINE_COST = 32 * 1024
"""What is searched on the event loop: 32 Ki characters of prose take 0.2 ms."""
_DIGIT_COST = 16
"""A digit costs as much as so many letters, and more in the worst texts: numbers are what most kinds are made of."""
_MEMO_BYTES = 16 * 1024 * 1024


class Scanner:
    """Personal data in texts.

    Args:
        patterns: What is looked for.
        threads: Threads for long texts.
    """

    def __init__(self, patterns: Patterns, threads: LongTexts) -> None:
        self._patterns = patterns
        self._threads = threads
        self._memo = FoundCache(_MEMO_BYTES)

    async def find(self, texts: Sequence[str], owner: Tenant) -> list[tuple[Hit, ...]]:
        """What is in each text. Returns without waiting if all are known, or searching the others is short work.

        Args:
            texts: The texts.
            owner: Whose they are. What was found in one's text is not remembered for others, who could tell by the time
                it takes that somebody else sent it.

        Raises:
            Overloaded: they are long, and too many of the tenant's long texts wait for a thread.
        """
        name = str(owner.id)
        known = [self._memo.get(name, text) for text in texts]
        unknown = [text for text, hits in zip(texts, known, strict=True) if hits is None]
        if _cost(unknown) <= _INLINE_COST:
            found = self._search(unknown)
        else:
            found = await self._threads.run(owner, sum(map(len, unknown)), self._search, unknown)
        for text, hits in zip(unknown, found, strict=True):
            self._memo.put(name, text, hits)
        rest = iter(found)
        return [next(rest) if hits is None else hits for hits in known]

    def _search(self, texts: Sequence[str]) -> list[tuple[Hit, ...]]:
        return [self._patterns.find(text) for text in texts]


def _cost(texts: Sequence[str]) -> int:
    characters = sum(map(len, texts))
    if characters > _INLINE_COST:
        return characters
    return characters + _DIGIT_COST * sum(text.count(digit) for text in texts for digit in "0123456789")
