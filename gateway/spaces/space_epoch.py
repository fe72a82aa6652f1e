"""One epoch of a prefix space with its totals, and the table of those alive and the last that ended. Pure."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gateway.core.space import PrefixSpace, ResetCause, SpaceGrant, SpaceSelection

_NUMBERS = 2**62
"""Upper limit of epoch numbers. They are Unix microseconds, which reach it in 146,000 years."""

_GRANTS_KEPT = 64
"""Grants remembered per epoch: clients that narrow spaces by salts of their own mostly send one per conversation."""


@dataclass(slots=True)
class EpochTotals:
    """Totals of the requests of an epoch.

    Attributes:
        requests: Complete answers.
        prompt_tokens: Their prompt tokens.
        cached_tokens: Those of them that engines reported as cached.
        saved_prefill_seconds: Prefill time that these would have taken.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    saved_prefill_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class SpaceEpoch:
    """From the first request in a space to its end. Times are Unix seconds.

    Attributes:
        space: The space, with its epoch number.
        id: Its short name.
        born_at: Its beginning.
        used_at: When it was used last.
        idle_ttl_seconds: Unused for so long, it ends; None for never.
        max_age_seconds: At this age it ends; None for never.
        ended_at: Its end; None while it lasts.
        cause: Why it ended; None while it lasts.
        figures: Totals of its requests.
        grants: Grants already made, by the template's label and what the client narrows the space with; they are not
            written to the file.
    """

    space: PrefixSpace
    id: str
    born_at: float
    used_at: float
    idle_ttl_seconds: float | None = None
    max_age_seconds: float | None = None
    ended_at: float | None = None
    cause: ResetCause | None = None
    figures: EpochTotals = field(default_factory=EpochTotals)
    grants: dict[tuple[str, str], SpaceGrant] = field(default_factory=dict)

    def over(self, now: float) -> ResetCause | None:
        """Why it has expired at ``now``; None if it has not."""
        # Else a clock that was set back would extend it beyond its limits.
        if self.max_age_seconds is not None and not 0 <= now - self.born_at < self.max_age_seconds:
            return ResetCause.MAX_AGE
        if self.idle_ttl_seconds is not None and not now - self.used_at < self.idle_ttl_seconds:
            return ResetCause.IDLE_TTL
        return None

    @property
    def expires_at(self) -> float | None:
        """When it ends without further use; None for never."""
        ends = []
        if self.idle_ttl_seconds is not None:
            ends.append(self.used_at + self.idle_ttl_seconds)
        if self.max_age_seconds is not None:
            ends.append(self.born_at + self.max_age_seconds)
        return min(ends, default=None)

    def remember_grant(self, key: tuple[str, str], grant: SpaceGrant) -> None:
        """Cache a grant with its derived salt."""
        if len(self.grants) >= _GRANTS_KEPT:
            self.grants.clear()
        self.grants[key] = grant

    def dump(self) -> dict[str, Any]:
        """JSON-ready; for ``load_life``."""
        return {
            "space": parts_of(self.space),
            "idle_ttl_seconds": self.idle_ttl_seconds,
            "max_age_seconds": self.max_age_seconds,
            "born_at": self.born_at,
            "used_at": self.used_at,
            "ended_at": self.ended_at,
            "cause": self.cause,
            "figures": {
                "requests": self.figures.requests,
                "prompt_tokens": self.figures.prompt_tokens,
                "cached_tokens": self.figures.cached_tokens,
                "saved_prefill_seconds": self.figures.saved_prefill_seconds,
            },
        }


_PARTS = tuple(part.name for part in fields(PrefixSpace))


def parts_of(space: PrefixSpace) -> dict[str, Any]:
    """A space's parts by their names; as ``dataclasses.asdict``, and ten times faster: there may be many spaces."""
    return {name: getattr(space, name) for name in _PARTS}


def epoch_id(space: PrefixSpace) -> str:
    """Short name of an epoch: the same for equal spaces, and says nothing about the salt."""
    return hashlib.sha256(repr(parts_of(space)).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def load_epoch(dumped: dict[str, Any]) -> SpaceEpoch:
    """An epoch from the result of ``SpaceEpoch.dump``.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    space = PrefixSpace(**dumped["space"])
    check_types(space)
    return SpaceEpoch(
        space=space,
        id=epoch_id(space),
        idle_ttl_seconds=_seconds(dumped["idle_ttl_seconds"]),
        max_age_seconds=_seconds(dumped["max_age_seconds"]),
        born_at=_time(dumped["born_at"]),
        used_at=_time(dumped["used_at"]),
        ended_at=_seconds(dumped["ended_at"]),
        cause=None if dumped["cause"] is None else ResetCause(dumped["cause"]),
        figures=_figures(**dumped["figures"]),
    )


def _figures(**numbers: Any) -> EpochTotals:
    figures = EpochTotals(**numbers)
    for value in asdict(figures).values():
        check_number(int(value))
    return figures


def check_types(part: PrefixSpace | SpaceSelection) -> None:
    """Whether what was read has the types it is declared with, and numbers that can be written again.

    Raises:
        TypeError, ValueError: it has not.
    """
    for field_ in fields(part):
        value = getattr(part, field_.name)
        optional = value is None and "None" in str(field_.type)
        if not optional and type(value) is not (int if "int" in str(field_.type) else str):
            raise TypeError(f"{field_.name} is of another type")
        if isinstance(value, int):
            check_number(value)


def check_number(value: int) -> int:
    """The number itself.

    Raises:
        ValueError: it is out of range.
    """
    if not 0 <= value < _NUMBERS:
        raise ValueError("a number out of range")
    return value


def _seconds(value: Any) -> float | None:
    return None if value is None else _time(value)


def _time(value: Any) -> float:
    check_number(int(value))
    return float(value)


_ENDED_KEPT = 500
"""Most ended epochs that are kept for the admin API."""

SpaceEpochKey = tuple[str, str, str, str, str, str, int, str, str]
"""A space without its epoch: the other attributes of ``PrefixSpace``, in their order, ``prompt`` last."""


class _ByOwner:
    """Epochs by tenant, least recently used first. Each step takes constant time: a new space needs most of them."""

    def __init__(self, epochs: Iterable[SpaceEpoch] = ()) -> None:
        self._owned: dict[str, OrderedDict[SpaceEpoch, None]] = {}
        self._by_number: dict[int, OrderedDict[str, None]] = {}
        for space_epoch in epochs:
            self.add(space_epoch)

    def add(self, space_epoch: SpaceEpoch) -> None:
        owned = self._owned.setdefault(space_epoch.space.tenant, OrderedDict())
        owned[space_epoch] = None
        self._count(space_epoch.space.tenant, len(owned) - 1, len(owned))

    def use(self, space_epoch: SpaceEpoch) -> None:
        owned = self._owned[space_epoch.space.tenant]
        owned.move_to_end(space_epoch)
        self._by_number[len(owned)].move_to_end(space_epoch.space.tenant)

    def remove(self, space_epoch: SpaceEpoch) -> None:
        owned = self._owned[space_epoch.space.tenant]
        del owned[space_epoch]
        self._count(space_epoch.space.tenant, len(owned) + 1, len(owned))

    def first_of_most(self) -> SpaceEpoch:
        """The first epoch of the tenant with most: one tenant's many epochs never end those of another."""
        return next(iter(self._owned[next(iter(self._by_number[max(self._by_number)]))]))

    def _count(self, owner: str, before: int, now: int) -> None:
        by_number = self._by_number
        if before:
            del by_number[before][owner]
        if now:
            by_number.setdefault(now, OrderedDict())[owner] = None
        else:
            del self._owned[owner]
        if not by_number.get(before, True):
            del by_number[before]


class EpochTable:
    """Epochs by space and by id. A space has at most one epoch alive.

    Attributes:
        by_id: Epochs by their id, alive or ended. Not to be changed by others.
    """

    def __init__(self) -> None:
        # Least recently used first.
        self._alive: dict[SpaceEpochKey, SpaceEpoch] = {}
        self._alive_by_owner = _ByOwner()
        self.by_id: dict[str, SpaceEpoch] = {}
        self._ended: dict[SpaceEpoch, None] = {}
        self._ended_by_owner = _ByOwner()

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

    def put(self, key: SpaceEpochKey, space_epoch: SpaceEpoch) -> None:
        """Add an epoch as the most recently used."""
        self._alive[key] = self.by_id[space_epoch.id] = space_epoch
        self._alive_by_owner.add(space_epoch)

    def use(self, key: SpaceEpochKey) -> SpaceEpoch | None:
        """The epoch of a space that is alive, which becomes the most recently used one."""
        space_epoch = self._alive.pop(key, None)
        if space_epoch is not None:
            self._alive[key] = space_epoch
            self._alive_by_owner.use(space_epoch)
        return space_epoch

    def end(self, space_epoch: SpaceEpoch, cause: ResetCause, now: float) -> None:
        """End an epoch that is alive."""
        del self._alive[key_of(space_epoch.space)]
        self._alive_by_owner.remove(space_epoch)
        space_epoch.ended_at, space_epoch.cause = now, cause
        space_epoch.grants.clear()
        if len(self._ended) >= _ENDED_KEPT:
            forgotten = self._ended_by_owner.first_of_most()
            del self._ended[forgotten]
            self._ended_by_owner.remove(forgotten)
            if self.by_id.get(forgotten.id) is forgotten:
                del self.by_id[forgotten.id]
        self._ended[space_epoch] = None
        self._ended_by_owner.add(space_epoch)

    def one_too_many(self) -> SpaceEpoch:
        """The epoch to end when there are too many."""
        return self._alive_by_owner.first_of_most()

    def restore(self, alive: Sequence[SpaceEpoch], ended: Sequence[SpaceEpoch]) -> None:
        """Restore the state of a previous process."""
        self._alive = {key_of(space_epoch.space): space_epoch for space_epoch in alive}
        self._alive_by_owner = _ByOwner(self._alive.values())
        self._ended = dict.fromkeys(ended[-_ENDED_KEPT:])
        self._ended_by_owner = _ByOwner(self._ended)
        self.by_id = {space_epoch.id: space_epoch for space_epoch in [*self._ended, *alive]}


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
        space.prompt,
    )
