"""LRU cache of context blocks, by the key of the conversation up to the message to which a block was appended."""

import sys
import threading

from gateway.core.bounded_cache import BoundedCache

_ENTRY_BYTES = 250
"""Overhead of an entry, without its key and its block."""


class ContextMemory:
    """LRU cache with a time to live. Times are Unix seconds. Thread-safe: long prompts are processed in threads.

    Args:
        max_bytes: Memory limit of all blocks together.
        ttl_seconds: Time to live of a block after its last use.
    """

    def __init__(self, max_bytes: int, ttl_seconds: float) -> None:
        self._blocks: BoundedCache[bytes, str] = BoundedCache(max_weight=max_bytes, ttl=ttl_seconds)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    def configure(self, max_bytes: int, ttl_seconds: float) -> None:
        """Replace the limits; blocks beyond a lower one are evicted with the next ``put``."""
        self._blocks.max_weight = max_bytes
        self._blocks.ttl = ttl_seconds

    @property
    def nbytes(self) -> int:
        """Memory used by the blocks."""
        return self._blocks.weight

    def get(self, key: bytes, now: float) -> str | None:
        """A block; None if it is unknown, expired or evicted."""
        with self._lock:
            return self._blocks.get(key, now)

    def put(self, key: bytes, block: str, now: float) -> None:
        """Store a block, replacing one with the same key."""
        with self._lock:
            self._blocks.put(key, block, now, weight=len(key) + sys.getsizeof(block) + _ENTRY_BYTES)

    def clear(self) -> None:
        """Remove all blocks."""
        with self._lock:
            self._blocks.clear()
