"""Cache of token counts, so that a long conversation is not tokenized again in every turn."""

import threading
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

_SHORT = 64
"""Texts with fewer characters are not cached: tokenizing them is as fast as the lookup."""

_DIGEST_BYTES = 16


class TokenCounts:
    """Counts the tokens of texts. Thread-safe; keeps hashes of texts, not the texts.

    Evicts a text that was not looked up while the last ``max_texts / 2`` new texts were added.

    Args:
        count: Counts the tokens of a text; safe to use from several threads.
        max_texts: Capacity in texts; each takes about 200 bytes.
    """

    def __init__(self, count: Callable[[str], int], max_texts: int = 32_768) -> None:
        self._count = count
        self._half = max(1, max_texts // 2)
        self._lock = threading.Lock()
        self._new: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    @property
    def remembered(self) -> int:
        """Number of cached texts."""
        return len(self._new) + len(self._old)

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
            tokens = self._new.get(key)
            if tokens is None and (tokens := self._old.pop(key, None)) is not None:
                self._put(key, tokens)
        if tokens is None:
            # Outside the lock, so that other threads do not wait for a long text.
            tokens = self._count(text)
            with self._lock:
                self._old.pop(key, None)
                self._put(key, tokens)
        return tokens

    def _put(self, key: bytes, tokens: int) -> None:
        if key not in self._new and len(self._new) >= self._half:
            self._old, self._new = self._new, {}
        self._new[key] = tokens
