"""The identity of a cached block, and the events of cached blocks."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_HASH_BYTES = 32


@dataclass(slots=True, eq=False, frozen=True)
class Prefix:
    """A prefix that ends with a full block.

    Attributes:
        hash: 32 bytes over everything that identifies it.
        parent: The prefix one block shorter; None at the beginning of a prompt.
        tokens: Token ids of its last block, little-endian u32.
        salt: Cache salt of the request, empty for none.
        adapter: LoRA adapter of the request, empty for none.
    """

    hash: bytes
    parent: "Prefix | None"
    tokens: bytes
    salt: str
    adapter: str

    @classmethod
    def of(cls, parent: "Prefix | None", tokens: bytes, salt: str, adapter: str) -> "Prefix":
        """The prefix of ``parent`` and one more block, ``tokens``."""
        before = parent.hash if parent is not None else _root(salt, adapter)
        return cls(hashlib.blake2b(before + tokens, digest_size=_HASH_BYTES).digest(), parent, tokens, salt, adapter)

    def blocks(self) -> Iterator["Prefix"]:
        """This prefix and all shorter ones, the longest first."""
        prefix: Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.parent

    def path(self) -> bytes:
        """All its tokens from the beginning of the prompt, little-endian u32."""
        return b"".join(reversed([prefix.tokens for prefix in self.blocks()]))


def _root(salt: str, adapter: str) -> bytes:
    # The length separates salt and adapter, which may contain any character.
    return hashlib.blake2b(f"{len(salt)}/{salt}{adapter}".encode(), digest_size=_HASH_BYTES).digest()


class Stored(NamedTuple):
    """A run of blocks, each the parent of the next, becomes reusable."""

    run: tuple[Prefix, ...]


class Removed(NamedTuple):
    """One copy of a block is evicted."""

    prefix: Prefix


class Cleared(NamedTuple):
    """The cache is reset."""


CacheEvent = Stored | Removed | Cleared
