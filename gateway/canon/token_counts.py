"""How many tokens texts have, remembered, so that a long conversation is not encoded anew in every turn."""

import threading
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

_SHORT = 64
"""Texts below so many characters are counted as fast as they are looked up, and would fill the memory."""

_DIGEST_BYTES = 16


class TokenCounts:
    """Counts the tokens of texts. Safe to use from several threads; no text is kept, only its hash.

    What was not asked for during the last half of ``most`` new texts is forgotten, what was asked for again is not.

    Args:
        count: Counts the tokens of a text; safe to use from several threads.
        most: Texts that are remembered; each takes about 200 bytes.
    """

    def __init__(self, count: Callable[[str], int], most: int = 32_768) -> None:
        self._count = count
        self._half = max(1, most // 2)
        self._lock = threading.Lock()
        self._new: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    @property
    def remembered(self) -> int:
        """How many texts are remembered."""
        return len(self._new) + len(self._old)

    def counter(self, tenant: str) -> Callable[[str], int]:
        """Counts for a tenant, and remembers for it alone: the time that saves would tell others what it sent."""
        return partial(self, tenant=tenant)

    def __call__(self, text: str, tenant: str = "") -> int:
        """How many tokens a text has."""
        if len(text) < _SHORT:
            return self._count(text)
        named = f"{tenant}\0{text}".encode("utf-8", "surrogatepass")
        key = blake2b(named, digest_size=_DIGEST_BYTES).digest()
        with self._lock:
            tokens = self._new.get(key)
            if tokens is None and (tokens := self._old.pop(key, None)) is not None:
                self._put(key, tokens)
        if tokens is None:
            # Outside the lock: other threads' texts need not wait for a long one.
            tokens = self._count(text)
            with self._lock:
                self._old.pop(key, None)
                self._put(key, tokens)
        return tokens

    def _put(self, key: bytes, tokens: int) -> None:
        if key not in self._new and len(self._new) >= self._half:
            self._old, self._new = self._new, {}
        self._new[key] = tokens
