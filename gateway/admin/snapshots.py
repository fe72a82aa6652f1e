"""Snapshots of the running gateway's state for the admin port."""

import dataclasses
import functools
import operator
import time
from collections.abc import Callable

from prometheus_client.exposition import choose_encoder

from gateway.canon.pii import PersonalDataScreen
from gateway.core.ids import ModelId
from gateway.core.kv_events import IndexSource
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.index import ReplicaIndex
from gateway.kv_events import KvFeeds
from gateway.stats.hot_prefixes import HotPrefix, HotPrefixes
from gateway.telemetry import MetricCatalog, RecentPredictions, ReplicaGauges, set_replica_gauges


class Snapshots:
    """Reads the components' state; changes nothing.

    Args:
        fleet: The replicas.
        index: The prefix index.
        hot: The hottest prefixes.
        block_size: Tokens per block of the chains with which prompts are looked up at a replica.
        predictions: Accuracy of the index.
        feeds: The KV event feeds.
        screen: Findings of personal data.
        metrics: The metrics.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: ReplicaIndex,
        hot: HotPrefixes,
        block_size: Callable[[Replica], int],
        predictions: RecentPredictions,
        feeds: KvFeeds,
        screen: PersonalDataScreen,
        metrics: MetricCatalog,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._hot = hot
        self._block_size = block_size
        self._predictions = predictions
        self._feeds = feeds
        self._screen = screen
        self._metrics = metrics

    def metrics_page(self, accept: str) -> tuple[bytes, str]:
        """The metrics page and its content type, for an ``accept`` header."""
        now = time.monotonic()
        set_replica_gauges(
            self._metrics,
            [
                ReplicaGauges(r.id, r.model, r.state(now), bool(r.up), r.requests, *self._blocks_and_source(r))
                for r in self._fleet.replicas
            ],
        )
        encode, content_type = choose_encoder(accept)
        return encode(self._metrics.registry), content_type

    def replicas(self) -> list[dict[str, object]]:
        """``GET /admin/api/replicas``."""
        now = time.monotonic()
        accepting = {
            replica.id
            for model in {replica.model for replica in self._fleet.replicas}
            for replica in self._fleet.routable(model, now)
        }
        return [self._replica(replica, now, accepts=replica.id in accepting) for replica in self._fleet.replicas]

    def prefixes(self, model: str, limit: int) -> dict[str, object]:
        """``GET /admin/api/prefixes``: the hottest of a model (empty for all), up to a number."""
        found = self._hot.hottest(model, limit, time.time())
        return {
            "prefixes": [self._prefix(prefix) for prefix in found],
            "half_life_seconds": self._hot.half_life_seconds,
        }

    def personal_data(self, space: str) -> list[dict[str, object]]:
        """Findings in the prompts of a space, for ``GET /admin/api/spaces``."""
        return [
            dataclasses.asdict(report.finding) | {"requests": report.requests, "shared": report.shared}
            for report in self._screen.reports(space)
        ]

    def _blocks_and_source(self, replica: Replica) -> tuple[int, IndexSource]:
        """Blocks over all ranks, and the least reliable source of any rank."""
        states = [self._index.state(target) for target in replica.targets]
        blocks = sum(state.blocks for state in states)
        if all(state.source is IndexSource.EVENTS for state in states):
            return blocks, IndexSource.EVENTS
        # Without reports of cached tokens predictions are never confirmed or corrected.
        return blocks, IndexSource.BLIND if replica.usage_details is False else IndexSource.PREDICTED

    def _prefix(self, prefix: HotPrefix) -> dict[str, object]:
        use = prefix.last_use
        return {
            "id": prefix.id,
            "model": use.model,
            "tenant": use.tenant,
            "source": use.source,
            "tokens": prefix.tokens,
            "requests": round(prefix.requests, 2),
            "reused_tokens": round(prefix.reused_tokens),
            "last_used": round(prefix.last_used, 3),
            "example": use.request_id,
            "held": self._held(prefix),
        }

    def _held(self, prefix: HotPrefix) -> dict[str, int]:
        """Tokens of a prefix that each replica holds, on the rank that holds most. Without replicas that are down, and
        those with blocks of another size: of these nothing can be said by this chain."""
        now = time.monotonic()
        return {
            replica.id: max(each.tokens for each in self._index.holdings([prefix.chain], replica.targets, now))
            for replica in self._fleet.of(ModelId(prefix.last_use.model))
            if replica.up and self._block_size(replica) == prefix.chain.block_size
        }

    def _replica(self, replica: Replica, now: float, *, accepts: bool) -> dict[str, object]:
        rates, facts = replica.speed.rates, replica.facts
        blocks, source = self._blocks_and_source(replica)
        digests = [self._index.state(target).digest for target in replica.targets]
        known = [digest for digest in digests if digest is not None]
        digest = functools.reduce(operator.xor, known) if len(known) == len(digests) else None
        return {
            "id": replica.id,
            "model": replica.model,
            "url": replica.url,
            "region": replica.region,
            "state": str(replica.state(now)),
            "accepts": accepts,
            "up": replica.up,
            "warming": replica.warming,
            "serves_model": not replica.wrong_model,
            "prompt_finding": replica.prompt_finding,
            "draining_because": sorted(replica.drain_causes),
            "failures_in_a_row": replica.breaker.failures,
            "silent_seconds": round(replica.silence.seconds, 1),
            "several_engines": replica.starts.are_several,
            "refusal": replica.refusal,
            "left_out_seconds": round(max(replica.breaker.until - now, 0.0), 1),
            "requests": replica.requests,
            "prefill_tokens_in_flight": replica.prefill_tokens,
            "index": {
                "source": source,
                "blocks": blocks,
                "capacity_blocks": facts.blocks,
                "digest": None if digest is None else f"{digest:016x}",
            },
            "events": [dataclasses.asdict(report) for report in self._feeds.reports(replica.id)],
            "engine": {
                "kind": facts.kind,
                "block_size": facts.block_size,
                "prefix_caching": facts.prefix_caching,
                "usage_details": replica.usage_details,
                "running": facts.running,
                "waiting": facts.waiting,
                "cache_use": facts.cache_use,
                "ranks": len(facts.ranks) or None,
            },
            "learned": {
                "base_ttft_seconds": round(rates.base_seconds, 6),
                "prefill_tokens_per_second": round(1 / rates.prefill_seconds_per_token, 1),
                "decode_seconds_per_token": round(rates.decode_seconds_per_token, 6),
                "request_seconds": round(rates.request_seconds, 6),
            },
            "prediction": dataclasses.asdict(self._predictions.figures(replica.id))
            | {"window_seconds": self._predictions.window_seconds},
        }
