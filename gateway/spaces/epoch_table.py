"""The lives of spaces: those that last, and the last that ended. Pure."""

from collections import Counter, deque
from collections.abc import Collection, Sequence

from gateway.core.space import PrefixSpace, ResetCause
from gateway.spaces.space_epoch import SpaceEpoch

_ENDED_KEPT = 500
"""Ended lives whose figures stay readable."""

SpaceEpochKey = tuple[str, str, str, str, str, str, int, str]
"""A space without its epoch: the other attributes of ``PrefixSpace``, in their order."""


class EpochTable:
    """No space has two that last."""

    def __init__(self) -> None:
        # Least recently used first.
        self._alive: dict[SpaceEpochKey, SpaceEpoch] = {}
        self._by_id: dict[str, SpaceEpoch] = {}
        self._ended: deque[SpaceEpoch] = deque()

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def alive(self) -> Sequence[SpaceEpoch]:
        """Those that last, least recently used first."""
        return list(self._alive.values())

    @property
    def ended(self) -> Sequence[SpaceEpoch]:
        """Those that ended and are still known, latest last."""
        return list(self._ended)

    def find(self, key: SpaceEpochKey) -> SpaceEpoch | None:
        """The life of a space that lasts."""
        return self._alive.get(key)

    def named(self, life_id: str) -> SpaceEpoch | None:
        """A life by its id, also one that ended."""
        return self._by_id.get(life_id)

    def put(self, key: SpaceEpochKey, life: SpaceEpoch) -> None:
        """It lasts, and was used last of all."""
        self._alive[key] = self._by_id[life.id] = life

    def take(self, key: SpaceEpochKey) -> SpaceEpoch | None:
        """The life of a space that lasts, which then does not stand here any more: to be put back, or ended."""
        return self._alive.pop(key, None)

    def end(self, life: SpaceEpoch, cause: ResetCause, now: float) -> None:
        """One that was taken has ended."""
        life.ended_at, life.cause = now, cause
        life.salts.clear()
        if len(self._ended) >= _ENDED_KEPT:
            forgotten = _of_the_most_numerous(self._ended)
            self._ended.remove(forgotten)
            if self._by_id.get(forgotten.id) is forgotten:
                del self._by_id[forgotten.id]
        self._ended.append(life)

    def one_too_many(self) -> SpaceEpoch:
        """The one that lasts and makes room for another."""
        return _of_the_most_numerous(self._alive.values())

    def restore(self, alive: Sequence[SpaceEpoch], ended: Sequence[SpaceEpoch]) -> None:
        """Go on from what another process left."""
        self._alive = {key_of(life.space): life for life in alive}
        self._ended = deque(ended[-_ENDED_KEPT:])
        self._by_id = {life.id: life for life in [*self._ended, *alive]}


def key_of(space: PrefixSpace) -> SpaceEpochKey:
    """By which the life of a space is found."""
    return (
        space.model_id,
        space.tokenizer_id,
        space.template_version,
        space.tenant,
        space.scope,
        space.adapter,
        space.context_limit,
        space.region,
    )


def _of_the_most_numerous(lives: Collection[SpaceEpoch]) -> SpaceEpoch:
    """The first of the lives of whoever has most: nobody is crowded out by somebody else's many."""
    owners = Counter(life.space.tenant for life in lives)
    owner = max(owners, key=owners.__getitem__)
    return next(life for life in lives if life.space.tenant == owner)
