"""The prefix spaces and their epochs. Pure: time is an argument, and ``keeper`` writes the file."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.core.ports import SpaceObserver
from gateway.core.settlement import Settlement
from gateway.core.space import ModelVersion, PrefixSpace, ResetCause, SpaceEnd, SpaceGrant, SpaceSelection
from gateway.core.tenant import Caller, Tenant
from gateway.spaces.resets import EpochChanges, EpochFloors, Reset, Resets
from gateway.spaces.rules import SpaceRules, check_permitted, matches, outdated
from gateway.spaces.salt import client_salt, client_salt_name, engine_salt
from gateway.spaces.space_epoch import (
    EpochTable,
    SpaceEpoch,
    SpaceEpochKey,
    check_number,
    check_types,
    key_of,
    life_id,
    load_life,
)


class PrefixSpaces:
    """Assigns every request to its space and current epoch.

    With isolation, an unknown space starts an epoch number that was never used before. So any loss of state (a reset,
    an expiry, a lost file, one space too many) makes cached prefixes unreachable, and never makes ended ones reachable.

    Without isolation, spaces have epoch 0 and no salt until a reset; resets are then kept as floors below which no
    epoch of the selected spaces may start. Scopes, template labels and clients' own salts are effective in both modes.

    Args:
        rules: The configuration.
        observers: Notified of epochs that end.
    """

    def __init__(self, rules: SpaceRules, observers: Sequence[SpaceObserver] = ()) -> None:
        self._rules = rules
        self._observers = observers
        self._lives = EpochTable()
        self._floors = EpochFloors()
        self._resets = Resets()
        self._last_epoch = 0
        self.changed = False
        """Whether there are changes that are not in the file; cleared by the writer."""
        self.changes: EpochChanges | None = None
        """Changes that are not yet sent to other gateways; None without any. The sender replaces it."""

    def configure(self, rules: SpaceRules, now: float) -> None:
        """Apply another configuration; an epoch gets its new TTLs with its next request."""
        if (rules.isolation, rules.secret) != (self._rules.isolation, self._rules.secret):
            for life in self._lives.alive:
                self._drop(life, ResetCause.CONFIGURATION, "", now)
        self._rules = rules

    def enter(self, caller: Caller, model: ModelVersion, fields: Mapping[str, Any], now: float) -> SpaceGrant:
        """The space of a request, and the salt that binds it.

        Args:
            caller: The caller of the request.
            model: The model it is for.
            fields: Its body, parsed: a ``cache_salt`` of the client's narrows the space.
            now: Unix seconds.

        Raises:
            BadRequest: the client's salt is invalid, or the caller may not use a field of the request.
        """
        check_permitted(caller, fields, isolated=self._rules.isolated)
        narrowed_by = client_salt(fields)
        key = self._rules.key(caller, model)
        life = self._lives.take(key)  # put back below as the most recently used
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
            selection: The spaces.
            cause: The reason.
            now: Unix seconds.
            by: The operator who requested it.
            tenant: The tenant that ``selection.tenant`` names.
        """
        owner = self._rules.owner(tenant) if tenant is not None else None
        selected = [life for life in self._lives.alive if matches(selection, owner, life.space)]
        epoch = self._next_epoch(now)
        if not self._rules.isolated:
            # Cached prefixes may be from another process; only a higher epoch makes them unreachable.
            self._floors.raise_to(selection, epoch)
        if self.changes is not None:
            known = Reset(selection, owner, epoch, cause, by)
            self._resets.remember(known)
            self.changes.resets.append(known)
        ends = [self._drop(life, cause, by, now) for life in selected]
        self.changed = True
        return ends

    def retire(self, model: ModelVersion, cause: ResetCause, now: float) -> list[SpaceEnd]:
        """End the epochs of other versions of a model than the current one, which no request uses now.

        Args:
            model: The current version.
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
        """End the epochs that have expired."""
        over = [(life, cause) for life in self._lives.alive if (cause := life.over(now)) is not None]
        for life, cause in over:
            self._drop(life, cause, "", now)

    def tenant_has_spaces(self, tenant: Tenant) -> bool:
        """Whether this tenant has spaces of its own."""
        return bool(self._rules.owner(tenant))

    def shown(self) -> Iterator[tuple[SpaceEpoch, bool]]:
        """Epochs alive, most recently used first, then ended ones, latest first; each with whether it is alive."""
        alive, ended = self._lives.alive, self._lives.ended
        for life in reversed(alive):
            yield life, life.ended_at is None
        for life in reversed(ended):
            yield life, False

    # Replication

    @property
    def lives(self) -> Sequence[SpaceEpoch]:
        """Epochs alive."""
        return self._lives.alive

    @property
    def resets(self) -> Sequence[Reset]:
        """Remembered resets, of this gateway and of others."""
        return self._resets.known

    def adopt(self, life: SpaceEpoch, now: float) -> bool:
        """Another gateway uses an epoch: adopt it, unless the one here is newer.

        Returns:
            Whether the epoch is still valid.
        """
        space = life.space
        if not self._rules.isolated or not space.tenant:
            return True  # the configurations differ
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
        """Another gateway used an epoch."""
        life = self._lives.named(life_id)
        if life is not None and life.ended_at is None:
            life.used_at = max(life.used_at, min(used_at, now))
            self.changed = True

    def take_reset(self, reset: Reset, now: float, *, fresh: bool) -> bool:
        """Apply a reset of another gateway.

        Args:
            reset: The reset.
            now: Unix seconds.
            fresh: It has just been made, so all epochs alive here began before it, even if clocks differ.

        Returns:
            Whether no later reset supersedes it.
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
            # The clock of a gateway is ahead. All gateways that received these epochs have to end them, too.
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
        """Add a complete answer to the totals of its epoch, which may have ended meanwhile."""
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
        """The state to store, as it is now. The returned function converts it to JSON types, for ``load``; this takes a
        millisecond for a hundred spaces and may run in a thread."""
        last_epoch, lives, ended, floors = self._last_epoch, self._lives.alive, self._lives.ended, self._floors.all
        return lambda: {
            "last_epoch": last_epoch,
            "lives": [life.dump() for life in lives],
            "ended": [life.dump() for life in ended],
            "floors": [[asdict(selection), epoch] for selection, epoch in floors.items()],
        }

    def dump(self) -> dict[str, Any]:
        """``snapshot``, converted at once."""
        return self.snapshot()()

    def load(self, dumped: Mapping[str, Any], now: float) -> None:
        """Restore the state of a previous process.

        Raises:
            KeyError, TypeError, ValueError: ``dumped`` is malformed.
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
