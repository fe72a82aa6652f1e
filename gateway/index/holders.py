"""Which holders have which block: one bit per holder, for up to 64 of them.

A look-up follows the chain of a request. A holder's blocks form whole prefixes as long as it has not lost a block in
the middle, so the depth of each holder is found by bisection: a dozen probes for hundreds of blocks and any number of
holders. Holders with gaps are looked up block by block.

``SlotMap`` is the table behind it: a map from 64-bit keys to small numbers, with 17 bytes an entry instead of the
hundred and more of a ``dict`` of ints.
"""

from array import array
from collections.abc import Sequence

from gateway.core.kv_events import Medium

HOLDERS = 64
ALL_HOLDERS = (1 << HOLDERS) - 1
"""The bits of all."""

_BELOW = (Medium.CPU, Medium.DISK)


class Holders:
    """Chain hash -> holders.

    Attributes:
        has_media: Whether any holder has had blocks on slower media than the GPU.
    """

    def __init__(self) -> None:
        self._slots = SlotMap()
        self._held = array("Q", [0])
        # Holders that have a block only on that medium or a slower one; a column is made when it is first needed.
        self._below: dict[Medium, array[int]] = {}
        self.has_media = False
        self._free = ALL_HOLDERS

    @property
    def blocks(self) -> int:
        """Different blocks held by any holder."""
        return self._slots.count

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        columns = (self._held, *self._below.values())
        return self._slots.nbytes + sum(column.buffer_info()[1] * column.itemsize for column in columns)

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
                self.has_media = True
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


NONE = 0
"""The slot of nothing."""

_FIRST_BUCKETS = 16


class SlotMap:
    """Keys and their slots. Slots start at 1 and are reused.

    A slot is a position in arrays: in ``keys``, and in the columns that the owner keeps in addition. Buckets are chains
    through the slots (``_next``), and their number grows by one with each entry (linear hashing, W. Litwin 1980): there
    is never a rehash of the whole table, which with millions of entries would delay every request. Keys are used as
    they are, so they should be hashes: their low bits choose the bucket.

    Attributes:
        keys: The key of each slot; undefined for free slots.
        count: Keys in the map.
    """

    __slots__ = ("_buckets", "_free", "_heads", "_high", "_low", "_next", "count", "keys")

    def __init__(self) -> None:
        self.keys = array("Q", [0])
        self.count = 0
        self._next = array("I", [NONE])
        self._heads = array("I", [NONE] * _FIRST_BUCKETS)
        self._buckets = _FIRST_BUCKETS
        self._low = _FIRST_BUCKETS - 1
        self._high = 2 * _FIRST_BUCKETS - 1
        self._free = NONE

    @property
    def slots(self) -> int:
        """Size a column has to have: the highest slot ever used, plus one."""
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(column.buffer_info()[1] * column.itemsize for column in (self.keys, self._next, self._heads))

    def find(self, key: int) -> int:
        """The slot of a key, or ``NONE``."""
        bucket = key & self._high
        if bucket >= self._buckets:
            bucket &= self._low
        slot = self._heads[bucket]
        keys, following = self.keys, self._next
        while slot and keys[slot] != key:
            slot = following[slot]
        return slot

    def add(self, key: int) -> int:
        """The slot of a key that is not in the map yet. It is either one that was discarded or ``slots`` grew by 1."""
        self._grow()
        slot = self._free
        if slot:
            self._free = self._next[slot]
            self.keys[slot] = key
        else:
            slot = len(self.keys)
            self.keys.append(key)
            self._next.append(NONE)
        bucket = key & self._high
        if bucket >= self._buckets:
            bucket &= self._low
        self._next[slot] = self._heads[bucket]
        self._heads[bucket] = slot
        self.count += 1
        return slot

    def discard(self, slot: int) -> None:
        """Take a slot's key out of the map."""
        key = self.keys[slot]
        bucket = key & self._high
        if bucket >= self._buckets:
            bucket &= self._low
        following = self._next
        current = self._heads[bucket]
        if current == slot:
            self._heads[bucket] = following[slot]
        else:
            while following[current] != slot:
                current = following[current]
            following[current] = following[slot]
        following[slot] = self._free
        self._free = slot
        self.count -= 1

    def _grow(self) -> None:
        """One more bucket once there are more keys than buckets: the next one in turn gives up half of its keys."""
        new = self._buckets
        if self.count < new:
            return
        keys, following, heads = self.keys, self._next, self._heads
        old = new & self._low
        stay = move = NONE
        slot = heads[old]
        while slot:
            after = following[slot]
            if keys[slot] & self._high == new:
                following[slot] = move
                move = slot
            else:
                following[slot] = stay
                stay = slot
            slot = after
        heads[old] = stay
        heads.append(move)
        self._buckets += 1
        if self._buckets > self._high:
            self._low = self._high
            self._high = 2 * self._high + 1
