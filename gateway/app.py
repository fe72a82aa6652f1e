"""Builds the gateway from its settings. The only place that constructs the rooms and ties them together."""

import json
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI

from gateway.admission import Gatekeeper
from gateway.api import PublicApp
from gateway.api.routes import Catalog as ModelCatalog
from gateway.api.settings import AdminTokenSettings
from gateway.canon.canonicalizer import Canonicalizer
from gateway.canon.personal import PersonalDataScreen
from gateway.epochs import PrefixSpaces, SpaceKeeper, SpaceRules, SpacesFile
from gateway.explain import ExplainFront
from gateway.explain.link import CanonTerms, ModelTerms
from gateway.flow import Flow, FlowLimits
from gateway.hashing import ChainHasher
from gateway.index import HotPrefixes, ReplicaIndex
from gateway.ingest import FeedPlan, KvFeeds
from gateway.models import ServedModels
from gateway.placement import Chooser, LearnedRates
from gateway.relay import EngineCalls, Fleet, Forwarder, HealthEvents, HealthMonitor, HttpClient, Replica
from gateway.settings import ModelSettings, Settings
from gateway.snapshots import Snapshots
from gateway.state import RedisContextStore
from gateway.telemetry import (
    AuditLog,
    Catalog,
    MetricsObserver,
    RecentPredictions,
    RequestLog,
    check_writable,
    start_tracing,
)
from gateway.ui import AdminAccess, AdminState, LiveFeed, build_admin
from gateway.values.audit import AuditEvent
from gateway.values.canonical import RuleModes
from gateway.values.explain import Happened, Past
from gateway.values.ids import ModelId, ReplicaId
from gateway.values.kv_events import Medium
from gateway.values.load import Rates
from gateway.values.personal import Finding
from gateway.values.ports import Explains, Observer, PersonalDataObserver
from gateway.values.request import ChatRequest
from gateway.values.settlement import Refusal, Settlement
from gateway.values.space import ModelVersion, ResetCause, SpaceEnd
from gateway.values.tenant import PersonalDataMode, Tenant
from gateway.warming import Warmer

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One gateway: two ASGI applications and what runs behind them. Built inside of a running event loop.

    Attributes:
        public: Application of the public port.
        admin: Application of the admin port.

    Raises:
        ConfigInvalid: a file that the configuration names cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = False
        self._metrics = Catalog()
        counts = self._counts = MetricsObserver(self._metrics)
        check_writable(settings.audit)
        self._audit = AuditLog(settings.audit, lambda: counts.on_state_error("audit"))
        self._tracing = start_tracing(settings.tracing, lambda: counts.on_state_error("tracing"))
        self._explain = ExplainFront(settings.explain, counts, _gpus(settings), _canon_terms(settings))
        self._gate = Gatekeeper(settings.tenants, settings.admission, personal_data=_personal_data(settings))

        # The replicas, and what is known of them.
        self._client = HttpClient(settings.relay.connect_timeout_seconds)
        self._fleet = Fleet(replica for model in settings.models for replica in _replicas(model, settings))
        self._engines = EngineCalls(self._fleet, self._client, settings.relay.suspect_seconds)
        self._hasher = ChainHasher()
        model_of = {replica.id: replica.model for replica in self._fleet.replicas}
        self._index = ReplicaIndex(
            self._hasher,
            model_of.__getitem__,
            {Medium.GPU: 1.0, Medium.CPU: settings.index.cpu_worth, Medium.DISK: settings.index.disk_worth},
            default_blocks=settings.index.default_blocks,
            speculative_ttl_seconds=settings.index.speculative_ttl_seconds,
        )
        self._hot = HotPrefixes()
        self._feeds = KvFeeds(_feed_plans(settings), self._index, self._engines, counts, settings.ingest)
        self._models = ServedModels(
            settings.models,
            settings.encode,
            isolated=settings.isolation != "none",
            engines=self._engines,
            fleet=self._fleet,
            hasher=self._hasher,
            on_version=self._take_version,
        )

        # Whose prefixes are whose.
        self._spaces = PrefixSpaces(_rules(settings), [counts, self._audit, _LivesTold(self._explain)])
        self._keeper = SpaceKeeper(
            self._spaces,
            SpacesFile(settings.spaces.file) if settings.spaces.file else None,
            models=model_of,
            tenant=self._gate.tenant,
            on_file_error=lambda: counts.on_state_error("spaces_file"),
        )
        self._keeper.load()
        self._screen = PersonalDataScreen(
            settings.personal_data, self._models.threads, _FindingsTold([counts, self._audit])
        )

        self._contexts = _contexts(settings, counts)
        self._canon = Canonicalizer(
            settings.canon,
            _canon_modes(settings),
            texts=self._models,
            store=self._contexts,
            executor=self._models.threads,
        )

        predictions = RecentPredictions()
        observers: list[Observer] = [counts, self._feeds, self._audit, _SpaceFigures(self._spaces), predictions]
        if settings.log.requests:
            observers.append(RequestLog())
        flow = self._build_flow(observers)
        self._warmer = Warmer(
            flow,
            self._fleet,
            self._gate,
            isolated=lambda: self._settings.isolation != "none",
            hold=self._hold,
            count=self._models.count_tokens,
            settings=settings.warm,
        )
        self._health = HealthMonitor(
            self._fleet,
            self._client,
            HealthEvents(
                on_facts=self._take_facts,
                on_emptied=self._empty,
                on_identity=self._take_identity,
                on_up=self._take_up,
                on_down=self._take_down,
            ),
            interval_seconds=settings.relay.health_interval_seconds,
            timeout_seconds=settings.relay.health_timeout_seconds,
            unhealthy_after=settings.relay.unhealthy_after,
        )

        # The two ports.
        self.public = PublicApp(
            flow,
            self._gate,
            ModelCatalog(
                models=[model.id for model in settings.models],
                card=lambda model: next((r.card for r in self._fleet.of(ModelId(model)) if r.card), None),
                ready=lambda model: self._fleet.ready(ModelId(model)),
                started_at=int(time.time()),
                public=lambda: self._settings.is_open,
            ),
            observers=observers,
            tracer=self._tracing,
            max_body_bytes=settings.server.max_body_bytes,
            max_json_depth=settings.server.max_json_depth,
        )
        shown = Snapshots(
            fleet=self._fleet,
            index=self._index,
            hot=self._hot,
            block_size=flow.block_size,
            predictions=predictions,
            feeds=self._feeds,
            screen=self._screen,
            metrics=self._metrics,
        )
        self._live = LiveFeed(self._explain, shown.replicas)
        self._admin_access = AdminAccess(*_admin_tokens(settings))
        self.admin: FastAPI = build_admin(
            AdminState(
                metrics=shown.metrics_page,
                replicas=shown.replicas,
                prefixes=shown.prefixes,
                config=self._shown_config,
                personal_data=shown.personal_data,
                named_owners=self._owners,
                desk=self._keeper,
                warm=self._warmer,
                explain=self._explain,
                decoders=self._models.decoder,
                live=self._live,
                audit=self._audit,
            ),
            self._admin_access,
        )

    async def start(self) -> None:
        """Load the tokenizers and begin watching the replicas. Returns when both are done once."""
        self._audit.start()
        self._screen.start()
        if self._contexts is not None:
            self._contexts.start()
        self._explain.start()
        self._feeds.start()
        self._health.start()
        await self._models.load()
        await self._health.wait_for_first_round()
        self._started = True
        self._audit.record(AuditEvent("gateway_started"))
        self._keeper.start()
        self._warmer.start_background()

    async def reload(self, settings: Settings) -> None:
        """Go by other settings from now on. Requests that are being answered end as they began.

        Args:
            settings: Must differ from the present ones only in what can be changed while serving: see ``reload``.
        """
        changed_sections = [name for name, value in settings if value != getattr(self._settings, name)]
        self._audit.record(AuditEvent("config_taken", details={"changed": changed_sections}))
        self._counts.on_reload(taken=True)
        self._settings = settings
        regions = {replica.id: replica.region for model in settings.models for replica in model.replicas}
        for replica in self._fleet.replicas:
            replica.region = regions[replica.id]
        mode = _personal_data(settings)
        self._gate.replace(settings.tenants, settings.admission, personal_data=mode)
        self._admin_access.replace(*_admin_tokens(settings))
        self._screen.configure(settings.personal_data)
        self._canon.configure(settings.canon, _canon_modes(settings))
        if self._contexts is not None:
            self._contexts.configure(settings.canon.memory_ttl_seconds)
        self._spaces.configure(_rules(settings), time.time())
        await self._explain.configure(settings.explain, _gpus(settings), _canon_terms(settings))
        await self._warmer.reload(settings.warm)
        await self._models.reload(settings.models, isolated=settings.isolation != "none")

    def reload_refused(self) -> None:
        """The configuration was read again, and nothing of it taken over."""
        self._audit.record(AuditEvent("config_refused"))
        self._counts.on_reload(taken=False)

    def end_live(self) -> None:
        """End the answers of the admin port that would go on for as long as somebody listens."""
        self._live.close()

    async def stop(self) -> None:
        """Stop watching, close all connections to the replicas, and write down what is to be kept."""
        self.end_live()
        await self._warmer.stop()
        await self._models.stop()
        await self._health.stop()
        await self._feeds.stop()
        await self._screen.stop()
        if self._contexts is not None:
            await self._contexts.stop()
        await self._explain.stop()
        await self._keeper.stop()
        self._client.close()
        if self._tracing is not None:
            await self._tracing.stop()
        self._audit.record(AuditEvent("gateway_stopped"))
        await self._audit.stop()

    def _build_flow(self, observers: list[Observer]) -> Flow:
        settings = self._settings
        return Flow(
            models=self._models,
            hasher=self._hasher,
            index=self._index,
            uses=self._hot,
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
            spaces=self._spaces,
            screen=self._screen,
            canon=self._canon,
            observers=observers,
            explains=self._explain,
            limits=FlowLimits(
                default_block_size=settings.index.default_block_size,
                suspect_seconds=settings.relay.suspect_seconds,
                connect_retries=settings.relay.connect_retries,
                gone_after_seconds=settings.relay.gone_after_seconds,
            ),
        )

    def _owners(self, tenant: str) -> list[str]:
        """What spaces of a tenant may have for ``tenant``: the tenant itself, and its group where groups share."""
        known = self._gate.tenant(tenant)
        return [f"tenant:{tenant}"] + ([f"group:{known.group}"] if known is not None and known.group else [])

    def _shown_config(self) -> dict[str, object]:
        return self._settings.masked()

    def _hold(self, replica: ReplicaId, held: bool) -> None:
        """Whether a replica is to take requests only for want of others: its cache is being filled."""
        next(each for each in self._fleet.replicas if each.id == replica).warming = held

    def _take_facts(self, replica: Replica) -> None:
        facts = replica.facts
        blocks = {rank.rank: rank.blocks for rank in facts.ranks}
        for target in replica.targets():
            own = blocks.get(target.rank) if len(facts.ranks) > 1 else facts.blocks
            self._index.set_capacity(target, own, caching=facts.prefix_caching is not False)
        self._feeds.on_facts(replica.id, facts)

    def _take_up(self, replica: Replica) -> None:
        self._happened(Past.RETURNED, replica)
        self._warmer.joined(replica.id)

    def _take_down(self, replica: Replica) -> None:
        self._happened(Past.LEFT, replica)
        self._warmer.left(replica.id)

    def _happened(self, what: Past, replica: Replica) -> None:
        self._explain.happened(Happened(what, time.time(), replica.id))

    def _take_identity(self, replica: Replica, root: str, version: str) -> None:
        updated = self._keeper.engine_seen(replica.id, root, version)
        # What its model list says is part of the version, too: the adapter, the context limit. While replicas are being
        # looked at for the first time, it is not yet known.
        present = self._models[replica.model].version()
        outdated = self._started and self._spaces.retire(present, ResetCause.MODEL_UPDATE, time.time())
        if updated or outdated:
            self._warm_again(replica.model)

    def _take_version(self, version: ModelVersion) -> None:
        """A model's tokenizer and template are loaded, for the first time or because they changed."""
        self._warmer.recount()
        self._spaces.retire(version, ResetCause.TEMPLATE_CHANGED, time.time())
        self._warm_again(ModelId(version.model_id))

    def _warm_again(self, model: ModelId) -> None:
        """Its replicas' caches are warm for what it was."""
        for replica in self._fleet.of(model):
            if replica.up:
                self._warmer.joined(replica.id)

    def _empty(self, replica: Replica, started_at: float | None) -> None:
        self._happened(Past.RESTARTED, replica)
        for target in replica.targets():
            self._index.remove(target)
        if started_at is not None:
            self._feeds.on_restarted(replica.id, started_at)


class _SpaceFigures:
    """An ``Observer``: what clients asked within each space."""

    def __init__(self, spaces: PrefixSpaces) -> None:
        self._spaces = spaces

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        if settlement.status == 200 and not settlement.warming:
            self._spaces.count(settlement)

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""


class _LivesTold:
    """A ``SpaceObserver``: what was computed in a life that ended cannot be reached any more."""

    def __init__(self, explains: Explains) -> None:
        self._explains = explains

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        self._explains.happened(Happened(Past.LIFE_ENDED, time.time(), end.id, end.cause))


class _FindingsTold:
    """Several ``PersonalDataObserver`` as one."""

    def __init__(self, observers: Sequence[PersonalDataObserver]) -> None:
        self._observers = observers

    def on_personal_data(self, request: ChatRequest, space: str, finding: Finding, *, shared: bool, new: bool) -> None:
        """See ``PersonalDataObserver``."""
        for observer in self._observers:
            observer.on_personal_data(request, space, finding, shared=shared, new=new)

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """See ``PersonalDataObserver``."""
        for observer in self._observers:
            observer.on_personal_data_skipped(tenant)


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
            region=replica.region,
        )


def _feed_plans(settings: Settings) -> dict[ReplicaId, FeedPlan]:
    return {
        ReplicaId(replica.id): FeedPlan(urlsplit(replica.url).hostname or "", replica.events, replica.replay)
        for model in settings.models
        for replica in model.replicas
    }


def _rules(settings: Settings) -> SpaceRules:
    spaces = settings.spaces
    return SpaceRules(
        isolation=settings.isolation,
        secret=spaces.secret.get_secret_value().encode() if spaces.secret else b"",
        idle_ttl_seconds=spaces.idle_ttl_seconds,
        max_age_seconds=spaces.max_age_seconds,
        max_spaces=spaces.max_spaces,
    )


def _admin_tokens(settings: Settings) -> tuple[str | None, Sequence[AdminTokenSettings]]:
    server = settings.server
    return server.admin_token.get_secret_value() if server.admin_token else None, server.admin_tokens


def _gpus(settings: Settings) -> dict[str, float]:
    return {model.id: model.gpus_per_replica for model in settings.models}


def _contexts(settings: Settings, counts: MetricsObserver) -> RedisContextStore | None:
    """Where context blocks are kept for other gateways, too; None for nowhere."""
    if settings.state is None or settings.spaces.secret is None:
        return None
    return RedisContextStore(
        settings.state,
        settings.spaces.secret,
        ttl_seconds=settings.canon.memory_ttl_seconds,
        on_error=counts.on_state_error,
    )


def _canon_terms(settings: Settings) -> CanonTerms:
    """What it takes to try rules in the process that explains. Reads the chat templates."""
    models = {}
    for model in settings.models:
        if model.tokenizer == "engine":
            continue  # nothing there knows its tokens
        template = model.chat_template.read_text(encoding="utf-8") if model.chat_template else None
        content_format = None if model.content_format == "auto" else model.content_format
        arguments = json.dumps(model.chat_template_kwargs).encode()
        models[model.id] = ModelTerms(model.tokenizer, template, arguments, content_format)
    return CanonTerms(settings.canon.model_dump_json().encode(), models)


def _canon_modes(settings: Settings) -> dict[str, RuleModes]:
    """Modes of canonicalization rules by model, where it has any of its own."""
    return {model.id: model.canon for model in settings.models if model.canon}


def _personal_data(settings: Settings) -> PersonalDataMode:
    return PersonalDataMode(settings.personal_data.mode)
