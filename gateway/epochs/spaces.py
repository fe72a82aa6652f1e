"""The prefix spaces alive, and what ended. Pure: time comes as an argument, and the file is somebody else's work."""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.epochs.life import Life, check_number, check_types, life_id, load_life
from gateway.epochs.salt import client_salt, client_salt_name, engine_salt
from gateway.values.errors import BadRequest
from gateway.values.ports import SpaceObserver
from gateway.values.settlement import Settlement
from gateway.values.space import ModelVersion, PrefixSpace, ResetCause, SpaceEnd, SpacePass, SpaceSelection
from gateway.values.tenant import Caller, Tenant
from gateway.vendors import names_cached

_ENDED_KEPT = 500
"""Ended lives whose figures stay readable."""

_FLOORS_KEPT = 1000

_Key = tuple[str, str, str, str, str, str, int, str]
"""A space without its epoch: the other attributes of ``PrefixSpace``, in their order."""


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """The configuration of spaces.

    Attributes:
        isolation: ``tenant``, ``group`` or ``none``.
        secret: What salts are made with; empty only without isolation.
        idle_ttl_seconds: Of tenants without a value of their own.
        max_age_seconds: Of tenants without a value of their own.
        max_spaces: Lives at the same time.
    """

    isolation: str
    secret: bytes
    idle_ttl_seconds: float
    max_age_seconds: float
    max_spaces: int


class PrefixSpaces:
    """Leads every request into its space.

    With isolation, a space that is not known begins a life with an epoch that no life had before. So whatever is
    forgotten (a reset, an expiry, a lost file, one space too many) makes prefixes unreachable and never reachable.

    Without isolation, spaces have epoch 0 and no salt until somebody resets them; resets are then remembered as floors
    below which no epoch of the selected spaces may begin. Scopes, labels of templates and clients' own salts are made
    binding all the same.

    Args:
        rules: The configuration.
        observers: Whom to tell of lives that end.
    """

    def __init__(self, rules: SpaceRules, observers: Sequence[SpaceObserver] = ()) -> None:
        self._rules = rules
        self._observers = observers
        # Least recently used first.
        self._lives: dict[_Key, Life] = {}
        self._by_id: dict[str, Life] = {}
        self._ended: deque[Life] = deque()
        self._floors: dict[SpaceSelection, int] = {}
        self._last_epoch = 0
        self.changed = False
        """Whether anything is not yet in the file; the one who writes it sets it back."""

    def configure(self, rules: SpaceRules, now: float) -> None:
        """Go by another configuration from now on; a life's times follow with its next request."""
        if (rules.isolation, rules.secret) != (self._rules.isolation, self._rules.secret):
            for life in list(self._lives.values()):
                self._drop(life, ResetCause.CONFIGURATION, "", now)
        self._rules = rules

    def enter(self, caller: Caller, model: ModelVersion, fields: Mapping[str, Any], now: float) -> SpacePass:
        """The space of a request, and the salt that binds it.

        Args:
            caller: On whose behalf it comes.
            model: The model it is for.
            fields: Its body, parsed: a ``cache_salt`` of the client's narrows the space.
            now: Unix seconds.

        Raises:
            BadRequest: the client's salt cannot be used, or the request names something cached past all spaces.
        """
        if self._rules.isolation != "none" and (field := names_cached(fields)) is not None:
            raise BadRequest(
                f"`{field}` names something cached, which may be anybody's, so it is not taken where prefixes are kept"
                " apart. Leave it out.",
                param=field,
                code="names_cached",
            )
        narrowed_by = client_salt(fields)
        key = self._key(caller, model)
        life = self._lives.pop(key, None)  # and in again below, behind all others
        if life is not None:
            self._set_times(life, caller.tenant)
        if life is not None and (cause := life.over(now)) is not None:
            self._end(life, cause, "", now)
            life = None
        if life is None:
            life = self._begin(key, caller.tenant, now)
        self._lives[key] = life
        life.used_at = max(now, life.used_at)
        self.changed = True
        space = life.space
        if not (space.tenant or space.scope or space.epoch or model.template_label or narrowed_by):
            return SpacePass(life.id, None, space)
        salt = life.salts.get(narrowed_by)
        if salt is None:
            salt = engine_salt(self._rules.secret, space, narrowed_by)
            life.remember_salt(narrowed_by, salt)
        return SpacePass(life.id, salt, space, client_salt_name(self._rules.secret, narrowed_by))

    def reset(
        self, selection: SpaceSelection, cause: ResetCause, now: float, *, by: str = "", tenant: Tenant | None = None
    ) -> list[SpaceEnd]:
        """End the lives of all spaces of a selection.

        Args:
            selection: Which.
            cause: Why.
            now: Unix seconds.
            by: Who asked for it.
            tenant: The tenant that ``selection.tenant`` names.
        """
        owner = self._owner(tenant) if tenant is not None else None
        selected = [life for life in self._lives.values() if _matches(selection, owner, life.space)]
        if self._rules.isolation == "none":
            # What is in the engines' caches may have come by another process; only an epoch above keeps it out.
            if len(self._floors) >= _FLOORS_KEPT:
                self._floors = {SpaceSelection(): self._next_epoch(now)}
            self._floors[selection] = self._next_epoch(now)
        ends = [self._drop(life, cause, by, now) for life in selected]
        self.changed = True
        return ends

    def retire(self, model: ModelVersion, cause: ResetCause, now: float) -> list[SpaceEnd]:
        """End the lives that belong to another version of a model than the present one: no request leads there now.

        Args:
            model: What it is at present.
            cause: ``TEMPLATE_CHANGED`` for those with another template or tokenizer; ``MODEL_UPDATE`` for those with
                the same, and another adapter or context limit.
            now: Unix seconds.
        """
        old = [
            life
            for life in self._lives.values()
            if life.space.model_id == model.model_id and _outdated(life.space, model) is cause
        ]
        return [self._drop(life, cause, "", now) for life in old]

    def expire(self, now: float) -> None:
        """End the lives whose time is over."""
        over = [(life, cause) for life in self._lives.values() if (cause := life.over(now)) is not None]
        for life, cause in over:
            self._drop(life, cause, "", now)

    def tenant_has_spaces(self, tenant: Tenant) -> bool:
        """Whether spaces tell this tenant apart from others at all."""
        return bool(self._owner(tenant))

    def shown(self) -> Iterator[tuple[Life, bool]]:
        """Every living space, most recently used first, then those that ended, latest first; and whether it lives."""
        alive, ended = list(self._lives.values()), list(self._ended)
        for life in reversed(alive):
            yield life, life.ended_at is None
        for life in reversed(ended):
            yield life, False

    # Observer

    def count(self, settlement: Settlement) -> None:
        """Add a complete answer to the figures of its space, which may have ended meanwhile."""
        life = self._by_id.get(settlement.space)
        if life is None:
            return
        figures = life.figures
        figures.requests += 1
        figures.prompt_tokens += settlement.prompt_tokens
        figures.cached_tokens += settlement.cached_tokens or 0
        figures.saved_prefill_seconds += settlement.saved_prefill_seconds
        self.changed = True

    # For the file

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Everything that has to outlive the process, as it is now. What is returned makes it JSON-ready, for ``load``,
        which takes a millisecond for a hundred spaces and may be done in a thread."""
        last_epoch, lives, ended, floors = self._last_epoch, [*self._lives.values()], [*self._ended], {**self._floors}
        return lambda: {
            "last_epoch": last_epoch,
            "lives": [life.dump() for life in lives],
            "ended": [life.dump() for life in ended],
            "floors": [[asdict(selection), epoch] for selection, epoch in floors.items()],
        }

    def dump(self) -> dict[str, Any]:
        """``snapshot``, made JSON-ready at once."""
        return self.snapshot()()

    def load(self, dumped: Mapping[str, Any], now: float) -> None:
        """Go on from what another process left.

        Raises:
            KeyError, TypeError, ValueError: it is nothing that ``dump`` gave.
        """
        last_epoch = check_number(int(dumped["last_epoch"]))
        lives = [load_life(each) for each in dumped["lives"]]
        ended = [load_life(each) for each in dumped["ended"]]
        floors = {SpaceSelection(**selection): check_number(int(epoch)) for selection, epoch in dumped["floors"]}
        for selection in floors:
            check_types(selection)
        self._last_epoch = max([last_epoch, *(life.space.epoch for life in lives), *floors.values()])
        self._floors = floors
        self._lives = {_key_of(life.space): life for life in lives}
        self._ended = deque(ended[-_ENDED_KEPT:])
        self._by_id = {life.id: life for life in [*self._ended, *lives]}
        self.expire(now)

    def _key(self, caller: Caller, model: ModelVersion) -> _Key:
        tenant = caller.tenant
        return (
            model.model_id,
            model.tokenizer_id,
            model.template_version,
            self._owner(tenant),
            caller.scope,
            model.adapter,
            model.context_limit,
            ",".join(sorted(tenant.regions)) if tenant.regions else "",
        )

    def _owner(self, tenant: Tenant) -> str:
        """Who shares a space; empty for everybody."""
        if self._rules.isolation == "none":
            return ""
        if self._rules.isolation == "group" and tenant.group:
            return f"group:{tenant.group}"
        return f"tenant:{tenant.id}"

    def _begin(self, key: _Key, tenant: Tenant, now: float) -> Life:
        if len(self._lives) >= self._rules.max_spaces:
            self._drop(_of_the_most_numerous(self._lives.values()), ResetCause.CROWDED_OUT, "", now)
        isolated = self._rules.isolation != "none"
        space = PrefixSpace(*key, epoch=0)
        space = dataclasses.replace(space, epoch=self._next_epoch(now) if isolated else self._floor(space))
        life = Life(space=space, id=life_id(space), born_at=now, used_at=now)
        self._set_times(life, tenant)
        self._by_id[life.id] = life
        return life

    def _set_times(self, life: Life, tenant: Tenant) -> None:
        if self._rules.isolation != "none":
            life.idle_ttl_seconds = tenant.idle_ttl_seconds or self._rules.idle_ttl_seconds
            life.max_age_seconds = tenant.max_age_seconds or self._rules.max_age_seconds

    def _next_epoch(self, now: float) -> int:
        self._last_epoch = max(self._last_epoch + 1, int(now * 1e6))
        return self._last_epoch

    def _floor(self, space: PrefixSpace) -> int:
        return max((epoch for selection, epoch in self._floors.items() if _matches(selection, None, space)), default=0)

    def _drop(self, life: Life, cause: ResetCause, by: str, now: float) -> SpaceEnd:
        del self._lives[_key_of(life.space)]
        return self._end(life, cause, by, now)

    def _end(self, life: Life, cause: ResetCause, by: str, now: float) -> SpaceEnd:
        life.ended_at, life.cause = now, cause
        life.salts.clear()
        if len(self._ended) >= _ENDED_KEPT:
            forgotten = _of_the_most_numerous(self._ended)
            self._ended.remove(forgotten)
            if self._by_id.get(forgotten.id) is forgotten:
                del self._by_id[forgotten.id]
        self._ended.append(life)
        self.changed = True
        end = SpaceEnd(life.space, life.id, cause, by)
        for observer in self._observers:
            observer.on_space_end(end)
        return end


def _key_of(space: PrefixSpace) -> _Key:
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


def _of_the_most_numerous(lives: Collection[Life]) -> Life:
    """The first of the lives of whoever has most: nobody is crowded out by somebody else's many."""
    owners = Counter(life.space.tenant for life in lives)
    owner = max(owners, key=owners.__getitem__)
    return next(life for life in lives if life.space.tenant == owner)


def _outdated(space: PrefixSpace, model: ModelVersion) -> ResetCause | None:
    """Why a space belongs to another version of its model; None if it does not."""
    if (space.tokenizer_id, space.template_version) != (model.tokenizer_id, model.template_version):
        return ResetCause.TEMPLATE_CHANGED
    if (space.adapter, space.context_limit) != (model.adapter, model.context_limit):
        return ResetCause.MODEL_UPDATE
    return None


def _matches(selection: SpaceSelection, owner: str | None, space: PrefixSpace) -> bool:
    """Whether a space is of a selection; ``owner`` is whose spaces ``selection.tenant`` means."""
    return (
        (selection.model is None or selection.model == space.model_id)
        and (selection.tenant is None or owner == space.tenant)
        and (selection.scope is None or selection.scope == space.scope)
        and (
            selection.template_version is None
            or selection.template_version in (space.template_version, label_of(space.template_version))
        )
    )


def template_version(label: str, template_hash: str) -> str:
    """The version of a template: the operator's label and the hash, with a plus between; what there is of them."""
    return f"{label}+{template_hash}" if label and template_hash else label or template_hash


def label_of(version: str) -> str:
    """The operator's label in a ``template_version``."""
    return version.rpartition("+")[0] or version
