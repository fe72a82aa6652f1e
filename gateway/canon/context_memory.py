"""Context blocks of conversations, by the key of the conversation up to the message they were put behind."""

import sys
import threading
from collections import OrderedDict
from typing import NamedTuple

_ENTRY_BYTES = 250
"""Of an entry beside its key and its block."""


class _KeptBlock(NamedTuple):
    block: str
    until: float


class ContextMemory:
    """Those not used for longest are forgotten first, and all some time after they were used last. Times are Unix
    seconds. Safe to use from several threads: long prompts are worked on in one of their own.

    Args:
        max_bytes: What all blocks together may take.
        ttl_seconds: How long a block is kept after it was used last.
    """

    def __init__(self, max_bytes: int, ttl_seconds: float) -> None:
        self.max_bytes = max_bytes
        self.ttl_seconds = ttl_seconds
        self._kept: OrderedDict[bytes, _KeptBlock] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """What the blocks take."""
        return self._bytes

    def get(self, key: bytes, now: float) -> str | None:
        """A block; None if there is none, or it was forgotten."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            if kept.until < now:
                self._drop(key)
                return None
            self._kept[key] = _KeptBlock(kept.block, now + self.ttl_seconds)
            self._kept.move_to_end(key)
            return kept.block

    def put(self, key: bytes, block: str, now: float) -> None:
        """Remember a block; another one that had the key before is forgotten."""
        with self._lock:
            if key in self._kept:
                self._drop(key)
            self._kept[key] = _KeptBlock(block, now + self.ttl_seconds)
            self._bytes += _size(key, block)
            while self._bytes > self.max_bytes:
                self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _drop(self, key: bytes) -> None:
        self._bytes -= _size(key, self._kept.pop(key).block)


def _size(key: bytes, block: str) -> int:
    return len(key) + sys.getsizeof(block) + _ENTRY_BYTES
