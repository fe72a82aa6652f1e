"""One replica: its state, its load and its in-flight requests."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import structlog

from gateway.config.routing_settings import RelaySettings
from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.outcome import Usage
from gateway.core.replica_state import DrainCause, Load, ReplicaState
from gateway.core.request import Endpoint
from gateway.engines import ServerFacts, advice
from gateway.fleet.breaker import Breaker
from gateway.fleet.rank_load import LoadSource, ModelTraffic, RankLoad, Ticket, loads_at
from gateway.fleet.silence import InflightRequest, Silence
from gateway.fleet.start_times import StartTimes
from gateway.http_client.client import NO_FILES, Origin, TlsFiles
from gateway.routing import LearnedRates

_log = structlog.get_logger("gateway.proxy")
_DEFAULT_LIMITS = RelaySettings()

_T = TypeVar("_T")


class _Deciding(Generic[_T]):
    """An attribute of a replica that decides whether it gets requests: a change of it calls ``on_change``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, replica: "Replica", owner: type) -> _T:
        value: _T = replica.__dict__[self._name]
        return value

    def __set__(self, replica: "Replica", value: _T) -> None:
        before = replica.__dict__.get(self._name)
        replica.__dict__[self._name] = value
        if before != value:
            replica.on_change()


class Replica:
    """One engine replica.

    Attributes:
        on_change: Called when something changes that placement may keep: whether it gets requests, its targets, or its
            block size. Loads, rates and the breaker change without it.
        id: Its name.
        url: Base URL, as configured.
        origin: The URL, parsed.
        model: The model it serves.
        authorization: Value of the ``authorization`` header to send there, or None.
        speed: Its learned rates.
        traffic: The traffic of its model.
        up: Whether its health checks pass; None before the first one ended.
        down_since: Monotonic seconds when they began to fail; None while they pass.
        ramp_until: End of its slow start, in monotonic seconds.
        region: Its region; empty if not configured.
        endpoints: Paths of the only endpoints that it serves; None: all.
        breaker: Its circuit breaker.
        warming: Whether its cache is being warmed: until then it is used only if there are no others.
        drain_causes: Why it drains; empty if it does not.
        drain_ordered_at: Unix time of the last operator order about draining; None without one.
        flights: Its in-flight requests.
        silence: How long they have waited for nothing.
        starts: The start times of the engine that it has reported.
        answered_at: When its last complete answer ended, in monotonic seconds.
        facts: Facts from its metrics.
        server: Facts from SGLang's ``/server_info`` that its metrics lack; None before they were read.
        card: Its entry for the model in ``/v1/models``, or None.
        wrong_model: Whether it has no such entry: its address may belong to another model's engine by now.
        usage_details: Whether its answers report cached prompt tokens; None while unknown.
        prompt_finding: Why its prompts have other tokens than the gateway's, and what to do; empty if nothing is known.
        targets: Its ranks as targets. A single rank is always rank 0, even if the engine numbers it differently: the
            other ranks are other replicas then.
        loads: The load of each rank, by rank; also of ranks that it has no more.
    """

    up = _Deciding[bool | None]()
    ramp_until = _Deciding[float]()
    region = _Deciding[str]()
    endpoints = _Deciding[tuple[str, ...] | None]()
    warming = _Deciding[bool]()
    wrong_model = _Deciding[bool]()

    def __init__(
        self,
        replica_id: ReplicaId,
        url: str,
        model: ModelId,
        speed: LearnedRates,
        *,
        authorization: bytes | None = None,
        tls_files: TlsFiles = NO_FILES,
        region: str = "",
        endpoints: tuple[str, ...] | None = None,
        breaker: RelaySettings = _DEFAULT_LIMITS,
    ) -> None:
        self.on_change: Callable[[], None] = _nothing
        self.id = replica_id
        self.url = url
        self.origin = Origin.parse(url, tls_files)
        self.model = model
        self.authorization = authorization
        self.region = region
        self.endpoints = endpoints
        self.speed = speed
        self.traffic = ModelTraffic()
        self.up = None
        self.down_since: float | None = None
        self.ramp_until = 0.0
        self.breaker = Breaker(breaker)
        self.warming = False
        self.drain_causes: set[DrainCause] = set()
        self.drain_ordered_at: float | None = None
        self.flights: set[InflightRequest] = set()
        self.silence = Silence()
        self.starts = StartTimes()
        self.answered_at = -math.inf
        self.facts = EngineFacts()
        self.server: ServerFacts | None = None
        self.card: Mapping[str, Any] | None = None
        self.wrong_model = False
        self.usage_details: bool | None = None
        self.prompt_finding = ""
        self._targets = {0: Target(replica_id)}
        self.targets: Sequence[Target] = tuple(self._targets.values())
        self.loads: dict[int, RankLoad] = {0: RankLoad()}

    def state(self, now: float) -> ReplicaState:
        """Its state at ``now`` (monotonic seconds)."""
        if self.draining:
            only_sleeps = self.drain_causes == {DrainCause.SLEEPING} and self.up
            return ReplicaState.SLEEPING if only_sleeps else ReplicaState.DRAINING
        if self.up is None:
            return ReplicaState.STARTING
        if self.up and self.breaker.is_stuck:
            return ReplicaState.STUCK
        if not self.up or self._is_ejected(now):
            return ReplicaState.EJECTED
        if self.breaker.failures or self.breaker.is_open(now):
            return ReplicaState.SUSPECT
        return ReplicaState.STARTING if self.warming or now < self.ramp_until else ReplicaState.READY

    def _is_ejected(self, now: float) -> bool:
        """Whether it failed repeatedly and gets no requests now.

        When the breaker is no longer open the next request is sent on trial, as after a single failure. Health checks
        cannot show that it works again, as they passed while requests failed.
        """
        return self.breaker.ejected and (self.breaker.is_open(now) or self.is_tried())

    @property
    def draining(self) -> bool:
        """Whether it drains: it gets no new requests in any state."""
        return bool(self.drain_causes)

    def drain(self, cause: DrainCause, *, on: bool) -> bool:
        """Start or stop draining for a cause; returns whether ``draining`` changed."""
        before = self.draining
        (self.drain_causes.add if on else self.drain_causes.discard)(cause)
        if self.draining is before:
            return False
        self.on_change()
        _log.info("replica_draining" if self.draining else "replica_drain_ended", replica=self.id, cause=str(cause))
        return True

    def serves(self, path: str = "") -> bool:
        """Whether it serves an ``EnginePath``; without a path, whether it serves generation requests."""
        return self.endpoints is None or (path or Endpoint.CHAT) in self.endpoints

    def is_tried(self) -> bool:
        """Whether a request on trial, sent since the last failure, still waits for its first content."""
        since = self.breaker.since
        return any(flight.sent_at >= since and flight.content_at is None for flight in self.flights)

    def ended(self, flight: InflightRequest, now: float) -> None:
        """A request in flight is over, at ``now`` in monotonic seconds."""
        self.flights.discard(flight)
        self.silence.ended(flight, now)
        if flight.content_at is None and self.breaker.is_stuck and flight.sent_at >= self.breaker.since:
            self.breaker.silent(now)  # the trial showed nothing: its client left, or it was refused

    @property
    def refusal(self) -> str:
        """How it refuses the gateway, as of its last failure; empty if it does not. See ``Breaker``."""
        return self.breaker.refusal

    @property
    def requests(self) -> int:
        """Requests in flight."""
        return sum(load.requests for load in self.loads.values())

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens in flight that are not yet computed."""
        return sum(load.prefills.tokens for load in self.loads.values())

    def asked_target(self, asked_rank: int) -> Target | None:
        """The target of a client's own ``x-data-parallel-rank`` header; None if there is no such rank."""
        return self._targets.get(asked_rank + self._first_rank())

    def move(self, url: str) -> None:
        """Change its address; it counts as not checked."""
        self.url = url
        self.origin = Origin.parse(url)
        self.up = None
        self.down_since = None
        self.wrong_model = False
        self.starts.moved()

    def rank_header(self, rank: int) -> bytes | None:
        """Value of the ``x-data-parallel-rank`` header for a rank; None if there is only one."""
        return None if len(self._targets) == 1 else str(rank - self._first_rank()).encode()

    def load(self, rank: int, now: float) -> Load:
        """Load of one rank for placement, at ``now`` (monotonic seconds)."""
        return loads_at((self.load_source(rank),), now)[0]

    def fair_load(self, rank: int, now: float) -> Load:
        """As ``load``, but foreign work counts at most as much as this gateway's own, and prompts count in full.

        Used for backing off: gateways that do not share state still share a replica fairly, and a replica that is late
        with a first token gets no further requests meanwhile.
        """
        own = self.loads[rank]
        requests, prefill_tokens = own.foreign(now, self.traffic)
        tokens, sequences = own.prefills.tokens, own.sequences
        return Load(
            self._targets[rank],
            min(tokens + own.peers.prefill_tokens + prefill_tokens, 2 * tokens),
            min(sequences + own.peers.sequences + requests, 2 * sequences),
            self.speed.rates,
        )

    def load_source(self, rank: int) -> LoadSource:
        """What the load of one rank is made of."""
        return LoadSource(self._targets[rank], self.loads[rank], self.speed, self.traffic)

    def dispatch(self, rank: int, prefill_tokens: int, now: float, sequences: int = 1) -> Ticket:
        """Count a request with ``prefill_tokens`` uncached tokens as in flight, as ``sequences`` engine requests.

        ``now`` is monotonic seconds.
        """
        self.traffic.sent(prefill_tokens)
        return self.loads[rank].send(prefill_tokens, sequences, now, self.speed)

    def begin_scrape(self) -> None:
        """Its metrics are about to be read."""
        for load in self.loads.values():
            load.begin_scrape()

    def end_scrape(self, facts: EngineFacts, valid_until: float) -> None:
        """Its metrics were read; foreign load is valid until ``valid_until`` (monotonic seconds)."""
        before, self.facts = self.facts, facts
        several = len(facts.ranks) > 1
        ranks = [each.rank for each in facts.ranks] if several else [0]
        if list(self._targets) != ranks:
            self._targets = {rank: Target(self.id, rank) for rank in ranks}
            self.targets = tuple(self._targets.values())
            self.on_change()
        elif before.block_size != facts.block_size:
            self.on_change()
        by_rank = {each.rank if several else 0: each for each in facts.ranks}
        for rank in ranks:
            self.loads.setdefault(rank, RankLoad()).end_scrape(by_rank.get(rank), self.traffic, valid_until)

    def answered(self, usage: Usage | None, held_tokens: int) -> None:
        """Record an answer; warns once if its answers do not report cached tokens.

        Args:
            usage: Usage reported by the answer.
            held_tokens: Prompt tokens it was predicted to hold.
        """
        if usage is None:
            return
        if usage.cached_tokens is not None:
            self.usage_details = True
        elif self.usage_details is None and (held_tokens > 0 or self.facts.kind is EngineKind.VLLM):
            # SGLang omits the count when it is zero, so only a prompt that should be cached is evidence.
            self.lacks_usage_details()

    def lacks_usage_details(self) -> None:
        """Record and log that its answers do not report cached prompt tokens."""
        self.usage_details = False
        _log.warning("usage_details_missing", replica=self.id, fix=advice(self.facts.kind).usage_details)

    def _first_rank(self) -> int:
        """Offset of the rank numbers in the header: vLLM counts the ranks behind one port from 0 there, also
        where its metrics count them through several machines (``v1/engine/input_processor.py``, hybrid balancing)."""
        return min(self._targets) if self.facts.kind is EngineKind.VLLM else 0


def _nothing() -> None:
    pass
