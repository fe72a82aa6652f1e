"""Resets of spaces: a reset, the remembered resets, and the changes to send to other gateways. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.space import PrefixSpace, ResetCause, SpaceSelection
from gateway.spaces.rules import matches
from gateway.spaces.space_epoch import SpaceEpoch


@dataclass(frozen=True, slots=True)
class Reset:
    """All epochs of a selection have ended.

    Attributes:
        selection: The selected spaces.
        owner: Owner of the spaces of ``selection.tenant``; None if it names no tenant.
        epoch: Epochs of the selection below this number are invalid.
        cause: The reason.
        by: The operator who requested it.
    """

    selection: SpaceSelection
    owner: str | None
    epoch: int
    cause: ResetCause
    by: str = ""

    @property
    def key(self) -> tuple[SpaceSelection, str | None]:
        """A later reset with the same key replaces this one."""
        return self.selection, self.owner


@dataclass(slots=True)
class EpochChanges:
    """Changes at this gateway that are not yet sent to others.

    Attributes:
        begun: Epochs that began.
        used: Epochs that were used by requests.
        ended: Epochs that ended.
        resets: Resets requested here.
        raised: Resets of other gateways whose epoch was raised here, because they ended epochs with a higher number.
    """

    begun: list[SpaceEpoch] = field(default_factory=list)
    used: set[SpaceEpoch] = field(default_factory=set)
    ended: list[SpaceEpoch] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    raised: list[Reset] = field(default_factory=list)


_KEPT = 1000
"""Most resets, and most floors. When there are more, the latest of them applies to all spaces."""

_OF_ALL = SpaceSelection(), None


class Resets:
    """Remembers resets of all gateways, so that an epoch that is received late is recognized as ended."""

    def __init__(self) -> None:
        self._known: dict[tuple[SpaceSelection, str | None], Reset] = {}

    @property
    def known(self) -> Sequence[Reset]:
        """The remembered resets."""
        return list(self._known.values())

    def same_as(self, reset: Reset) -> Reset | None:
        """The last reset with the same key."""
        return self._known.get(reset.key)

    def of_all(self) -> Reset | None:
        """The last reset of all spaces."""
        return self._known.get(_OF_ALL)

    def remember(self, reset: Reset) -> None:
        """Add a reset."""
        if len(self._known) >= _KEPT and reset.key not in self._known:
            latest = max(each.epoch for each in self._known.values())
            self._known = {_OF_ALL: Reset(*_OF_ALL, latest, reset.cause)}
        if reset.key == _OF_ALL:
            self._known = {key: each for key, each in self._known.items() if each.epoch > reset.epoch}
        self._known[reset.key] = reset

    def ended(self, space: PrefixSpace) -> bool:
        """Whether a space was reset after this epoch of it began."""
        return any(
            space.epoch < reset.epoch and matches(reset.selection, reset.owner, space) for reset in self._known.values()
        )


class EpochFloors:
    """Least epochs of spaces after resets, for the mode without isolation in which epochs start at 0."""

    def __init__(self, floors: Mapping[SpaceSelection, int] | None = None) -> None:
        self._floors = dict(floors or {})

    @property
    def all(self) -> Mapping[SpaceSelection, int]:
        """All floors."""
        return dict(self._floors)

    def raise_to(self, selection: SpaceSelection, epoch: int) -> None:
        """Set the least epoch of a selection."""
        if len(self._floors) >= _KEPT and selection not in self._floors:
            self._floors = {SpaceSelection(): max(epoch, *self._floors.values())}
        self._floors[selection] = max(epoch, self._floors.get(selection, 0))

    def under(self, space: PrefixSpace) -> int:
        """The least epoch of a space."""
        return max((epoch for selection, epoch in self._floors.items() if matches(selection, None, space)), default=0)
