"""A cache with LRU eviction, limited by entries, by weight, or by both, and optionally with a time to live."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """LRU cache. Not thread-safe; the caller holds a lock if several threads use one. Values must not be None.

    Reads no clock: ``now`` is a parameter, in the same unit as ``ttl``, and is needed only with ``ttl``. To cache the
    results of a function by its arguments, use ``functools.lru_cache``, which has a lock and counts hits.

    Args:
        max_entries: Maximum number of entries; None: no limit.
        max_weight: Maximum sum of the weights passed to ``put``, in any unit, such as bytes; None: weights are ignored.
            An entry that exceeds it alone is evicted at once, with all others.
        ttl: Time to live of an entry since it was last stored or read; None: entries do not expire. Expired entries are
            removed when they are read, or by eviction: they are the least recently used ones.
        on_evict: Called with key and value of each entry that a limit removes, after its removal. Not called by
            ``pop`` and ``clear``, nor for expired and replaced entries.

    Attributes:
        max_entries: As above; a lower value takes effect at the next ``put``.
        max_weight: As above; a lower value takes effect at the next ``put``.
        ttl: As above; takes effect when an entry is next stored or read. Must not change to or from None.
        weight: Sum of the weights of all entries.
    """

    __slots__ = ("_entries", "_on_evict", "_until", "_weights", "max_entries", "max_weight", "ttl", "weight")

    def __init__(
        self,
        max_entries: int | None = None,
        *,
        max_weight: int | None = None,
        ttl: float | None = None,
        on_evict: Callable[[K, V], None] | None = None,
    ) -> None:
        self.max_entries = max_entries
        self.max_weight = max_weight
        self.ttl = ttl
        self.weight = 0
        self._on_evict = on_evict
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._weights: dict[K, int] = {}
        self._until: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Whether there is an entry, expired or not; does not count as its use."""
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The keys, least recently used first; the cache must not change meanwhile."""
        return iter(self._entries)

    def items(self) -> ItemsView[K, V]:
        """A view of keys and values, least recently used first; the cache must not change while it is iterated."""
        return self._entries.items()

    def get(self, key: K, now: float = 0.0) -> V | None:
        """A value, which becomes the most recently used one; None if there is none or it has expired."""
        value = self._entries.get(key)
        if value is None:
            return None
        if self.ttl is not None:
            if self._until[key] < now:
                self.pop(key)
                return None
            self._until[key] = now + self.ttl
        self._entries.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """A value, expired or not, without counting as its use; None if there is none."""
        return self._entries.get(key)

    def put(self, key: K, value: V, now: float = 0.0, *, weight: int = 0) -> None:
        """Store a value as the most recently used one, replacing that of the same key, and evict what exceeds a limit.

        Store a value again if its weight has changed.
        """
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
        entries[key] = value
        if self.ttl is not None:
            self._until[key] = now + self.ttl
        if self.max_weight is not None:
            self.weight += weight - self._weights.get(key, 0)
            self._weights[key] = weight
            while self.weight > self.max_weight:
                self._evict()
        if self.max_entries is not None:
            while len(entries) > self.max_entries:
                self._evict()

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value, expired or not; None if there is none."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._forget(key)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._weights.clear()
        self._until.clear()
        self.weight = 0

    def _evict(self) -> None:
        key, value = self._entries.popitem(last=False)
        self._forget(key)
        if self._on_evict is not None:
            self._on_evict(key, value)

    def _forget(self, key: K) -> None:
        if self.max_weight is not None:
            self.weight -= self._weights.pop(key)
        if self.ttl is not None:
            self._until.pop(key)
