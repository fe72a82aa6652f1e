"""Passes events of replicas and models on to the components concerned."""

import time
from collections.abc import Callable

from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.core.ids import ModelId
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


class ReplicaEvents:
    """Receives the events of health checks (``HealthObserver``), membership, drains and model versions.

    Args:
        fleet: The replicas.
        index: What they cache.
        feeds: Their event feeds.
        keeper: Records which engine each replica is.
        spaces: The prefix spaces.
        models: The served models.
        explain: Client of the explain worker.
        overload: The request queue.
        warmer: Returns the warmer. It is built last, because it checks its declared prefixes against a filled fleet.
        counts: The metrics.
        predictions: Figures about predictions.

    Attributes:
        started: Whether all replicas were checked once.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: ReplicaIndex,
        feeds: KvFeeds,
        keeper: SpaceKeeper,
        spaces: PrefixSpaces,
        models: ServedModels,
        explain: ExplainClient,
        overload: Overload,
        warmer: Callable[[], Warmer],
        counts: MetricsObserver,
        predictions: RecentPredictions,
    ) -> None:
        self.started = False
        self._fleet = fleet
        self._index = index
        self._feeds = feeds
        self._keeper = keeper
        self._spaces = spaces
        self._models = models
        self._explain = explain
        self._overload = overload
        self._warmer = warmer
        self._counts = counts
        self._predictions = predictions

    def on_facts(self, replica: Replica) -> None:
        """A replica's metrics reported new facts, such as its cache size."""
        facts = replica.facts
        blocks = {rank.rank: rank.blocks for rank in facts.ranks}
        # Of several engines behind one address the next one to answer is not known, and so not what it holds.
        is_cache_known = facts.prefix_caching is not False and not replica.starts.are_several
        for target in replica.targets:
            own = blocks.get(target.rank) if len(facts.ranks) > 1 else facts.blocks
            self._index.set_capacity(target, own, caching=is_cache_known)
        self._feeds.on_facts(replica.id, facts)
        self._models.adapt(replica.model)

    def on_emptied(self, replica: Replica, started_at: float | None) -> None:
        """A replica restarted with an empty cache, at that Unix time if it is known."""
        self._happened(CacheHistory.RESTARTED, replica)
        for target in replica.targets:
            self._index.remove(target)
        if started_at is not None:
            self._feeds.on_restarted(replica.id, started_at)

    def on_identity(self, replica: Replica, root: str, version: str) -> None:
        """A replica reported the model root and the engine version that it runs."""
        updated = self._keeper.engine_seen(replica.id, root, version)
        self._models.adapt(replica.model)
        # Adapter and context limit, from the model list, are part of the version, too. They are unknown until all
        # replicas were checked once.
        present = self._models[replica.model].version()
        outdated = self.started and self._spaces.retire(present, ResetCause.MODEL_UPDATE, time.time())
        if updated or outdated:
            self._warm_again(replica.model)

    def on_up(self, replica: Replica) -> None:
        """A replica begins to get requests, for the first time or after a restart."""
        self._happened(CacheHistory.RETURNED, replica)
        self._overload.on_capacity(replica.model)
        if not replica.draining:
            self._warmer().joined(replica.id)

    def on_down(self, replica: Replica) -> None:
        """A replica failed its health checks and gets no more requests."""
        self._happened(CacheHistory.LEFT, replica)
        self._overload.on_capacity(replica.model)
        self._warmer().left(replica.id)

    def on_sleep(self, replica: Replica, *, asleep: bool) -> None:
        """A replica's engine fell asleep, which discards its cache (vLLM: at every level), or woke."""
        if asleep:
            self._happened(CacheHistory.RESTARTED, replica)
            for target in replica.targets:
                self._index.remove(target)
                self._index.clear(target)
        self.on_drained(replica)

    def on_removed(self, replica: Replica) -> None:
        """A replica was removed."""
        self._happened(CacheHistory.LEFT, replica)
        self._warmer().left(replica.id)
        self._counts.forget_replica(replica.id)
        self._predictions.forget(replica.id)

    def on_drained(self, replica: Replica) -> None:
        """A replica's drain began or ended."""
        self._overload.on_capacity(replica.model)
        if replica.draining:
            self._warmer().left(replica.id)
        elif replica.up:
            self._warmer().joined(replica.id)

    def on_version(self, version: ModelVersion) -> None:
        """A model's tokenizer and template were loaded, for the first time or because they changed."""
        self._warmer().recount()
        self._spaces.retire(version, ResetCause.TEMPLATE_CHANGED, time.time())
        self._warm_again(ModelId(version.model_id))

    def _warm_again(self, model: ModelId) -> None:
        """Warm all replicas of a model again: their caches hold prefixes of the old version."""
        for replica in self._fleet.of(model):
            if replica.up and not replica.draining:
                self._warmer().joined(replica.id)

    def _happened(self, what: CacheHistory, replica: Replica) -> None:
        self._explain.record_event(CacheEvent(what, time.time(), replica.id))
