"""The prefix spaces alive, and what ended. Pure: time comes as an argument, and the file is somebody else's work."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.core.ports import SpaceObserver
from gateway.core.settlement import Settlement
from gateway.core.space import ModelVersion, PrefixSpace, ResetCause, SpaceEnd, SpaceGrant, SpaceSelection
from gateway.core.tenant import Caller, Tenant
from gateway.spaces.epoch_changes import EpochChanges, Reset
from gateway.spaces.epoch_table import EpochTable, SpaceEpochKey, key_of
from gateway.spaces.permitted_fields import check_permitted
from gateway.spaces.resets import EpochFloors, Resets
from gateway.spaces.rules import SpaceRules
from gateway.spaces.salt import client_salt, client_salt_name, engine_salt
from gateway.spaces.selections import matches, outdated
from gateway.spaces.space_epoch import SpaceEpoch, check_number, check_types, life_id, load_life


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
        self._lives = EpochTable()
        self._floors = EpochFloors()
        self._resets = Resets()
        self._last_epoch = 0
        self.changed = False
        """Whether anything is not yet in the file; the one who writes it sets it back."""
        self.changes: EpochChanges | None = None
        """What is not yet told to other gateways; None where there are none. The one who tells takes it out."""

    def configure(self, rules: SpaceRules, now: float) -> None:
        """Go by another configuration from now on; a life's times follow with its next request."""
        if (rules.isolation, rules.secret) != (self._rules.isolation, self._rules.secret):
            for life in self._lives.alive:
                self._drop(life, ResetCause.CONFIGURATION, "", now)
        self._rules = rules

    def enter(self, caller: Caller, model: ModelVersion, fields: Mapping[str, Any], now: float) -> SpaceGrant:
        """The space of a request, and the salt that binds it.

        Args:
            caller: On whose behalf it comes.
            model: The model it is for.
            fields: Its body, parsed: a ``cache_salt`` of the client's narrows the space.
            now: Unix seconds.

        Raises:
            BadRequest: the client's salt cannot be used, or the request carries a field that the caller's may not.
        """
        check_permitted(caller, fields, isolated=self._rules.isolated)
        narrowed_by = client_salt(fields)
        key = self._rules.key(caller, model)
        life = self._lives.take(key)  # and put back below, behind all others
        if life is not None:
            self._rules.set_times(life, caller.tenant)
        if life is not None and (cause := life.over(now)) is not None:
            self._end(life, cause, "", now)
            life = None
        if life is None:
            life = self._begin(key, caller.tenant, now)
        self._lives.put(key, life)
        life.used_at = max(now, life.used_at)
        self.changed = True
        if self.changes is not None:
            self.changes.used.add(life)
        space = life.space
        if not (space.tenant or space.scope or space.epoch or model.template_label or narrowed_by):
            return SpaceGrant(life.id, None, space)
        salt = life.salts.get(narrowed_by)
        if salt is None:
            salt = engine_salt(self._rules.secret, space, narrowed_by)
            life.remember_salt(narrowed_by, salt)
        return SpaceGrant(life.id, salt, space, client_salt_name(self._rules.secret, narrowed_by))

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
        owner = self._rules.owner(tenant) if tenant is not None else None
        selected = [life for life in self._lives.alive if matches(selection, owner, life.space)]
        epoch = self._next_epoch(now)
        if not self._rules.isolated:
            # What is in the engines' caches may have come by another process; only an epoch above keeps it out.
            self._floors.raise_to(selection, epoch)
        if self.changes is not None:
            known = Reset(selection, owner, epoch, cause, by)
            self._resets.remember(known)
            self.changes.resets.append(known)
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
            for life in self._lives.alive
            if life.space.model_id == model.model_id and outdated(life.space, model) is cause
        ]
        return [self._drop(life, cause, "", now) for life in old]

    def expire(self, now: float) -> None:
        """End the lives whose time is over."""
        over = [(life, cause) for life in self._lives.alive if (cause := life.over(now)) is not None]
        for life, cause in over:
            self._drop(life, cause, "", now)

    def tenant_has_spaces(self, tenant: Tenant) -> bool:
        """Whether spaces tell this tenant apart from others at all."""
        return bool(self._rules.owner(tenant))

    def shown(self) -> Iterator[tuple[SpaceEpoch, bool]]:
        """Every living space, most recently used first, then those that ended, latest first; and whether it lives."""
        alive, ended = self._lives.alive, self._lives.ended
        for life in reversed(alive):
            yield life, life.ended_at is None
        for life in reversed(ended):
            yield life, False

    # With other gateways

    @property
    def lives(self) -> Sequence[SpaceEpoch]:
        """Those alive."""
        return self._lives.alive

    @property
    def resets(self) -> Sequence[Reset]:
        """Those that are remembered, this gateway's and others'."""
        return self._resets.known

    def adopt(self, life: SpaceEpoch, now: float) -> bool:
        """Another gateway leads requests into a life: go on with it, unless the one here is newer.

        Returns:
            Whether it may still be of use to anybody.
        """
        space = life.space
        if not self._rules.isolated or not space.tenant:
            return True  # the configurations differ at present
        self._last_epoch = max(self._last_epoch, space.epoch)
        known = self._lives.named(life.id)
        if known is not None:
            known.used_at = max(known.used_at, min(life.used_at, now))
            return known.ended_at is None or known.cause is ResetCause.CROWDED_OUT
        # Clocks differ a little: it cannot have begun, nor been used, later than now.
        life.born_at, life.used_at = min(life.born_at, now), min(life.used_at, now)
        if life.over(now) is not None or self._resets.ended(space):
            return False
        key = key_of(space)
        present = self._lives.find(key)
        if present is not None:
            if present.space.epoch > space.epoch:
                return False
            self._drop(present, ResetCause.MERGED, "", now)
        elif len(self._lives) >= self._rules.max_spaces:
            self._drop(self._lives.one_too_many(), ResetCause.CROWDED_OUT, "", now)
        self._lives.put(key, life)
        self.changed = True
        return True

    def used_elsewhere(self, life_id: str, used_at: float, now: float) -> None:
        """Another gateway led a request into a life."""
        life = self._lives.named(life_id)
        if life is not None and life.ended_at is None:
            life.used_at = max(life.used_at, min(used_at, now))
            self.changed = True

    def take_reset(self, reset: Reset, now: float, *, fresh: bool) -> bool:
        """Lives were reset at another gateway.

        Args:
            reset: Which.
            now: Unix seconds.
            fresh: It has happened just now. Then whatever is alive here began before it, whatever the clocks say.

        Returns:
            Whether it says anything that a later one does not say.
        """
        known = self._resets.same_as(reset)
        if known is not None and known.epoch >= reset.epoch:
            return True
        of_all = self._resets.of_all()
        if of_all is not None and of_all.epoch >= reset.epoch:
            return False
        of_it = [life for life in self.lives if matches(reset.selection, reset.owner, life.space)]
        newest = max((life.space.epoch for life in of_it), default=0)
        if fresh and newest >= reset.epoch:
            # Somebody's clock is ahead. Who has heard of these lives has to end them, too.
            reset = dataclasses.replace(reset, epoch=newest + 1)
            if self.changes is not None:
                self.changes.raised.append(reset)
        self._last_epoch = max(self._last_epoch, reset.epoch)
        self._resets.remember(reset)
        if not self._rules.isolated:
            self._floors.raise_to(reset.selection, reset.epoch)
        for life in of_it:
            if life.space.epoch < reset.epoch:
                self._drop(life, reset.cause, reset.by, now)
        self.changed = True
        return True

    # Observer

    def count(self, settlement: Settlement) -> None:
        """Add a complete answer to the figures of its space, which may have ended meanwhile."""
        life = self._lives.named(settlement.space)
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
        last_epoch, lives, ended, floors = self._last_epoch, self._lives.alive, self._lives.ended, self._floors.all
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
        self._floors = EpochFloors(floors)
        self._lives.restore(lives, ended)
        self.expire(now)

    def _begin(self, key: SpaceEpochKey, tenant: Tenant, now: float) -> SpaceEpoch:
        if len(self._lives) >= self._rules.max_spaces:
            self._drop(self._lives.one_too_many(), ResetCause.CROWDED_OUT, "", now)
        space = PrefixSpace(*key, epoch=0)
        epoch = self._next_epoch(now) if self._rules.isolated else self._floors.under(space)
        space = dataclasses.replace(space, epoch=epoch)
        life = SpaceEpoch(space=space, id=life_id(space), born_at=now, used_at=now)
        self._rules.set_times(life, tenant)
        if self.changes is not None:
            self.changes.begun.append(life)
        return life

    def _next_epoch(self, now: float) -> int:
        self._last_epoch = max(self._last_epoch + 1, int(now * 1e6))
        return self._last_epoch

    def _drop(self, life: SpaceEpoch, cause: ResetCause, by: str, now: float) -> SpaceEnd:
        self._lives.take(key_of(life.space))
        return self._end(life, cause, by, now)

    def _end(self, life: SpaceEpoch, cause: ResetCause, by: str, now: float) -> SpaceEnd:
        self._lives.end(life, cause, now)
        self.changed = True
        if self.changes is not None:
            self.changes.ended.append(life)
        end = SpaceEnd(life.space, life.id, cause, by)
        for observer in self._observers:
            observer.on_space_end(end)
        return end
