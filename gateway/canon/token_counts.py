"""Cache of token counts, so that a long conversation is not tokenized again in every turn."""

import threading
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

from gateway.core.bounded_cache import BoundedCache

_SHORT = 64
"""Texts with fewer characters are not cached: tokenizing them is as fast as the lookup."""

_DIGEST_BYTES = 16


class TokenCounts:
    """Counts the tokens of texts. Thread-safe; keeps hashes of texts, not the texts.

    Args:
        count: Counts the tokens of a text; safe to use from several threads.
        max_texts: Capacity in texts; each takes about 250 bytes.
    """

    def __init__(self, count: Callable[[str], int], max_texts: int = 32_768) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._known: BoundedCache[bytes, int] = BoundedCache(max_texts)

    @property
    def remembered(self) -> int:
        """Number of cached texts."""
        return len(self._known)

    def counter(self, tenant: str) -> Callable[[str], int]:
        """A counter with a cache of this tenant only: response times must not reveal to others which texts it sent."""
        return partial(self, tenant=tenant)

    def __call__(self, text: str, tenant: str = "") -> int:
        """Number of tokens of a text."""
        if len(text) < _SHORT:
            return self._count(text)
        named = f"{tenant}\0{text}".encode("utf-8", "surrogatepass")
        key = blake2b(named, digest_size=_DIGEST_BYTES).digest()
        with self._lock:
            tokens = self._known.get(key)
        if tokens is None:
            # Outside the lock, so that other threads do not wait for a long text.
            tokens = self._count(text)
            with self._lock:
                self._known.put(key, tokens)
        return tokens
