"""LRU cache of context blocks, by the key of the conversation up to the message to which a block was appended."""

import sys
import threading
from collections import OrderedDict
from typing import NamedTuple

_ENTRY_BYTES = 250
"""Overhead of an entry, without its key and its block."""


class _KeptBlock(NamedTuple):
    block: str
    until: float


class ContextMemory:
    """LRU cache with a time to live. Times are Unix seconds. Thread-safe: long prompts are processed in threads.

    Args:
        max_bytes: Memory limit of all blocks together.
        ttl_seconds: Time to live of a block after its last use.
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
        """Memory used by the blocks."""
        return self._bytes

    def get(self, key: bytes, now: float) -> str | None:
        """A block; None if it is unknown, expired or evicted."""
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
        """Store a block, replacing one with the same key."""
        with self._lock:
            if key in self._kept:
                self._drop(key)
            self._kept[key] = _KeptBlock(block, now + self.ttl_seconds)
            self._bytes += _size(key, block)
            while self._bytes > self.max_bytes:
                self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Remove all blocks."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _drop(self, key: bytes) -> None:
        self._bytes -= _size(key, self._kept.pop(key).block)


def _size(key: bytes, block: str) -> int:
    return len(key) + sys.getsizeof(block) + _ENTRY_BYTES
