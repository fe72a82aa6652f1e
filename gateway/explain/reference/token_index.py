"""Finds kept requests by the token ids that a prompt shares with them: its beginning, or any run of eight tokens.

One table of a fixed size holds hashes: of beginnings of kept prompts in steps of a block, and of their runs of eight
tokens (passages). A hash takes the place of an older one with the same high bits, so that the table needs no object per
hash, nothing has to be removed, and the latest request that wrote a beginning or a passage is the one that is found.
What is found is compared token by token before it is used.
"""

from array import array

import numpy as np
import numpy.typing as npt

from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.reference.overlap import RUN_TOKENS

DENSE_TOKENS = 512
"""Of new text up to this length every passage is written."""

SAMPLED = 4
"""Of longer text one passage in so many is, chosen by its hash: any longer common run has one of them."""

_ENTRY_BYTES = 8
_HALF, _LOW = np.uint64(32), np.uint64((1 << 32) - 1)
_WORD_BITS = 64
_WORD = (1 << _WORD_BITS) - 1
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << _WORD_BITS)
_FACTOR = np.uint64(0xD6E8FEB86659FD93)

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


def beginnings(chain: "array[int]", owner: int, step: int = 1) -> Hashes:
    """The hash of each beginning of a whole number of steps.

    Args:
        chain: The prompt's block hashes, each of which stands for all in front of it.
        owner: As for ``passages``.
        step: Blocks per step.
    """
    hashes = np.frombuffer(chain, np.uint64)[step - 1 :: step]
    return (hashes ^ np.uint64(owner & _WORD)) * _FACTOR


def passages(ids: bytes, owner: int) -> Hashes:
    """The hash of each run of ``RUN_TOKENS``, by its first token: the same wherever the run stands.

    Args:
        ids: Token ids, little-endian u32.
        owner: Separates those whose requests are never compared: tenants, models.
    """
    numbers = np.frombuffer(ids, np.uint32, len(ids) // TOKEN_BYTES)
    count = max(len(numbers) - RUN_TOKENS + 1, 0)
    if not count:
        return np.zeros(0, np.uint64)
    sums = np.empty(len(numbers) + 1, np.uint64)
    sums[0] = 0
    np.multiply(numbers, _powers.up_to(len(numbers)), out=sums[1:])
    np.cumsum(sums, out=sums)
    hashes = sums[RUN_TOKENS:] - sums[:count]
    hashes *= _powers.inverse_up_to(count)
    hashes ^= np.uint64(~owner & _WORD)
    hashes *= _FACTOR
    return hashes


class TokenIndex:
    """The latest request, by number, that wrote a beginning or a passage.

    Args:
        max_bytes: Maximum memory.
    """

    def __init__(self, max_bytes: int) -> None:
        bits = max((max_bytes // _ENTRY_BYTES).bit_length() - 1, 1)
        self._shift = np.uint64(_WORD_BITS - bits)
        # An entry holds the low half of a hash, and the number; the place stands for high bits of the hash.
        self._entries = np.zeros(1 << bits, np.uint64)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._entries.nbytes

    def add(self, hashes: Hashes, number: int) -> None:
        """Write beginnings or ``sampled`` passages of a request; ``number`` is less than 2 ** 32 - 1."""
        self._entries[hashes >> self._shift] = hashes << _HALF | np.uint64(number + 1)

    def find(self, hashes: Hashes) -> Numbers:
        """The number of the latest request with each of some hashes; -1 for none. It may be kept no more."""
        found = self._entries[hashes >> self._shift]
        numbers: Numbers = (found & _LOW).astype(np.int64) - 1
        numbers[found >> _HALF != hashes & _LOW] = -1
        return numbers


def sampled(runs: Hashes) -> Hashes:
    """Those of ``passages`` that are written and looked up."""
    return runs if len(runs) <= DENSE_TOKENS else runs[runs >> np.uint64(8) & np.uint64(SAMPLED - 1) == 0]


_POWERS_KEPT = 1 << 18


class _Powers:
    """Powers of the polynomial's base, modulo 2 ** 64, and their inverses; kept for all but the longest prompts."""

    def __init__(self) -> None:
        self._kept = {_BASE: np.ones(1, np.uint64), _INVERSE: np.ones(1, np.uint64)}

    def up_to(self, count: int) -> Hashes:
        """The first powers."""
        return self._first(_BASE, count)

    def inverse_up_to(self, count: int) -> Hashes:
        """The inverses of the first powers."""
        return self._first(_INVERSE, count)

    def _first(self, base: int, count: int) -> Hashes:
        powers = self._kept[base]
        if len(powers) < count:
            powers = self._of(base, count)
            if count <= _POWERS_KEPT:
                self._kept[base] = powers
        return powers[:count]

    def _of(self, base: int, count: int) -> Hashes:
        powers = np.full(1 << count.bit_length(), base, np.uint64)
        powers[0] = 1
        return np.cumprod(powers, dtype=np.uint64)


_powers = _Powers()
