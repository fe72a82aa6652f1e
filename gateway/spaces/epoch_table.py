"""The epochs of spaces: all that are alive, and the last that ended. Pure."""

from collections import Counter, deque
from collections.abc import Collection, Sequence

from gateway.core.space import PrefixSpace, ResetCause
from gateway.spaces.space_epoch import SpaceEpoch

_ENDED_KEPT = 500
"""Most ended epochs that are kept for the admin API."""

SpaceEpochKey = tuple[str, str, str, str, str, str, int, str]
"""A space without its epoch: the other attributes of ``PrefixSpace``, in their order."""


class EpochTable:
    """Epochs by space and by id. A space has at most one epoch alive."""

    def __init__(self) -> None:
        # Least recently used first.
        self._alive: dict[SpaceEpochKey, SpaceEpoch] = {}
        self._by_id: dict[str, SpaceEpoch] = {}
        self._ended: deque[SpaceEpoch] = deque()

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def alive(self) -> Sequence[SpaceEpoch]:
        """Epochs alive, least recently used first."""
        return list(self._alive.values())

    @property
    def ended(self) -> Sequence[SpaceEpoch]:
        """Ended epochs that are kept, latest last."""
        return list(self._ended)

    def find(self, key: SpaceEpochKey) -> SpaceEpoch | None:
        """The epoch of a space that is alive."""
        return self._alive.get(key)

    def named(self, life_id: str) -> SpaceEpoch | None:
        """An epoch by its id, alive or ended."""
        return self._by_id.get(life_id)

    def put(self, key: SpaceEpochKey, life: SpaceEpoch) -> None:
        """Add an epoch as the most recently used."""
        self._alive[key] = self._by_id[life.id] = life

    def take(self, key: SpaceEpochKey) -> SpaceEpoch | None:
        """Remove and return the epoch of a space; the caller puts it back or ends it."""
        return self._alive.pop(key, None)

    def end(self, life: SpaceEpoch, cause: ResetCause, now: float) -> None:
        """Record the end of an epoch that was taken."""
        life.ended_at, life.cause = now, cause
        life.salts.clear()
        if len(self._ended) >= _ENDED_KEPT:
            forgotten = _of_the_most_numerous(self._ended)
            self._ended.remove(forgotten)
            if self._by_id.get(forgotten.id) is forgotten:
                del self._by_id[forgotten.id]
        self._ended.append(life)

    def one_too_many(self) -> SpaceEpoch:
        """The epoch to end when there are too many."""
        return _of_the_most_numerous(self._alive.values())

    def restore(self, alive: Sequence[SpaceEpoch], ended: Sequence[SpaceEpoch]) -> None:
        """Restore the state of a previous process."""
        self._alive = {key_of(life.space): life for life in alive}
        self._ended = deque(ended[-_ENDED_KEPT:])
        self._by_id = {life.id: life for life in [*self._ended, *alive]}


def key_of(space: PrefixSpace) -> SpaceEpochKey:
    """The key of a space in the table."""
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
    """The first epoch of the tenant with most: one tenant's many epochs never end those of another."""
    owners = Counter(life.space.tenant for life in lives)
    owner = max(owners, key=owners.__getitem__)
    return next(life for life in lives if life.space.tenant == owner)
