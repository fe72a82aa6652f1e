"""What becomes of spaces, for other gateways that serve the same."""

from dataclasses import dataclass, field

from gateway.core.space import ResetCause, SpaceSelection
from gateway.spaces.space_epoch import SpaceEpoch


@dataclass(frozen=True, slots=True)
class Reset:
    """All lives of a selection ended.

    Attributes:
        selection: Which.
        owner: Whose spaces ``selection.tenant`` means; None if it names nobody.
        epoch: No life of the selection with an earlier epoch may be used any more.
        cause: Why.
        by: Who asked for it.
    """

    selection: SpaceSelection
    owner: str | None
    epoch: int
    cause: ResetCause
    by: str = ""

    @property
    def key(self) -> tuple[SpaceSelection, str | None]:
        """What a later reset takes the place of."""
        return self.selection, self.owner


@dataclass(slots=True)
class EpochChanges:
    """What happened here and is not yet told.

    Attributes:
        begun: Lives that began.
        used: Lives that requests were led into.
        ended: Lives that ended.
        resets: Resets that were asked for here.
        raised: Resets of others that reach further than they were told: they ended lives of a later number here.
    """

    begun: list[SpaceEpoch] = field(default_factory=list)
    used: set[SpaceEpoch] = field(default_factory=set)
    ended: list[SpaceEpoch] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    raised: list[Reset] = field(default_factory=list)
