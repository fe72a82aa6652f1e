"""What was found in texts seen before. A system prompt comes with every request, and is searched once."""

import sys
from collections import OrderedDict

from gateway.canon.pii.patterns import Hit

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
