"""Passes events of replicas and models on to the components concerned."""

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
    """The components that get the events."""

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
    """Receives the events. Event sources are built before the components concerned, so ``connect`` comes last.

    Attributes:
        started: Whether all replicas were checked once.
    """

    _targets: ReplicaEventTargets

    def __init__(self) -> None:
        self.started = False

    def connect(self, targets: ReplicaEventTargets) -> None:
        """Set the components that get events; before the first event."""
        self._targets = targets

    def facts(self, replica: Replica) -> None:
        """A replica's metrics reported new facts, such as its cache size."""
        facts = replica.facts
        blocks = {rank.rank: rank.blocks for rank in facts.ranks}
        for target in replica.targets():
            own = blocks.get(target.rank) if len(facts.ranks) > 1 else facts.blocks
            self._targets.index.set_capacity(target, own, caching=facts.prefix_caching is not False)
        self._targets.feeds.on_facts(replica.id, facts)

    def emptied(self, replica: Replica, started_at: float | None) -> None:
        """A replica restarted with an empty cache, at that Unix time if it is known."""
        self._happened(CacheHistory.RESTARTED, replica)
        for target in replica.targets():
            self._targets.index.remove(target)
        if started_at is not None:
            self._targets.feeds.on_restarted(replica.id, started_at)

    def identity(self, replica: Replica, root: str, version: str) -> None:
        """A replica reported the model root and the engine version that it runs."""
        updated = self._targets.keeper.engine_seen(replica.id, root, version)
        # Adapter and context limit, from the model list, are part of the version, too. They are unknown until all
        # replicas were checked once.
        present = self._targets.models[replica.model].version()
        outdated = self.started and self._targets.spaces.retire(present, ResetCause.MODEL_UPDATE, time.time())
        if updated or outdated:
            self._warm_again(replica.model)

    def up(self, replica: Replica) -> None:
        """A replica begins to get requests, for the first time or after a restart."""
        self._happened(CacheHistory.RETURNED, replica)
        self._targets.overload.on_capacity(replica.model)
        if not replica.draining:
            self._targets.warmer.joined(replica.id)

    def down(self, replica: Replica) -> None:
        """A replica failed its health checks and gets no more requests."""
        self._happened(CacheHistory.LEFT, replica)
        self._targets.overload.on_capacity(replica.model)
        self._targets.warmer.left(replica.id)

    def removed(self, replica: Replica) -> None:
        """A replica was removed."""
        self._happened(CacheHistory.LEFT, replica)
        self._targets.warmer.left(replica.id)
        self._targets.counts.forget_replica(replica.id)
        self._targets.predictions.forget(replica.id)

    def drained(self, replica: Replica) -> None:
        """A replica's drain began or ended."""
        self._targets.overload.on_capacity(replica.model)
        if replica.draining:
            self._targets.warmer.left(replica.id)
        elif replica.up:
            self._targets.warmer.joined(replica.id)

    def hold(self, replica: ReplicaId, held: bool) -> None:
        """Begin or end the warm-up of a replica: meanwhile it gets requests only if no other replica can."""
        known = self._targets.fleet.find(replica)
        if known is not None:
            known.warming = held

    def on_capacity(self, model: ModelId) -> None:
        """Another gateway has less load at a replica: requests queued here may go there."""
        self._targets.overload.on_capacity(model)

    def version(self, version: ModelVersion) -> None:
        """A model's tokenizer and template were loaded, for the first time or because they changed."""
        self._targets.warmer.recount()
        self._targets.spaces.retire(version, ResetCause.TEMPLATE_CHANGED, time.time())
        self._warm_again(ModelId(version.model_id))

    def _warm_again(self, model: ModelId) -> None:
        """Warm all replicas of a model again: their caches hold prefixes of the old version."""
        for replica in self._targets.fleet.of(model):
            if replica.up and not replica.draining:
                self._targets.warmer.joined(replica.id)

    def _happened(self, what: CacheHistory, replica: Replica) -> None:
        self._targets.explain.record_event(CacheEvent(what, time.time(), replica.id))
