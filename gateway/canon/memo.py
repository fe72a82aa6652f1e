"""What was found in texts seen before. A system prompt comes with every request, and is searched once."""

import sys
from collections import OrderedDict

from gateway.canon.patterns import Hit

_LARGEST_SHARE = 4


class Memo:
    """Least recently used texts are forgotten. Texts are kept in memory only.

    Args:
        max_bytes: What all texts together may take; one that takes more than a quarter of it is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._hits: OrderedDict[str, tuple[Hit, ...]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the texts kept take, with what was found in them."""
        return self._bytes

    def get(self, text: str) -> tuple[Hit, ...] | None:
        """What was found in a text; None if it is not known."""
        hits = self._hits.get(text)
        if hits is not None:
            self._hits.move_to_end(text)
        return hits

    def put(self, text: str, hits: tuple[Hit, ...]) -> None:
        """Remember what was found in a text."""
        size = _size(text, hits)
        if size > self._max_bytes // _LARGEST_SHARE or text in self._hits:
            return
        self._hits[text] = hits
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= _size(*self._hits.popitem(last=False))


def _size(text: str, hits: tuple[Hit, ...]) -> int:
    # Half a kilobyte for the entry itself, so that a million short texts are bounded, too.
    return sys.getsizeof(text) + 512 + 200 * len(hits)
