"""Reads what one engine says of itself: health, metrics, model list, version, clock, event sources.

Few small requests, each with a time limit. An engine that does not answer, or with anything unexpected, gives a probe
with the problem and never an exception.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.config.replica_settings import ReplicaSettings
from gateway.config.settings import ModelSettings
from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.core.kv_events import EventSource
from gateway.engines import (
    MAX_DOCUMENT_BYTES,
    ServerFacts,
    event_sources,
    event_sources_path,
    external_cache,
    offset_sources,
    parse_metrics,
    parse_models,
    parse_server_info,
)
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.http_client import HttpClient, HttpResponse, Origin, TransportError

_MAX_METRICS_BYTES = 8 * 2**20
_MAX_TOKENS_BYTES = 2 * 2**20
_CONNECTIONS = 8
"""New connections on which the start time is read: two engines behind a load balancer stay unseen once in 128 times."""

_DATE_RESOLUTION_SECONDS = 1.0
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class ExaminedReplica:
    """One replica of the configuration.

    Attributes:
        model: Its model.
        model_path: Place of the model in the configuration, such as ``models[0]``.
        path: Place of the replica there: ``models[0].replicas[1]``, or ``models[0].discover``.
        settings: Its settings.
    """

    model: ModelSettings
    model_path: str
    path: str
    settings: ReplicaSettings

    @property
    def where(self) -> str:
        """As ``DoctorFinding.where``."""
        return f"replica {self.settings.id}"

    @property
    def host(self) -> str:
        """Host it is reached at."""
        return urlsplit(self.settings.url).hostname or ""


class EngineAccess:
    """Requests to one replica, with its credentials and a time limit.

    Args:
        client: The connections.
        replica: The replica.
        timeout_seconds: Limit of a request that computes nothing.
    """

    def __init__(self, client: HttpClient, replica: ReplicaSettings, timeout_seconds: float) -> None:
        self._client = client
        self._origin = Origin.parse(replica.url, replica.tls_files)
        self._timeout = timeout_seconds
        key = replica.api_key
        self._login = [] if key is None else [(b"authorization", f"Bearer {key.get_secret_value()}".encode("latin-1"))]

    async def get(self, path: str, max_bytes: int = 2**20) -> HttpResponse:
        """Read a document.

        Raises:
            TransportError: no complete answer within the time.
        """
        return await self._client.fetch_response(
            "GET", self._origin, path, self._login, timeout_seconds=self._timeout, max_bytes=max_bytes
        )

    def disconnect(self) -> None:
        """Have the next request use a new connection."""
        self._client.forget(self._origin)

    async def post(
        self, path: str, fields: Any, *, timeout_seconds: float | None = None, rank: int | None = None
    ) -> tuple[int, Any]:
        """Send JSON; returns the status, and the answer parsed (None if it is no JSON).

        Raises:
            TransportError: no complete answer within the time.
        """
        headers = [(b"content-type", b"application/json"), *self._login]
        if rank is not None:
            headers.append((b"x-data-parallel-rank", b"%d" % rank))
        answer = await self._client.fetch_response(
            "POST",
            self._origin,
            path,
            headers,
            orjson.dumps(fields),
            timeout_seconds=timeout_seconds or self._timeout,
            max_bytes=_MAX_TOKENS_BYTES,
        )
        return answer.status, _parsed(answer.body)


@dataclass(slots=True)
class EngineProbe:
    """What one engine says of itself.

    Attributes:
        replica: The replica.
        problem: Why it does not answer; empty if it does. The rest is unknown then.
        facts: From its metrics.
        engines: How many engines with different start times answered at its address.
        metrics_problem: Why there are no facts; empty if there are.
        server: SGLang's arguments; None of other engines.
        served: Ids of the models in its list; None if there is no list.
        root: Files of the model; empty if unknown.
        version: Release of the engine; empty if unknown.
        context_limit: Most tokens of prompt and answer; None if unknown.
        clock_seconds: By how much its clock is ahead of this machine's, as far as that is certain: 0 within the
            resolution of a Date header and the time of the request. None without the header.
        sources: Where it publishes KV events, or where the configuration says so.
        sources_problem: Why the sources are unknown; empty if they are known.
        external: A cache beside the GPU's, such as LMCache; empty if none is seen.
        asleep: Whether it is in sleep mode.
        refusal: It refuses the gateway's key, or redirects requests.
    """

    replica: ExaminedReplica
    problem: str = ""
    facts: EngineFacts = dataclasses.field(default_factory=EngineFacts)
    engines: int = 1
    metrics_problem: str = ""
    server: ServerFacts | None = None
    served: Sequence[str] | None = None
    root: str = ""
    version: str = ""
    context_limit: int | None = None
    clock_seconds: float | None = None
    sources: Sequence[EventSource] = ()
    sources_problem: str = ""
    external: str = ""
    asleep: bool = False
    refusal: DoctorFinding | None = None

    @property
    def reached(self) -> bool:
        """Whether it answers."""
        return not self.problem and self.refusal is None


async def probe_engine(access: EngineAccess, replica: ExaminedReplica) -> EngineProbe:
    """Read all of it."""
    probe = EngineProbe(replica)
    try:
        sent_at = time.time()
        health = await access.get("/health")
        probe.clock_seconds = clock_ahead(health, sent_at, time.time())
        probe.refusal = turned_away(replica, health.status, _location(health, "/health"))
        if probe.refusal is not None:
            return probe
        if health.status != 200:
            probe.problem = f"/health answers {health.status}"
            return probe
        await _read_metrics(access, probe)
        await _read_card(access, probe)
        if probe.facts.kind is EngineKind.SGLANG:
            await _read_server(access, probe)
        else:
            version = await _document(access, "/version")
            probe.version = _text(version.get("version")) if isinstance(version, dict) else ""
            # Both exist in development mode only.
            probe.asleep = await _document(access, "/is_sleeping") == {"is_sleeping": True}
            if probe.facts.kind is EngineKind.VLLM and not probe.external:
                with contextlib.suppress(TransportError):  # collecting it can take long
                    probe.external = external_cache("", await _document(access, "/server_info?config_format=json"))
        await _read_sources(access, probe)
    except TransportError as failure:
        probe.problem = str(failure) or type(failure).__name__
    return probe


def clock_ahead(answer: HttpResponse, sent_at: float, received_at: float) -> float | None:
    """By how many seconds the clock behind a Date header is ahead; see ``EngineProbe.clock_seconds``.

    Args:
        answer: The answer.
        sent_at: Unix time before the request.
        received_at: Unix time after the answer.
    """
    date = next((value for name, value in answer.headers if name == b"date"), None)
    if date is None:
        return None
    try:
        at = parsedate_to_datetime(date.decode("latin-1")).timestamp()
    except (ValueError, OverflowError):
        return None
    # Whole seconds, cut off: the true time is up to a second later. Some servers renew the header once a second.
    if at > received_at:
        return at - received_at
    earliest = sent_at - 2 * _DATE_RESOLUTION_SECONDS
    return at - earliest if at < earliest else 0.0


async def _read_metrics(access: EngineAccess, probe: EngineProbe) -> None:
    page = await access.get("/metrics", _MAX_METRICS_BYTES)
    if page.status != 200:
        probe.metrics_problem = f"/metrics answers {page.status}"
        return
    # In a thread: pages of many ranks take a while, and a gateway may serve in this event loop.
    text = page.body.decode("latin-1")
    probe.facts = await asyncio.to_thread(parse_metrics, text)
    probe.external = external_cache(text, None)
    if probe.facts.kind is None:
        probe.metrics_problem = "/metrics has no metric of a known engine"
    if probe.facts.started_at is not None:
        starts = {probe.facts.started_at}
        for _ in range(_CONNECTIONS - 1):
            access.disconnect()
            page = await access.get("/metrics", _MAX_METRICS_BYTES)
            facts = await asyncio.to_thread(parse_metrics, page.body.decode("latin-1"))
            starts.add(facts.started_at or probe.facts.started_at)
        probe.engines = len(starts)


async def _read_card(access: EngineAccess, probe: EngineProbe) -> None:
    answer = await access.get("/v1/models", MAX_DOCUMENT_BYTES)
    probe.refusal = turned_away(probe.replica, answer.status, _location(answer, "/v1/models"))
    if answer.status != 200:
        return
    try:
        models = parse_models(answer.body, probe.replica.model.id)
    except ValueError:
        return
    probe.served = [each[:_SHOWN_CHARS] for each in models.ids]
    if models.card is not None:
        limit = models.card.get("max_model_len")
        probe.root = _text(models.card.get("root"))
        probe.context_limit = limit if type(limit) is int and limit > 0 else None


def turned_away(replica: ExaminedReplica, status: int, location: str = "elsewhere") -> DoctorFinding | None:
    """The finding about a status with which an engine redirects, or refuses a key; None for any other."""
    where, path = replica.where, replica.path
    if 300 <= status < 400:
        said = f"{replica.settings.url} redirects to {location}. Redirects are not followed: prompts could go anywhere."
        return DoctorFinding(
            "replica-redirects", Severity.ERROR, where, said, f"set url of {path} to the final address"
        )
    if status in (401, 403):
        key = "is not the engine's" if replica.settings.api_key else "is not set, and the engine asks for a key"
        said, fix = f"It answers {status}: api_key of {path} {key}.", f"set api_key of {path} to the engine's --api-key"
        return DoctorFinding("key-refused", Severity.ERROR, where, said, fix)
    return None


def _location(answer: HttpResponse, path: str) -> str:
    there = dict(answer.headers).get(b"location", b"").decode("latin-1").partition("?")[0]
    return _text(there.removesuffix("/").removesuffix(path)) or "elsewhere"


async def _read_server(access: EngineAccess, probe: EngineProbe) -> None:
    document = await _document(access, "/server_info")
    if document is None:
        return
    probe.server = server = parse_server_info(document)
    probe.root, probe.version, probe.external = server.root or "", server.version or "", server.external
    if probe.facts.prefix_caching is None:
        probe.facts = dataclasses.replace(probe.facts, prefix_caching=server.prefix_caching)


async def _read_sources(access: EngineAccess, probe: EngineProbe) -> None:
    settings, kind = probe.replica.settings, probe.facts.kind
    if settings.events == "off":
        return
    if settings.events != "auto":
        probe.sources = offset_sources(settings.events, settings.replay, max(len(probe.facts.ranks), 1))
        return
    if kind is None:
        probe.sources_problem = "the kind of engine is not known without its metrics"
        return
    document = await _document(access, event_sources_path(kind))
    if document is not None:
        probe.sources = event_sources(kind, document, probe.replica.host)


async def _document(access: EngineAccess, path: str) -> Any:
    """A JSON document; None if the engine has none there."""
    answer = await access.get(path, MAX_DOCUMENT_BYTES)
    return _parsed(answer.body) if answer.status == 200 else None


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _text(value: Any) -> str:
    return value[:_SHOWN_CHARS] if isinstance(value, str) and value.isprintable() else ""
