"""Requests of one skeleton as a group, and which groups' frames are similar."""

from collections.abc import Iterable

from gateway.explain.reference.frame import Frame, are_similar
from gateway.explain.reference.postings import POSTING_BYTES, Postings

_GROUP_BYTES = 600
_FEATURE_BYTES = 45
_GROUPS_PER_FEATURE = 12
"""As many groups, the latest ones, are looked at for one feature: what all of them have tells none from another."""


class Groups:
    """Finds a group by the features of its frame. Groups are numbers that tell tenants and skeletons apart."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._by_feature = Postings()
        self._features: dict[int, tuple[int, ...]] = {}

    def add(self, group: int, tenant: str, frame: Frame) -> None:
        """Hold a group; without effect if it is held."""
        if group in self._features:
            return
        features = tuple(_keys(tenant, frame))
        self._features[group] = features
        for feature in features:
            self._by_feature.add(feature, group)
        self.held_bytes += _bytes(len(features))

    def remove(self, group: int) -> None:
        """Forget a group; without effect if it is not held."""
        features = self._features.pop(group, None)
        if features is None:
            return
        for feature in features:
            self._by_feature.discard(feature, group)
        self.held_bytes -= _bytes(len(features))

    def is_similar(self, group: int, tenant: str, frame: Frame) -> bool:
        """Whether a group's frame is a variant of another one."""
        features = set(_keys(tenant, frame))
        held = self._features.get(group, ())
        shared = len(features.intersection(held))
        whole = len(features) + len(held)
        return bool(whole) and are_similar(shared, 2 * shared / whole, frame.is_opening)

    def most_similar(self, tenant: str, frame: Frame) -> int | None:
        """The group whose frame has most in common with another one, the latest of several; None if none has enough."""
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
    """Features within a tenant, those of openings apart from those of frames. Sorted, so that ties fall alike."""
    return (hash((tenant, frame.is_opening, feature)) for feature in sorted(frame.features))


def _bytes(features: int) -> int:
    return _GROUP_BYTES + features * (_FEATURE_BYTES + POSTING_BYTES)
