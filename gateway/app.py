"""Builds the gateway from its settings: the only module that constructs and connects the components."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog

from gateway import __version__
from gateway.admin import AdminAccess, AdminState, DeferredAdmin, LiveFeed
from gateway.admin.orders import parse_replica
from gateway.admin.snapshots import Snapshots
from gateway.admission import ApplicationLimits, Authenticator
from gateway.admission.prompt_registry import PromptRegistry, some_of
from gateway.api import Cors, PublicApp
from gateway.api.dialects.messages_api import MessagesDialect
from gateway.api.dialects.responses_dialect import PATH as RESPONSES_PATH
from gateway.api.dialects.responses_dialect import Responses
from gateway.api.generation import Generations
from gateway.api.held_bytes import HeldBytes
from gateway.api.routes import MESSAGES, ServedCatalog
from gateway.canon.canonicalizer import Canonicalizer
from gateway.canon.pii import PersonalDataScreen
from gateway.cluster.wiring import ClusterState
from gateway.component_options import (
    admin_tokens,
    application_limits,
    audit_settings,
    canon_modes,
    configure_explain,
    explain_front,
    personal_data_mode,
    space_rules,
    spaces_file,
)
from gateway.config.settings import Settings
from gateway.core.errors import GatewayError
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.kv_events import Medium
from gateway.core.ports import AuditEvent, Observer, PromptObserver
from gateway.core.space import ResetCause, SpaceSelection
from gateway.core.worker_place import WorkerPlace
from gateway.discovery import Discovery
from gateway.experiment import Experiment
from gateway.explain.worker.history_keeper import FileHistory, HistoryKeeper
from gateway.fleet.drains import DrainOrder, Drains
from gateway.fleet.engine_calls import EngineCalls
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import HealthMonitor
from gateway.fleet.membership import Membership
from gateway.flow import Flow
from gateway.http_client.client import HttpClient
from gateway.http_client.open_files import most_with_replicas, open_files
from gateway.index import ReplicaIndex
from gateway.kv_events import KvFeeds
from gateway.observer_adapters import (
    AllObservers,
    AllSpaceObservers,
    EpochEndObservers,
    PersonalDataObservers,
    PromptObservers,
)
from gateway.overload import BusyReplicas, Overload
from gateway.proxy import AnswerLimits, Forwarder, RetryBudget
from gateway.replica_events import ReplicaEvents
from gateway.retry import Attempts
from gateway.routing import Chooser
from gateway.routing.request_queue import RequestQueue
from gateway.served_models import ServedModels
from gateway.spaces import PrefixSpaces, SpaceKeeper
from gateway.stats.hot_prefixes import HotPrefixes
from gateway.stats.markers import MarkerKind
from gateway.telemetry import (
    AuditLog,
    MetricCatalog,
    MetricsObserver,
    RecentPredictions,
    RequestLog,
    check_writable,
    start_tracing,
)
from gateway.tokenize.block_hashes import ChainHasher
from gateway.tokenize.local import LocalEncoder
from gateway.turns import Turns
from gateway.warmup import Warmer, in_application, registered_prefixes
from gateway.warmup.declared import Declared
from gateway.warmup.links import warm_links

_MIB = 1024 * 1024

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One gateway: two ASGI applications and their background tasks. Constructed inside a running event loop.

    Args:
        settings: The configuration.
        place: Its number and files if it is one of several workers on one public port; None: it is the only process.

    Attributes:
        public: Application of the public port.
        admin: Application of the admin port.

    Raises:
        ConfigInvalid: a file named in the configuration cannot be used.
    """

    def __init__(self, settings: Settings, place: WorkerPlace | None = None) -> None:
        self._settings = settings
        self._leaving = False
        self._metrics = MetricCatalog()
        counts = self._counts = MetricsObserver(self._metrics)
        audit = audit_settings(settings, place)
        check_writable(audit)
        self._audit = AuditLog(audit, lambda: counts.on_state_error("audit"))
        self._tracing = start_tracing(settings.tracing, lambda: counts.on_state_error("tracing"))
        is_first = place is None or place.number == 0
        self._explain = explain_front(settings, counts, at=place.explain_at if place else None, receives_seen=is_first)
        self._gate = Authenticator(settings.tenants, settings.admission, personal_data=personal_data_mode(settings))

        # Replicas, their caches and models.
        self._client = HttpClient(settings.relay.connect_timeout_seconds, most_with_replicas(open_files()))
        self._fleet = Fleet((), settings.relay.slow_start_seconds)
        self._engines = EngineCalls(self._fleet, self._client)
        self._hasher = ChainHasher()
        self._turns = Turns()
        self._index = ReplicaIndex(
            self._hasher,
            lambda replica: self._membership.model_of(replica),  # noqa: PLW0108 - built below
            {Medium.GPU: 1.0, Medium.CPU: settings.index.cpu_worth, Medium.DISK: settings.index.disk_worth},
            default_blocks=settings.index.default_blocks,
            speculative_ttl_seconds=settings.index.speculative_ttl_seconds,
            on_block_size=self._fleet.changed,
        )
        self._hot = HotPrefixes()
        self._feeds = KvFeeds({}, self._index, self._engines, counts, settings.ingest)
        self._models = ServedModels(
            settings.models,
            settings.encode,
            isolated=settings.isolation != "none",
            engines=self._engines,
            fleet=self._fleet,
        )
        self._chooser = Chooser(
            settings.placement.policy,
            settings.placement.miss_weight,
            settings.placement.tie_margin,
            settings.placement.slots,
        )
        busy_replicas = BusyReplicas(self._fleet, self._chooser, settings.queue.busy_seconds)
        queue = RequestQueue(settings.queue, busy_replicas, counts) if settings.queue.max_seconds else None
        self._overload = Overload(queue, busy_replicas, self._fleet)

        # Prefix spaces and personal data.
        links = warm_links(
            fleet=self._fleet,
            overload=self._overload,
            spaces=lambda: self._spaces,
            hot=self._hot,
            gpus=self._gpus,
            observer=counts,
            several=place is not None or settings.state is not None,
        )
        self._spaces = PrefixSpaces(
            space_rules(settings),
            [AllSpaceObservers([counts, self._audit, EpochEndObservers(self._explain), links.ended])],
        )
        self._keeper = SpaceKeeper(
            self._spaces,
            spaces_file(settings, place),
            models={ReplicaId(replica.id): ModelId(m.id) for m in settings.models for replica in m.replicas},
            served=[ModelId(model.id) for model in settings.models],
            tenant=self._gate.tenant,
            on_file_error=lambda: counts.on_state_error("spaces_file"),
        )
        self._keeper.load()
        self._screen = PersonalDataScreen(
            settings.personal_data,
            self._models.threads,
            PersonalDataObservers([counts, self._audit]),
            self._client,
        )

        # What changes the fleet, and the state that gateways share.
        self._predictions = RecentPredictions()
        self._replica_events = ReplicaEvents(
            fleet=self._fleet,
            index=self._index,
            feeds=self._feeds,
            keeper=self._keeper,
            spaces=self._spaces,
            models=self._models,
            explain=self._explain,
            overload=self._overload,
            warmer=lambda: self._warmer,
            counts=counts,
            predictions=self._predictions,
        )
        self._drains = Drains(self._fleet, self._replica_events.on_drained, everywhere=settings.state is not None)
        self._cluster = ClusterState(
            settings,
            counts,
            fleet=self._fleet,
            drains=self._drains,
            index=self._index,
            gate=self._gate,
            spaces=self._spaces,
            keeper=self._keeper,
            on_capacity=self._overload.on_capacity,
            explain=self._explain,
        )
        self._history = self._explain.history_keeper = self._build_history(settings) if is_first else None
        self._health = HealthMonitor(
            self._fleet,
            self._client,
            self._replica_events,
            interval_seconds=settings.relay.health_interval_seconds,
            timeout_seconds=settings.relay.health_timeout_seconds,
            unhealthy_after=settings.relay.unhealthy_after,
        )
        self._membership = Membership(
            settings,
            fleet=self._fleet,
            client=self._client,
            drains=self._drains,
            health=self._health,
            feeds=self._feeds,
            index=self._index,
            keeper=self._keeper,
            on_removed=self._replica_events.on_removed,
        )
        self._membership.configure(settings.models)
        self._discovery = Discovery(self._membership.found, counts.on_discovery_error)

        # Requests.
        self._canon = Canonicalizer(
            settings.canon,
            canon_modes(settings),
            texts=self._models,
            store=self._cluster.contexts,
            threads=self._models.threads,
        )
        observers: list[Observer] = [counts, self._feeds, self._spaces, self._predictions]
        observers += [self._audit] if audit.file is not None else []
        observers += [RequestLog()] if settings.log.requests else []
        observer = AllObservers(observers)
        flow = self._build_flow(observer, PromptObservers([links.ledger, links.hot]))
        self._warmer = Warmer(
            flow,
            self._fleet,
            self._gate,
            isolated=lambda: self._settings.isolation != "none",
            hold=self._fleet.set_warming,
            count=self._models.count_tokens,
            settings=settings.warm,
            links=links,
            discovered=lambda: [ModelId(model.id) for model in self._settings.models if model.discover is not None],
            registered=self._registered_prefixes,
            in_application=in_application(self._prompts),
        )

        # The two ports.
        self.public = self._build_public(flow, observer)
        shown = Snapshots(
            fleet=self._fleet,
            index=self._index,
            hot=self._hot,
            block_size=flow.block_size,
            predictions=self._predictions,
            feeds=self._feeds,
            screen=self._screen,
            metrics=self._metrics,
        )
        self._live = LiveFeed(self._explain, shown.replicas)
        self._admin_access = AdminAccess(*admin_tokens(settings))
        self.admin = DeferredAdmin(
            AdminState(
                metrics=shown.metrics_page,
                replicas=shown.replicas,
                prefixes=shown.prefixes,
                config=lambda: self._settings.masked(),  # noqa: PLW0108 - a reload replaces the settings
                personal_data=shown.personal_data,
                named_owners=self._owners,
                desk=self._keeper,
                fleet=self._drains,
                members=self._membership,
                warm=self._warmer,
                explain=self._explain,
                decoders=self._models.decoder,
                live=self._live,
                audit=self._audit,
            ),
            self._admin_access,
        )

    async def start(self) -> None:
        """Load the tokenizers and check all replicas once; then health checks go on in the background."""
        self._audit.start()
        self._screen.start()
        await self._cluster.start()
        self._explain.record_marker(MarkerKind.STARTED, f"Prefix Gateway {__version__}")
        self._feeds.start()
        self._discover()
        await self._discovery.wait_for_first_answers()
        self._health.start()
        await self._models.load(self._replica_events.on_version)
        await self._health.wait_for_first_round()
        self._replica_events.started = True
        # Last: on a single core the start of the worker process would delay readiness.
        self._explain.start()
        if self._history is not None:
            self._history.start()
        self._audit.record(AuditEvent("gateway_started"))
        self._keeper.start()
        self._warmer.start_background()

    async def reload(self, settings: Settings) -> None:
        """Apply changed settings. Requests in flight are completed with the old ones.

        Args:
            settings: Must differ from the present ones only in what can be changed while serving: see ``reload``.
        """
        changed_sections = [name for name, value in settings if value != getattr(self._settings, name)]
        self._explain.record_marker(MarkerKind.RELOADED, f"changed: {', '.join(changed_sections)}")
        self._audit.record(AuditEvent("config_taken", details={"changed": changed_sections}))
        self._counts.on_reload(taken=True)
        self._settings = settings
        self._membership.configure(settings.models)
        self._discover()
        mode = personal_data_mode(settings)
        self._gate.replace(settings.tenants, settings.admission, personal_data=mode)
        self._admin_access.replace(*admin_tokens(settings))
        self._screen.configure(settings.personal_data)
        self._canon.configure(settings.canon, canon_modes(settings))
        self._cluster.configure(settings)
        self._spaces.configure(space_rules(settings), time.time())
        changed_prompts = self._replace_prompts(settings)
        self._experiment.configure(settings.experiment)
        await configure_explain(self._explain, settings)
        await self._warmer.reload(settings.warm)
        self._warmer.warm_applications(changed_prompts)
        self.public.passthrough = settings.server.passthrough_paths
        await self._models.reload(
            settings.models, self._replica_events.on_version, isolated=settings.isolation != "none"
        )

    def _registered_prefixes(self) -> Sequence[Declared]:
        """The prefixes of registered prompts that are to be warmed."""
        models = self._settings.models
        return registered_prefixes(self._prompts, models[0].id if len(models) == 1 else None)

    def _replace_prompts(self, settings: Settings) -> Collection[str]:
        """Put the registered prompts in force; a new current version ends the spaces of the one before.

        Returns:
            Versions whose prefixes are to be warmed, as ``id@version``.
        """
        now = time.time()
        self._application_limits.replace(application_limits(settings))
        changes = self._prompts.replace(settings.prompts)
        for name, (before, after) in changes.current.items():
            self._spaces.reset(SpaceSelection(prompt=f"{name}@{before}"), ResetCause.PROMPT_VERSION, now)
            self._explain.record_marker(MarkerKind.PROMPT_VERSION_CHANGED, f"{name}: {before} to {after}")
        if changes.edited:
            edited = some_of(changes.edited)
            _log.warning("prompt_text_edited", prompts=edited, to_change="give a changed text a new version")
            self._explain.record_marker(MarkerKind.PROMPT_TEXT_EDITED, f"without a new version: {edited}")
        return changes.to_warm

    def reload_refused(self) -> None:
        """Count a reload whose configuration was refused."""
        self._audit.record(AuditEvent("config_refused"))
        self._counts.on_reload(taken=False)

    def take_order(self, order: DrainOrder) -> None:
        """Drain a replica, or do so no more, as an operator ordered; not at this process, or before it was there."""
        self._drains.apply_order(order)

    def take_replica(self, replica: str, order: Mapping[str, Any] | None) -> None:
        """Add a replica as an operator ordered, or, without an order, remove it; not at this process, or before."""
        with contextlib.suppress(GatewayError):  # done already
            if order is None:
                self._membership.remove(replica)
            else:
                self._membership.add(parse_replica(order))

    def encoders(self) -> dict[str, LocalEncoder | None]:
        """The loaded tokenizer of each model; None where only the engine has it."""
        return {model: served.encoder.local for model, served in self._models.items()}

    def leave(self) -> None:
        """Have ``/readyz`` report that the gateway is about to stop."""
        self._leaving = True

    def end_live(self) -> None:
        """End the event streams of the admin port."""
        self._live.close()

    async def stop(self) -> None:
        """Stop background tasks, close all connections to the replicas, and write the epoch file and the audit log."""
        self.end_live()
        await self._warmer.stop()
        if self._history is not None:
            await self._history.stop()
        # Concurrently: each may wait for a server that does not answer, until its own timeout.
        await asyncio.gather(
            self._models.stop(),
            self._discovery.stop(),
            self._membership.stop(),
            self._health.stop(),
            self._feeds.stop(),
            self._screen.stop(),
            self._cluster.stop(),
            self._explain.stop(),
            *([] if self._tracing is None else [self._tracing.stop()]),
        )
        await self._keeper.stop()
        self._client.close()
        self._audit.record(AuditEvent("gateway_stopped"))
        await self._audit.stop()

    def _build_history(self, settings: Settings) -> HistoryKeeper | None:
        """What keeps the journal's history; None where it ends with the gateway."""
        file = settings.history.file
        store = self._cluster.history if file is None else FileHistory(file)
        if store is None or not settings.explain.enabled:
            return None
        return HistoryKeeper(store, self._explain, lambda: self._counts.on_state_error("history"))

    def _build_public(self, flow: Flow, observer: Observer) -> PublicApp:
        """What the public port answers."""
        settings = self._settings
        self._application_limits = ApplicationLimits(application_limits(settings))
        models = [model.id for model in settings.models]
        held = _held_bytes(settings)
        cors = Cors(settings.server.cors_origins, (settings.admission.tenant_header,))
        generations = Generations(
            flow,
            self._gate,
            models,
            observer=observer,
            tracer=self._tracing,
            cors=cors,
            max_body_bytes=settings.server.max_body_bytes,
            max_sequences=settings.server.max_sequences,
            limits=settings.server.json_limits,
            held=held,
            turns=self._turns,
            prompts=self._prompts,
            application_limits=self._application_limits,
        )
        catalog = ServedCatalog(
            models=models,
            card=lambda model: next((r.card for r in self._fleet.of(ModelId(model)) if r.card), None),
            ready=lambda model: self._fleet.ready(ModelId(model)),
            started_at=int(time.time()),
            public=lambda: self._settings.is_open,
            stopping=lambda: self._leaving,
        )
        root_path = self._settings.server.root_path
        count = MessagesDialect(self._turns, counts=True)
        responses = Responses(self._cluster.responses, settings, self._turns, held)
        public = PublicApp(
            generations,
            self._gate,
            catalog,
            observer=observer,
            cors=cors,
            root_path=root_path,
            dialects={
                MESSAGES: MessagesDialect(self._turns),
                f"{MESSAGES}/count_tokens": count,
                RESPONSES_PATH: responses,
            },
            more_routes=[responses.add_routes],
        )
        public.passthrough = settings.server.passthrough_paths
        return public

    def _gpus(self, model: ModelId) -> float:
        """GPUs of one replica of a model."""
        return next((each.gpus_per_replica for each in self._settings.models if each.id == model), 1.0)

    def _build_flow(self, observer: Observer, prompts: PromptObserver) -> Flow:
        settings, relay = self._settings, self._settings.relay
        self._prompts = PromptRegistry(settings.prompts)
        self._experiment = Experiment(settings.experiment)
        return Flow(
            models=self._models.present,
            hasher=self._hasher,
            index=self._cluster.index,
            uses=self._hot,
            chooser=self._chooser,
            fleet=self._fleet,
            attempts=Attempts(
                self._fleet,
                Forwarder(
                    self._client,
                    forward_authorization=relay.forward_authorization,
                    limits=AnswerLimits(
                        first_byte_timeout_seconds=relay.first_byte_timeout_seconds,
                        chunk_timeout_seconds=relay.chunk_timeout_seconds,
                        max_answer_bytes=settings.index.max_reply_bytes,
                    ),
                ),
                self._cluster.index,
                RetryBudget(relay.retry_share, relay.retry_floor),
                retries=relay.retries,
                waiting=self._overload.queues,
                on_capacity=self._overload.on_capacity,
                resume=relay.resume,
            ),
            overload=self._overload,
            spaces=self._spaces,
            screen=self._screen,
            canon=self._canon,
            observer=observer,
            explains=self._explain,
            default_block_size=settings.index.default_block_size,
            relay=relay,
            turns=self._turns,
            experiment=self._experiment,
            prompts=prompts,
        )

    def _owners(self, tenant: str) -> list[str]:
        """Owners that a tenant's spaces may have: the tenant itself, and its group where groups share."""
        known = self._gate.tenant(tenant)
        return [f"tenant:{tenant}"] + ([f"group:{known.group}"] if known is not None and known.group else [])

    def _discover(self) -> None:
        """Apply the configured sources of replicas."""
        for model in self._settings.models:
            if model.discover is not None:
                self._counts.follow_discovery(ModelId(model.id), model.discover.source)
        self._discovery.configure({ModelId(model.id): model.discover for model in self._settings.models})


def _held_bytes(settings: Settings) -> HeldBytes:
    server = settings.server
    # In open mode all requests belong to one tenant: no separate limit.
    tenant_mib = server.max_held_mib if settings.is_open else server.max_held_tenant_mib
    return HeldBytes(server.max_held_mib * _MIB, tenant_mib * _MIB)
