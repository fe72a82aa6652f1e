"""Which holders have which block: one bit per holder, for up to 64 of them.

A look-up follows the chain of a request. A holder's blocks form whole prefixes as long as it has not lost a block in
the middle, so the depth of each holder is found by bisection: a dozen probes for hundreds of blocks and any number of
holders. Holders with gaps are looked up block by block.
"""

from array import array
from collections.abc import Sequence

from gateway.core.kv_events import Medium
from gateway.index.slot_map import SlotMap

HOLDERS = 64

_BELOW = (Medium.CPU, Medium.DISK)


class Holders:
    """Chain hash -> holders."""

    def __init__(self) -> None:
        self._slots = SlotMap()
        self._held = array("Q", [0])
        # Holders that have a block only on that medium or a slower one; a column is made when it is first needed.
        self._below: dict[Medium, array[int]] = {}
        self._free = (1 << HOLDERS) - 1

    @property
    def blocks(self) -> int:
        """Different blocks held by any holder."""
        return self._slots.count

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        columns = (self._held, *self._below.values())
        return self._slots.nbytes + sum(column.buffer_info()[1] * column.itemsize for column in columns)

    @property
    def has_media(self) -> bool:
        """Whether any holder has blocks on slower media than the GPU."""
        return bool(self._below)

    def take_bit(self) -> int | None:
        """A bit for a new holder; None if all are taken."""
        bit = self._free & -self._free
        self._free ^= bit
        return bit or None

    def give_back(self, bit: int) -> None:
        """Release the bit of a holder that has no blocks."""
        self._free |= bit

    def put(self, chain: int, bit: int) -> None:
        """Add a block to a holder."""
        slot = self._slots.find(chain)
        if not slot:
            slot = self._slots.add(chain)
            if slot == len(self._held):
                self._held.append(bit)
                for column in self._below.values():
                    column.append(0)
                return
        self._held[slot] |= bit

    def take(self, chain: int, bit: int) -> None:
        """Remove a block from a holder."""
        slot = self._slots.find(chain)
        if not slot or not self._held[slot] & bit:
            return
        self._held[slot] ^= bit
        for column in self._below.values():
            column[slot] &= ~bit
        if not self._held[slot]:
            self._slots.discard(slot)

    def set_medium(self, chain: int, bit: int, medium: Medium) -> None:
        """The fastest medium on which a holder has a block it holds."""
        slot = self._slots.find(chain)
        for below in _BELOW:
            column = self._below.get(below)
            if column is None:
                if below is not medium:
                    continue
                column = self._below[below] = array("Q", bytes(8 * self._slots.slots))
            if below is medium:
                column[slot] |= bit
            else:
                column[slot] &= ~bit

    def holders(self, chain: int) -> int:
        """Bits of the holders of a block."""
        slot = self._slots.find(chain)
        return self._held[slot] if slot else 0

    def depths(self, hashes: Sequence[int], limit: int, wanted: int) -> list[tuple[int, int]]:
        """How many blocks of a chain each wanted holder has, if its blocks form whole prefixes.

        Args:
            hashes: The chain.
            limit: Blocks to look at.
            wanted: Bits of the holders.

        Returns:
            Pairs of a depth in blocks and the bits of the holders with exactly this depth; depth 0 is left out.
        """
        found: list[tuple[int, int]] = []
        if not limit:
            return found
        # Each range holds the bits that are known to have block ``low - 1`` and known not to have block ``high``.
        present = self.holders(hashes[0]) & wanted
        if not present:
            return found
        all_the_way = self.holders(hashes[limit - 1]) & present
        if all_the_way:
            found.append((limit, all_the_way))
        ranges = [(1, limit - 1, present & ~all_the_way)]
        while ranges:
            low, high, bits = ranges.pop()
            if not bits:
                continue
            if low >= high:
                found.append((low, bits))
                continue
            middle = (low + high) // 2
            have = self.holders(hashes[middle]) & bits
            ranges.append((middle + 1, high, have))
            ranges.append((low, middle, bits & ~have))
        return found

    def depth(self, hashes: Sequence[int], limit: int, bit: int) -> int:
        """How many blocks of a chain one holder has, checked block by block."""
        for depth in range(limit):
            if not self.holders(hashes[depth]) & bit:
                return depth
        return limit

    def count_below(self, hashes: Sequence[int], depth: int, bit: int) -> dict[Medium, int]:
        """How many of a holder's first ``depth`` blocks of a chain lie on a slower medium, per medium."""
        counts: dict[Medium, int] = {}
        for medium, column in self._below.items():
            slots = map(self._slots.find, hashes[:depth])
            counts[medium] = sum(1 for slot in slots if column[slot] & bit)
        return counts
