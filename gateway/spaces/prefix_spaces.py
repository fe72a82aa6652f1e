"""The prefix spaces and their epochs. Pure: time is an argument, and ``keeper`` writes the file."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.core.ports import SpaceObserver
from gateway.core.settlement import Refusal, Settlement
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
    epoch_id,
    key_of,
    load_epoch,
)


class PrefixSpaces:
    """Assigns every request to its space and current epoch. An ``Observer``: answers count for their epoch.

    With isolation, or where epochs expire, an unknown space starts an epoch number that was never used before. So any
    loss of state (a reset, an expiry, a lost file, one space too many) makes cached prefixes unreachable, and never
    makes ended ones reachable.

    Otherwise spaces have epoch 0 and no salt until a reset; resets are then kept as floors below which no epoch of the
    selected spaces may start. Scopes, template labels and clients' own salts are effective in both modes.

    Args:
        rules: The configuration.
        observers: Notified of epochs that end.
    """

    def __init__(self, rules: SpaceRules, observers: Sequence[SpaceObserver] = ()) -> None:
        self._rules = rules
        self._observers = observers
        self._epochs = EpochTable()
        self._floors = EpochFloors()
        self._resets = Resets()
        self._last_epoch = 0
        self.changed = False
        """Whether there are changes that are not in the file; cleared by the writer."""
        self.changes: EpochChanges | None = None
        """Changes that are not yet sent to other gateways; None without any. The sender replaces it."""

    def configure(self, rules: SpaceRules, now: float) -> None:
        """Apply another configuration; an epoch gets its new TTLs with its next request."""
        before = self._rules
        if (rules.isolation, rules.secret, rules.numbered) != (before.isolation, before.secret, before.numbered):
            if before.numbered and not before.isolated:
                # Epochs may start at 0 again: a floor keeps what was cached before the numbered ones unreachable.
                self.reset(SpaceSelection(), ResetCause.CONFIGURATION, now)
            else:
                for space_epoch in self._epochs.alive:
                    self._drop(space_epoch, ResetCause.CONFIGURATION, "", now)
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
        rules = self._rules
        if rules.isolated or caller.models is not None:
            check_permitted(caller, fields, isolated=rules.isolated)
        narrowed_by = client_salt(fields) if "cache_salt" in fields else ""
        key = rules.key(caller, model)
        space_epoch = self._epochs.use(key)
        if space_epoch is not None and rules.numbered:  # others do not expire
            space_epoch = self._unless_over(space_epoch, caller, now)
        if space_epoch is None:
            space_epoch = self._begin(key, caller, now)
        space_epoch.used_at = max(space_epoch.used_at, now)
        self.changed = True
        if self.changes is not None:
            self.changes.used.add(space_epoch)
        grant = space_epoch.grants.get((model.template_label, narrowed_by))
        if grant is None:
            grant = self._grant(space_epoch, model, narrowed_by)
            space_epoch.remember_grant((model.template_label, narrowed_by), grant)
        return grant

    def reset(
        self, selection: SpaceSelection, cause: ResetCause, now: float, *, by: str = "", tenant: Tenant | None = None
    ) -> list[SpaceEnd]:
        """End the epochs of all spaces of a selection.

        Args:
            selection: The spaces.
            cause: The reason.
            now: Unix seconds.
            by: The operator who requested it.
            tenant: The tenant that ``selection.tenant`` names.
        """
        owner = self._rules.owner(tenant) if tenant is not None else None
        selected = [space_epoch for space_epoch in self._epochs.alive if matches(selection, owner, space_epoch.space)]
        epoch = self._next_epoch(now)
        if not self._rules.isolated:
            # Cached prefixes may be from another process; only a higher epoch makes them unreachable.
            self._floors.raise_to(selection, epoch)
        known = Reset(selection, owner, epoch, cause, by)
        self._resets.remember(known)
        if self.changes is not None:
            self.changes.resets.append(known)
        ends = [self._drop(space_epoch, cause, by, now) for space_epoch in selected]
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
            space_epoch
            for space_epoch in self._epochs.alive
            if space_epoch.space.model_id == model.model_id and outdated(space_epoch.space, model) is cause
        ]
        return [self._drop(space_epoch, cause, "", now) for space_epoch in old]

    def expire(self, now: float) -> None:
        """End the epochs that have expired."""
        over = [
            (space_epoch, cause) for space_epoch in self._epochs.alive if (cause := space_epoch.over(now)) is not None
        ]
        for space_epoch, cause in over:
            self._drop(space_epoch, cause, "", now)

    def expiring(self, now: float, share: float) -> list[PrefixSpace]:
        """Spaces whose idle time is over soon: in its last ``share``. Not those that reach their maximum age first."""
        return [
            space_epoch.space
            for space_epoch in self._epochs.alive
            if (ttl := space_epoch.idle_ttl_seconds) is not None
            and now - space_epoch.used_at >= (1 - share) * ttl
            and space_epoch.expires_at == space_epoch.used_at + ttl
        ]

    def owner(self, tenant: Tenant) -> str:
        """The owner of a tenant's spaces; empty if all tenants share them."""
        return self._rules.owner(tenant)

    def tenant_has_spaces(self, tenant: Tenant) -> bool:
        """Whether this tenant has spaces of its own."""
        return bool(self._rules.owner(tenant))

    def shown(self) -> Iterator[tuple[SpaceEpoch, bool]]:
        """Epochs alive, most recently used first, then ended ones, latest first; each with whether it is alive."""
        alive, ended = self._epochs.alive, self._epochs.ended
        for space_epoch in reversed(alive):
            yield space_epoch, space_epoch.ended_at is None
        for space_epoch in reversed(ended):
            yield space_epoch, False

    # Replication

    @property
    def numbered(self) -> bool:
        """Whether gateways have to agree on epochs; otherwise they follow from resets."""
        return self._rules.numbered

    @property
    def epochs(self) -> Sequence[SpaceEpoch]:
        """Epochs alive."""
        return self._epochs.alive

    @property
    def resets(self) -> Sequence[Reset]:
        """Remembered resets, of this gateway and of others."""
        return self._resets.known

    def adopt(self, space_epoch: SpaceEpoch, now: float) -> bool:
        """Another gateway uses an epoch: adopt it, unless the one here is newer.

        Returns:
            Whether the epoch is still valid.
        """
        space = space_epoch.space
        if not self._rules.numbered or bool(space.tenant) is not self._rules.isolated:
            return True  # the configurations differ
        self._last_epoch = max(self._last_epoch, space.epoch)
        known = self._epochs.by_id.get(space_epoch.id)
        if known is not None:
            known.used_at = max(known.used_at, min(space_epoch.used_at, now))
            return known.ended_at is None or known.cause is ResetCause.CROWDED_OUT
        # Clocks differ a little: it cannot have begun, nor been used, later than now.
        space_epoch.born_at, space_epoch.used_at = min(space_epoch.born_at, now), min(space_epoch.used_at, now)
        if space_epoch.over(now) is not None or self._resets.ended(space):
            return False
        key = key_of(space)
        present = self._epochs.find(key)
        if present is not None:
            if present.space.epoch > space.epoch:
                return False
            self._drop(present, present.over(now) or ResetCause.MERGED, "", now)
        elif len(self._epochs) >= self._rules.max_spaces:
            self._drop(self._epochs.one_too_many(), ResetCause.CROWDED_OUT, "", now)
        self._epochs.put(key, space_epoch)
        self.changed = True
        return True

    def used_elsewhere(self, epoch_id: str, used_at: float, now: float) -> None:
        """Another gateway used an epoch."""
        space_epoch = self._epochs.by_id.get(epoch_id)
        if space_epoch is not None and space_epoch.ended_at is None:
            space_epoch.used_at = max(space_epoch.used_at, min(used_at, now))
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
        of_it = [space_epoch for space_epoch in self.epochs if matches(reset.selection, reset.owner, space_epoch.space)]
        newest = max((space_epoch.space.epoch for space_epoch in of_it), default=0)
        if fresh and newest >= reset.epoch:
            # The clock of a gateway is ahead. All gateways that received these epochs have to end them, too.
            reset = dataclasses.replace(reset, epoch=newest + 1)
            if self.changes is not None:
                self.changes.raised.append(reset)
        self._last_epoch = max(self._last_epoch, reset.epoch)
        self._resets.remember(reset)
        if not self._rules.isolated:
            self._floors.raise_to(reset.selection, reset.epoch)
        for space_epoch in of_it:
            if space_epoch.space.epoch < reset.epoch:
                self._drop(space_epoch, reset.cause, reset.by, now)
        self.changed = True
        return True

    # Observer

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``: add a client's answer to the totals of its epoch, which may have ended meanwhile."""
        if settlement.status != 200 or settlement.warming or not settlement.has_prompt:
            return
        space_epoch = self._epochs.by_id.get(settlement.space)
        if space_epoch is None:
            return
        figures = space_epoch.figures
        figures.requests += 1
        figures.prompt_tokens += settlement.prompt_tokens
        figures.cached_tokens += settlement.cached_tokens or 0
        figures.saved_prefill_seconds += settlement.saved_prefill_seconds
        self.changed = True

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""

    # For the file

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state to store, as it is now. The returned function converts it to JSON types, for ``load``; this takes a
        millisecond for a hundred spaces and may run in a thread."""
        last_epoch, epochs, ended, floors = self._last_epoch, self._epochs.alive, self._epochs.ended, self._floors.all
        return lambda: {
            "last_epoch": last_epoch,
            "lives": [space_epoch.dump() for space_epoch in epochs],
            "ended": [space_epoch.dump() for space_epoch in ended],
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
        epochs = [load_epoch(each) for each in dumped["lives"]]
        ended = [load_epoch(each) for each in dumped["ended"]]
        floors = {SpaceSelection(**selection): check_number(int(epoch)) for selection, epoch in dumped["floors"]}
        for selection in floors:
            check_types(selection)
        self._last_epoch = max([last_epoch, *(space_epoch.space.epoch for space_epoch in epochs), *floors.values()])
        self._floors = EpochFloors(floors)
        self._epochs.restore(epochs, ended)
        if not self._rules.numbered and any(
            not space_epoch.space.tenant and space_epoch.space.epoch > self._floors.under(space_epoch.space)
            for space_epoch in (*epochs, *ended)
        ):
            # They expired in the previous process, and would start at 0 now, as they may have done before that.
            self.reset(SpaceSelection(), ResetCause.CONFIGURATION, now)
        self.expire(now)

    def _grant(self, space_epoch: SpaceEpoch, model: ModelVersion, narrowed_by: str) -> SpaceGrant:
        space, secret = space_epoch.space, self._rules.secret
        if not (space.tenant or space.scope or space.prompt or space.epoch or model.template_label or narrowed_by):
            return SpaceGrant(space_epoch.id, None, space)
        salt = engine_salt(secret, space, narrowed_by)
        return SpaceGrant(space_epoch.id, salt, space, client_salt_name(secret, narrowed_by))

    def _unless_over(self, space_epoch: SpaceEpoch, caller: Caller, now: float) -> SpaceEpoch | None:
        """An epoch with the TTLs of the present configuration; None if it ends by these."""
        self._rules.set_times(space_epoch, caller)
        if (cause := space_epoch.over(now)) is None:
            return space_epoch
        self._drop(space_epoch, cause, "", now)
        return None

    def _begin(self, key: SpaceEpochKey, caller: Caller, now: float) -> SpaceEpoch:
        if len(self._epochs) >= self._rules.max_spaces:
            self._drop(self._epochs.one_too_many(), ResetCause.CROWDED_OUT, "", now)
        space = PrefixSpace(*key[:-1], epoch=0, prompt=key[-1])
        epoch = self._next_epoch(now) if self._rules.numbered else self._floors.under(space)
        space = dataclasses.replace(space, epoch=epoch)
        space_epoch = SpaceEpoch(space=space, id=epoch_id(space), born_at=now, used_at=now)
        self._rules.set_times(space_epoch, caller)
        self._epochs.put(key, space_epoch)
        if self.changes is not None:
            self.changes.begun.append(space_epoch)
        return space_epoch

    def _next_epoch(self, now: float) -> int:
        self._last_epoch = max(self._last_epoch + 1, int(now * 1e6))
        return self._last_epoch

    def _drop(self, space_epoch: SpaceEpoch, cause: ResetCause, by: str, now: float) -> SpaceEnd:
        self._epochs.end(space_epoch, cause, now)
        self.changed = True
        if self.changes is not None:
            self.changes.ended.append(space_epoch)
        end = SpaceEnd(space_epoch.space, space_epoch.id, cause, by)
        for observer in self._observers:
            observer.on_space_end(end)
        return end
