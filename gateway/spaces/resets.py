"""What was reset, for as long as that matters. Pure."""

from collections.abc import Mapping, Sequence

from gateway.core.space import PrefixSpace, SpaceSelection
from gateway.spaces.epoch_changes import Reset
from gateway.spaces.selections import matches

_KEPT = 1000
"""Of resets, and of floors. When there are more, the latest of them holds for all spaces."""

_OF_ALL = SpaceSelection(), None


class Resets:
    """Remembers resets, this gateway's and others': whoever hears late of a life has to know that it is over."""

    def __init__(self) -> None:
        self._known: dict[tuple[SpaceSelection, str | None], Reset] = {}

    @property
    def known(self) -> Sequence[Reset]:
        """Those that are remembered."""
        return list(self._known.values())

    def same_as(self, reset: Reset) -> Reset | None:
        """The last one of the same spaces."""
        return self._known.get(reset.key)

    def of_all(self) -> Reset | None:
        """The last one of all spaces."""
        return self._known.get(_OF_ALL)

    def remember(self, reset: Reset) -> None:
        """There was one."""
        if len(self._known) >= _KEPT and reset.key not in self._known:
            latest = max(each.epoch for each in self._known.values())
            self._known = {_OF_ALL: Reset(*_OF_ALL, latest, reset.cause)}
        if reset.key == _OF_ALL:
            self._known = {key: each for key, each in self._known.items() if each.epoch > reset.epoch}
        self._known[reset.key] = reset

    def ended(self, space: PrefixSpace) -> bool:
        """Whether a space was reset after this life of it began."""
        return any(
            space.epoch < reset.epoch and matches(reset.selection, reset.owner, space) for reset in self._known.values()
        )


class EpochFloors:
    """Epochs below which no life of some spaces may begin, where without isolation all would begin with 0."""

    def __init__(self, floors: Mapping[SpaceSelection, int] | None = None) -> None:
        self._floors = dict(floors or {})

    @property
    def all(self) -> Mapping[SpaceSelection, int]:
        """All there are."""
        return dict(self._floors)

    def raise_to(self, selection: SpaceSelection, epoch: int) -> None:
        """No life of a selection may begin below this one."""
        if len(self._floors) >= _KEPT and selection not in self._floors:
            self._floors = {SpaceSelection(): max(epoch, *self._floors.values())}
        self._floors[selection] = max(epoch, self._floors.get(selection, 0))

    def under(self, space: PrefixSpace) -> int:
        """The lowest epoch with which a life of a space may begin."""
        return max((epoch for selection, epoch in self._floors.items() if matches(selection, None, space)), default=0)
