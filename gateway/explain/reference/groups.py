"""Groups of requests with one skeleton, and similarity between their frames.

``Postings`` is the index from keys to the numbers of requests or groups.
"""

from collections.abc import Iterable
from itertools import islice

from gateway.explain.reference.frame import Frame, are_similar

POSTING_BYTES = 190
"""Approximate memory of a number under a key: most keys hold a single number, others a dict."""


class Postings:
    """Numbers by key, in insertion order. A single number is held without a container."""

    def __init__(self) -> None:
        self._held: dict[int, int | dict[int, None]] = {}

    def add(self, key: int, number: int) -> None:
        """Append a number to a key."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = number
        elif isinstance(held, dict):
            held[number] = None
        elif held != number:
            self._held[key] = {held: None, number: None}

    def discard(self, key: int, number: int) -> None:
        """Remove a number from a key; no effect if it is absent."""
        held = self._held.get(key)
        if isinstance(held, dict):
            held.pop(number, None)
            if not held:
                del self._held[key]
        elif held == number:
            del self._held[key]

    def latest(self, key: int, count: int) -> list[int]:
        """The last ``count`` numbers of a key, latest first."""
        held = self._held.get(key)
        if held is None:
            return []
        return list(islice(reversed(held), count)) if isinstance(held, dict) else [held]

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)


_GROUP_BYTES = 600
_FEATURE_BYTES = 45
_GROUPS_PER_FEATURE = 12
"""Only this many of the latest groups are read per feature: a feature of all groups does not discriminate."""


class Groups:
    """Finds a group by the features of its frame. A group is a number for a tenant and a skeleton."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._by_feature = Postings()
        self._features: dict[int, tuple[int, ...]] = {}

    def add(self, group: int, tenant: str, frame: Frame) -> None:
        """Add a group; no effect if it is present."""
        if group in self._features:
            return
        features = tuple(_keys(tenant, frame))
        self._features[group] = features
        for feature in features:
            self._by_feature.add(feature, group)
        self.held_bytes += _bytes(len(features))

    def remove(self, group: int) -> None:
        """Remove a group; no effect if it is absent."""
        features = self._features.pop(group, None)
        if features is None:
            return
        for feature in features:
            self._by_feature.discard(feature, group)
        self.held_bytes -= _bytes(len(features))

    def is_similar(self, group: int, tenant: str, frame: Frame) -> bool:
        """Whether the frame of a group is a variant of the given one."""
        features = set(_keys(tenant, frame))
        held = self._features.get(group, ())
        shared = len(features.intersection(held))
        whole = len(features) + len(held)
        return bool(whole) and are_similar(shared, 2 * shared / whole, frame.is_opening)

    def most_similar(self, tenant: str, frame: Frame) -> int | None:
        """The group whose frame is most similar to the given one, the latest on a tie; None if none is similar."""
        features = list(_keys(tenant, frame))
        shared: dict[int, int] = {}
        for feature in features:
            for group in self._by_feature.latest(feature, _GROUPS_PER_FEATURE):
                shared[group] = shared.get(group, 0) + 1
        best, best_share = None, 0.0
        for group, count in shared.items():
            share = 2 * count / (len(features) + len(self._features[group]))
            if share > best_share and are_similar(count, share, frame.is_opening):
                best, best_share = group, share
        return best


def _keys(tenant: str, frame: Frame) -> Iterable[int]:
    """Feature hashes per tenant and kind of frame. Sorted, so that ties are resolved the same way."""
    return (hash((tenant, frame.is_opening, feature)) for feature in sorted(frame.features))


def _bytes(features: int) -> int:
    return _GROUP_BYTES + features * (_FEATURE_BYTES + POSTING_BYTES)
