"""Builds the gateway from its settings. The only place that constructs the rooms and ties them together."""

import asyncio
import dataclasses
import functools
import operator
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI
from prometheus_client.exposition import choose_encoder

from gateway.api import PublicApp
from gateway.api.routes import Catalog as ModelCatalog
from gateway.encode import Encoder, LocalEncoder, load_local
from gateway.encode.remote import EngineTokenizer
from gateway.flow import Flow, FlowLimits
from gateway.hashing import ChainHasher
from gateway.index import ReplicaIndex
from gateway.ingest import FeedPlan, KvFeeds
from gateway.placement import Chooser, LearnedRates
from gateway.relay import EngineCalls, Fleet, Forwarder, HealthEvents, HealthMonitor, HttpClient, Replica
from gateway.settings import ModelSettings, Settings
from gateway.tasks import TaskGroupOwner, in_daemon_thread
from gateway.telemetry import Catalog, MetricsObserver, ReplicaGauges, RequestLog, set_replica_gauges
from gateway.trip import ServedModel
from gateway.ui import AdminState, build_admin
from gateway.values.errors import TokenizerUnavailable
from gateway.values.ids import ModelId, ReplicaId
from gateway.values.kv_events import IndexSource, Medium
from gateway.values.load import Rates
from gateway.values.ports import Observer

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One gateway: two ASGI applications and what runs behind them.

    Attributes:
        public: Application of the public port.
        admin: Application of the admin port.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.encode.threads, thread_name_prefix="encode")
        self._client = HttpClient(settings.relay.connect_timeout_seconds)
        self._fleet = Fleet(replica for model in settings.models for replica in _replicas(model, settings))
        self._hasher = ChainHasher()
        self._engines = EngineCalls(self._fleet, self._client, settings.relay.suspect_seconds)
        model_of = {replica.id: replica.model for replica in self._fleet.replicas}
        self._index = ReplicaIndex(
            self._hasher,
            model_of.__getitem__,
            {Medium.GPU: 1.0, Medium.CPU: settings.index.cpu_worth, Medium.DISK: settings.index.disk_worth},
            default_blocks=settings.index.default_blocks,
            speculative_ttl_seconds=settings.index.speculative_ttl_seconds,
        )
        self._health = HealthMonitor(
            self._fleet,
            self._client,
            HealthEvents(on_facts=self._take_facts, on_emptied=self._empty),
            interval_seconds=settings.relay.health_interval_seconds,
            timeout_seconds=settings.relay.health_timeout_seconds,
            unhealthy_after=settings.relay.unhealthy_after,
        )
        self._metrics = Catalog()
        self._tasks = TaskGroupOwner()
        self._models = {ModelId(model.id): self._served(model, None) for model in settings.models}
        counts = MetricsObserver(self._metrics)
        self._feeds = KvFeeds(_feed_plans(settings), self._index, self._engines, counts, settings.ingest)
        observers: list[Observer] = [counts, self._feeds]
        if settings.log.requests:
            observers.append(RequestLog())
        flow = self._build_flow(observers)
        started_at = int(time.time())
        self.public = PublicApp(
            flow,
            ModelCatalog(
                models=[model.id for model in settings.models],
                card=lambda model: next((r.card for r in self._fleet.of(ModelId(model)) if r.card), None),
                ready=lambda model: self._fleet.ready(ModelId(model)),
                started_at=started_at,
            ),
            observers=observers,
            max_body_bytes=settings.server.max_body_bytes,
            max_json_depth=settings.server.max_json_depth,
        )
        token = settings.server.admin_token
        self.admin: FastAPI = build_admin(
            AdminState(metrics=self._metrics_page, replicas=self._replica_states, config=settings.masked()),
            token.get_secret_value() if token else None,
        )

    async def start(self) -> None:
        """Load the tokenizers and begin watching the replicas. Returns when both are done once.

        A tokenizer that takes longer than ``encode.load_timeout_seconds`` (a hub that does not answer) is not waited
        for: the engine is asked for tokens until it is there.
        """
        self._feeds.start()
        self._health.start()
        loading = [
            self._tasks.spawn(self._load(model), name=f"tokenizer-{model.id}") for model in self._settings.models
        ]
        await asyncio.wait(loading, timeout=self._settings.encode.load_timeout_seconds)
        for model, task in zip(self._settings.models, loading, strict=True):
            if not task.done():
                _log.warning("tokenizer_late", model=model.id, instead="the engine is asked for every prompt's tokens")
        await self._health.wait_for_first_round()

    async def stop(self) -> None:
        """Stop watching, and close all connections to the replicas."""
        await self._tasks.cancel()
        await self._health.stop()
        await self._feeds.stop()
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _build_flow(self, observers: Sequence[Observer]) -> Flow:
        settings = self._settings
        return Flow(
            models=self._models,
            hasher=self._hasher,
            index=self._index,
            chooser=Chooser(
                settings.placement.policy,
                settings.placement.miss_weight,
                settings.placement.tie_margin,
                settings.placement.slots,
            ),
            fleet=self._fleet,
            forwarder=Forwarder(
                self._client,
                forward_authorization=settings.relay.forward_authorization,
                first_byte_timeout_seconds=settings.relay.first_byte_timeout_seconds,
                chunk_timeout_seconds=settings.relay.chunk_timeout_seconds,
                max_answer_bytes=settings.index.max_reply_bytes,
            ),
            observers=observers,
            limits=FlowLimits(
                default_block_size=settings.index.default_block_size,
                suspect_seconds=settings.relay.suspect_seconds,
                connect_retries=settings.relay.connect_retries,
            ),
        )

    async def _load(self, model: ModelSettings) -> None:
        local = await in_daemon_thread(lambda: self._load_tokenizer(model), name=f"tokenizer-{model.id}")
        if local is not None:
            self._models[ModelId(model.id)] = self._served(model, local)

    def _served(self, model: ModelSettings, local: LocalEncoder | None) -> ServedModel:
        model_id = ModelId(model.id)
        engine = EngineTokenizer(model_id, self._engines, self._settings.encode.engine_timeout_seconds)
        encoder = Encoder(local, engine, self._threads, self._settings.encode.inline_bytes)
        return ServedModel(model_id, encoder, lambda salt, variant: self._root(model_id, salt, variant))

    def _root(self, model: ModelId, salt: str, variant: str) -> int:
        """Where a prompt's chain begins: with what the engine tells its cached blocks apart by."""
        return self._hasher.root(model, self._fleet.adapter(model), salt, variant)

    def _load_tokenizer(self, model: ModelSettings) -> LocalEncoder | None:
        if model.tokenizer == "engine":
            _log.info("tokenizer_ready", model=model.id, tokenizer_backend="engine")
            return None
        try:
            local = load_local(
                model.tokenizer,
                chat_template=model.chat_template.read_text(encoding="utf-8") if model.chat_template else None,
                template_arguments=model.chat_template_kwargs,
                content_format=None if model.content_format == "auto" else model.content_format,
                cache_mib=self._settings.encode.segment_cache_mib,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine can be asked instead
            _log.error(
                "tokenizer_unavailable",
                model=model.id,
                tokenizer=model.tokenizer,
                problem=str(error) if isinstance(error, TokenizerUnavailable) else repr(error),
                instead="the engine is asked for every prompt's tokens",
                fix="give models[].tokenizer a folder with the model's tokenizer files",
            )
            return None
        _log.info(
            "tokenizer_ready",
            model=model.id,
            tokenizer=model.tokenizer,
            tokenizer_id=local.tokenizer_id,
            **local.description,
        )
        return local

    def _take_facts(self, replica: Replica) -> None:
        facts = replica.facts
        blocks = {rank.rank: rank.blocks for rank in facts.ranks}
        for target in replica.targets():
            own = blocks.get(target.rank) if len(facts.ranks) > 1 else facts.blocks
            self._index.set_capacity(target, own, caching=facts.prefix_caching is not False)
        self._feeds.on_facts(replica.id, facts)

    def _empty(self, replica: Replica, started_at: float | None) -> None:
        for target in replica.targets():
            self._index.remove(target)
        if started_at is not None:
            self._feeds.on_restarted(replica.id, started_at)

    def _metrics_page(self, accept: str) -> tuple[bytes, str]:
        set_replica_gauges(
            self._metrics,
            [
                ReplicaGauges(r.id, r.model, bool(r.up), r.requests, *self._blocks_and_source(r))
                for r in self._fleet.replicas
            ],
        )
        encode, content_type = choose_encoder(accept)
        return encode(self._metrics.registry), content_type

    def _blocks_and_source(self, replica: Replica) -> tuple[int, IndexSource]:
        """Blocks over all ranks, and the least that the belief about any of them rests on."""
        states = [self._index.state(target) for target in replica.targets()]
        blocks = sum(state.blocks for state in states)
        if all(state.source is IndexSource.EVENTS for state in states):
            return blocks, IndexSource.EVENTS
        # Without a report of cached tokens nothing ever confirms or corrects a prediction.
        return blocks, IndexSource.BLIND if replica.usage_details is False else IndexSource.PREDICTED

    def _replica_states(self) -> list[dict[str, object]]:
        return [self._replica_state(replica) for replica in self._fleet.replicas]

    def _replica_state(self, replica: Replica) -> dict[str, object]:
        rates, facts = replica.speed.rates, replica.facts
        blocks, source = self._blocks_and_source(replica)
        digests = [self._index.state(target).digest for target in replica.targets()]
        known = [digest for digest in digests if digest is not None]
        digest = functools.reduce(operator.xor, known) if len(known) == len(digests) else None
        return {
            "id": replica.id,
            "model": replica.model,
            "url": replica.url,
            "state": {None: "starting", True: "ready", False: "down"}[replica.up],
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
        }


def _replicas(model: ModelSettings, settings: Settings) -> Iterator[Replica]:
    start = settings.placement
    rates = Rates(
        base_seconds=start.base_ttft_seconds,
        prefill_seconds_per_token=1 / start.prefill_tokens_per_second,
        decode_seconds_per_token=start.decode_seconds_per_token,
        request_seconds=start.base_ttft_seconds + 100 * start.decode_seconds_per_token,
    )
    pool = LearnedRates(rates)
    for replica in model.replicas:
        yield Replica(
            ReplicaId(replica.id),
            replica.url,
            ModelId(model.id),
            LearnedRates(rates, pool),
            authorization=f"Bearer {replica.api_key.get_secret_value()}".encode() if replica.api_key else None,
        )


def _feed_plans(settings: Settings) -> dict[ReplicaId, FeedPlan]:
    return {
        ReplicaId(replica.id): FeedPlan(urlsplit(replica.url).hostname or "", replica.events, replica.replay)
        for model in settings.models
        for replica in model.replicas
    }
