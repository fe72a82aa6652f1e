"""Finds kept requests by the token ids that a prompt shares with them: its beginning, or any run of eight tokens.

One table of a fixed size holds hashes: of every beginning of a kept prompt in steps of 16 tokens, and of its runs of
eight tokens (passages). A hash takes the place of an older one with the same high bits, so that the table needs no
object per hash, nothing has to be removed, and the latest request with a beginning or a passage is the one that is
found. What is found is compared token by token before it is used.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from gateway.core.prompt import TOKEN_BYTES

STEP_TOKENS = 16
"""Beginnings are found up to a multiple of this."""

PASSAGE_TOKENS = 8
"""The shortest run of tokens that counts as common. Shorter runs occur in any two texts."""

_SAMPLED = np.uint64(7)
"""Of long new text one passage in eight is written, chosen by its hash: a longer common run has one of them."""

_DENSE_TOKENS = 512
"""Of shorter new text every passage is written."""

_ENTRY_BYTES = 12
_WORD_BITS = 64
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BEGINNING = np.uint64(0x5BD1E9955BD1E995)

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]


class TokenHashes:
    """The hashes of one sequence of token ids; what is not asked for is not computed.

    Args:
        ids: Token ids, little-endian u32.
        owner: Separates those whose requests are never compared: tenants, models.
    """

    def __init__(self, ids: bytes, owner: int) -> None:
        self._own = ids
        self._ids = np.frombuffer(ids, np.uint32, len(ids) // TOKEN_BYTES).astype(np.uint64)
        self._owner = np.uint64(owner & 0xFFFFFFFFFFFFFFFF)

    def followed_by(self, ids: bytes) -> "TokenHashes":
        """The hashes of this sequence and another behind it."""
        return TokenHashes(self._own + ids, int(self._owner))

    @cached_property
    def _sums(self) -> Hashes:
        # A polynomial of the ids, so that each beginning has its sum in one pass.
        return np.cumsum((self._ids + np.uint64(1)) * _powers(len(self._ids)), dtype=np.uint64)

    @cached_property
    def beginnings(self) -> Hashes:
        """The hash of the first 16 tokens, of the first 32, and so on."""
        return (self._sums[STEP_TOKENS - 1 :: STEP_TOKENS] ^ self._owner ^ _BEGINNING) * _FACTOR

    def whole(self, tokens: int) -> int:
        """A hash of the first ``tokens`` ids, which are at least one."""
        return int(self._sums[tokens - 1] ^ self._owner)

    @cached_property
    def passages(self) -> Hashes:
        """The hash of each run of ``PASSAGE_TOKENS``, by its first token."""
        hashes = self._ids * _FACTOR
        length = 1
        while length < PASSAGE_TOKENS:
            # The hash of a run is made of those of its halves.
            hashes = hashes[:-length] * _FACTOR + hashes[length:]
            length *= 2
        return (hashes ^ self._owner) * _FACTOR


class TokenIndex:
    """The latest request, by number, with each beginning and each passage.

    Args:
        max_bytes: Maximum memory.
    """

    def __init__(self, max_bytes: int) -> None:
        bits = max((max_bytes // _ENTRY_BYTES).bit_length() - 1, 1)
        self._shift = np.uint64(_WORD_BITS - bits)
        self._hashes = np.zeros(1 << bits, np.uint64)
        self._numbers = np.full(1 << bits, -1, np.int32)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._hashes.nbytes + self._numbers.nbytes

    def add(self, hashes: TokenHashes, number: int, known: int) -> None:
        """Write the hashes of a request, of which another one has the first ``known`` tokens."""
        self._put(hashes.beginnings, number)
        passages = hashes.passages
        is_sampled = passages >> np.uint64(8) & _SAMPLED == 0
        if len(passages) - known <= _DENSE_TOKENS:
            is_sampled[max(known - PASSAGE_TOKENS, 0) :] = True
        self._put(passages[is_sampled], number)

    def find(self, hashes: Hashes) -> Numbers:
        """The number of the latest request with each of some hashes; -1 for none. It may be kept no more."""
        at = hashes >> self._shift
        return np.where(self._hashes[at] == hashes, self._numbers[at], np.int32(-1))

    def _put(self, hashes: Hashes, number: int) -> None:
        at = hashes >> self._shift
        self._hashes[at] = hashes
        self._numbers[at] = number


_power_table: Hashes = np.ones(1, np.uint64)


def _powers(count: int) -> Hashes:
    """The first ``count`` powers of the factor, modulo 2 ** 64."""
    global _power_table  # noqa: PLW0603 - grows to the longest prompt, and never differs
    if len(_power_table) < count:
        powers = np.full(2 * count, _FACTOR, np.uint64)
        powers[0] = 1
        _power_table = np.cumprod(powers, dtype=np.uint64)
    return _power_table[:count]
