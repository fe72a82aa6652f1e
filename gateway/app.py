"""Builds the gateway from its settings. The only place that constructs the rooms and ties them together."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from fastapi import FastAPI
from prometheus_client.exposition import choose_encoder

from gateway.api import PublicApp
from gateway.api.routes import Catalog as ModelCatalog
from gateway.encode import Encoder, LocalEncoder, load_local
from gateway.encode.remote import EngineTokenizer
from gateway.flow import Flow, FlowLimits
from gateway.hashing import ChainHasher, space_root
from gateway.index import PredictedIndex
from gateway.placement import Chooser, LearnedRates
from gateway.relay import EngineCalls, Fleet, Forwarder, HealthEvents, HealthMonitor, HttpClient, Replica
from gateway.settings import ModelSettings, Settings
from gateway.tasks import TaskGroupOwner, in_daemon_thread
from gateway.telemetry import Catalog, MetricsObserver, ReplicaGauges, RequestLog, set_replica_gauges
from gateway.trip import ServedModel
from gateway.ui import AdminState, build_admin
from gateway.values.errors import TokenizerUnavailable
from gateway.values.ids import ModelId, ReplicaId
from gateway.values.load import Rates
from gateway.values.ports import Observer
from gateway.values.space import PrefixSpace

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
        self._index = PredictedIndex(settings.index.default_blocks, settings.index.speculative_ttl_seconds)
        self._health = HealthMonitor(
            self._fleet,
            self._client,
            HealthEvents(on_facts=self._take_facts, on_emptied=lambda replica: self._index.remove(replica.id)),
            interval_seconds=settings.relay.health_interval_seconds,
            timeout_seconds=settings.relay.health_timeout_seconds,
            unhealthy_after=settings.relay.unhealthy_after,
        )
        self._metrics = Catalog()
        self._tasks = TaskGroupOwner()
        self._models = {ModelId(model.id): self._served(model, None) for model in settings.models}
        observers: list[Observer] = [MetricsObserver(self._metrics)]
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
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _build_flow(self, observers: Sequence[Observer]) -> Flow:
        settings = self._settings
        return Flow(
            models=self._models,
            hasher=ChainHasher(),
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
        label = model.template_version
        digest = local.template_hash if local else ""
        space = PrefixSpace(
            model_id=model.id,
            tokenizer_id=local.tokenizer_id if local else model.tokenizer,
            template_version="-".join(part for part in (label, digest) if part),
        )
        engine = EngineTokenizer(
            ModelId(model.id),
            EngineCalls(self._fleet, self._client, self._settings.relay.suspect_seconds),
            self._settings.encode.engine_timeout_seconds,
        )
        encoder = Encoder(local, engine, self._threads, self._settings.encode.inline_bytes)
        return ServedModel(ModelId(model.id), encoder, space_root(space))

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
        self._index.set_capacity(
            replica.id,
            facts.blocks if facts.blocks is not None else self._settings.index.default_blocks,
            caching=facts.prefix_caching is not False,
        )

    def _metrics_page(self, accept: str) -> tuple[bytes, str]:
        blocks = self._index.statistics()
        set_replica_gauges(
            self._metrics,
            [ReplicaGauges(r.id, r.model, bool(r.up), r.requests, blocks.get(r.id, 0)) for r in self._fleet.replicas],
        )
        encode, content_type = choose_encoder(accept)
        return encode(self._metrics.registry), content_type

    def _replica_states(self) -> list[dict[str, object]]:
        blocks = self._index.statistics()
        return [_replica_state(replica, blocks.get(replica.id, 0)) for replica in self._fleet.replicas]


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
            f"Bearer {replica.api_key.get_secret_value()}".encode() if replica.api_key else None,
        )


def _replica_state(replica: Replica, index_blocks: int) -> dict[str, object]:
    rates, facts = replica.speed.rates, replica.facts
    return {
        "id": replica.id,
        "model": replica.model,
        "url": replica.url,
        "state": {None: "starting", True: "ready", False: "down"}[replica.up],
        "requests": replica.requests,
        "prefill_tokens_in_flight": replica.prefill_tokens,
        "index": {"source": "predicted", "blocks": index_blocks, "capacity_blocks": facts.blocks},
        "engine": {
            "block_size": facts.block_size,
            "prefix_caching": facts.prefix_caching,
            "running": facts.running,
            "waiting": facts.waiting,
        },
        "learned": {
            "base_ttft_seconds": round(rates.base_seconds, 6),
            "prefill_tokens_per_second": round(1 / rates.prefill_seconds_per_token, 1),
            "decode_seconds_per_token": round(rates.decode_seconds_per_token, 6),
            "request_seconds": round(rates.request_seconds, 6),
        },
    }
