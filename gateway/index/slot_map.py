"""A map from 64-bit keys to small numbers, 17 bytes an entry instead of the hundred and more of a ``dict`` of ints.

A slot is a position in arrays: in ``keys``, and in the columns that the owner keeps in addition. Buckets are chains
through the slots (``_next``), and their number grows by one with each entry (linear hashing, W. Litwin 1980): there is
never a rehash of the whole table, which with millions of entries would delay every request.

Keys are used as they are, so they should be hashes: their low bits choose the bucket.
"""

from array import array

NONE = 0
"""The slot of nothing."""

_FIRST_BUCKETS = 16


class SlotMap:
    """Keys and their slots. Slots start at 1 and are reused.

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
