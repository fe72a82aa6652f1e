"""What rooms are told when something becomes of a replica or of its model."""

import time
from dataclasses import dataclass

from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.space import ModelVersion, ResetCause
from gateway.explain.worker import ExplainClient
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.index import ReplicaIndex
from gateway.kv_events import KvFeeds
from gateway.overload import Overload
from gateway.served_models import ServedModels
from gateway.spaces import PrefixSpaces, SpaceKeeper
from gateway.telemetry import MetricsObserver, RecentPredictions
from gateway.warmup import Warmer


@dataclass(frozen=True, slots=True)
class ReplicaEventTargets:
    """Who is told."""

    fleet: Fleet
    index: ReplicaIndex
    feeds: KvFeeds
    keeper: SpaceKeeper
    spaces: PrefixSpaces
    models: ServedModels
    explain: ExplainClient
    overload: Overload
    warmer: Warmer
    counts: MetricsObserver
    predictions: RecentPredictions


class ReplicaEvents:
    """Tells them. Whoever notices something is built before those who are told of it, so ``tie`` comes last.

    Attributes:
        started: Whether all replicas were looked at once.
    """

    _rooms: ReplicaEventTargets

    def __init__(self) -> None:
        self.started = False

    def tie(self, rooms: ReplicaEventTargets) -> None:
        """Tell these; before anything can happen."""
        self._rooms = rooms

    def facts(self, replica: Replica) -> None:
        """Its metrics said something new about what it is."""
        facts = replica.facts
        blocks = {rank.rank: rank.blocks for rank in facts.ranks}
        for target in replica.targets():
            own = blocks.get(target.rank) if len(facts.ranks) > 1 else facts.blocks
            self._rooms.index.set_capacity(target, own, caching=facts.prefix_caching is not False)
        self._rooms.feeds.on_facts(replica.id, facts)

    def emptied(self, replica: Replica, started_at: float | None) -> None:
        """Its cache is empty: it is another process than before, since that Unix time if it is known."""
        self._happened(CacheHistory.RESTARTED, replica)
        for target in replica.targets():
            self._rooms.index.remove(target)
        if started_at is not None:
            self._rooms.feeds.on_restarted(replica.id, started_at)

    def identity(self, replica: Replica, root: str, version: str) -> None:
        """What it runs was read."""
        updated = self._rooms.keeper.engine_seen(replica.id, root, version)
        # What its model list says is part of the version, too: the adapter, the context limit. While replicas are being
        # looked at for the first time, it is not yet known.
        present = self._rooms.models[replica.model].version()
        outdated = self.started and self._rooms.spaces.retire(present, ResetCause.MODEL_UPDATE, time.time())
        if updated or outdated:
            self._warm_again(replica.model)

    def up(self, replica: Replica) -> None:
        """It begins to get requests, or goes on to after a restart."""
        self._happened(CacheHistory.RETURNED, replica)
        self._rooms.overload.freed(replica.model)
        if not replica.draining:
            self._rooms.warmer.joined(replica.id)

    def down(self, replica: Replica) -> None:
        """It gets no more requests."""
        self._happened(CacheHistory.LEFT, replica)
        self._rooms.overload.freed(replica.model)
        self._rooms.warmer.left(replica.id)

    def removed(self, replica: Replica) -> None:
        """It is no more."""
        self._happened(CacheHistory.LEFT, replica)
        self._rooms.warmer.left(replica.id)
        self._rooms.counts.forget_replica(replica.id)
        self._rooms.predictions.forget(replica.id)

    def drained(self, replica: Replica) -> None:
        """It begins to drain, or goes on as before."""
        self._rooms.overload.freed(replica.model)
        if replica.draining:
            self._rooms.warmer.left(replica.id)
        elif replica.up:
            self._rooms.warmer.joined(replica.id)

    def hold(self, replica: ReplicaId, held: bool) -> None:
        """Whether a replica is to take requests only for want of others: its cache is being filled."""
        known = self._rooms.fleet.find(replica)
        if known is not None:
            known.warming = held

    def freed(self, model: ModelId) -> None:
        """Another gateway has less at a replica: what waits here may go there."""
        self._rooms.overload.freed(model)

    def version(self, version: ModelVersion) -> None:
        """A model's tokenizer and template are loaded, for the first time or because they changed."""
        self._rooms.warmer.recount()
        self._rooms.spaces.retire(version, ResetCause.TEMPLATE_CHANGED, time.time())
        self._warm_again(ModelId(version.model_id))

    def _warm_again(self, model: ModelId) -> None:
        """Its replicas' caches are warm for what it was."""
        for replica in self._rooms.fleet.of(model):
            if replica.up and not replica.draining:
                self._rooms.warmer.joined(replica.id)

    def _happened(self, what: CacheHistory, replica: Replica) -> None:
        self._rooms.explain.happened(CacheEvent(what, time.time(), replica.id))
