"""One replica: whether it can take requests, and what it is busy with."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.outcome import Usage
from gateway.core.ports import RateLearner
from gateway.core.replica_state import DrainCause, ReplicaState
from gateway.core.target_load import Load
from gateway.engines import ServerFacts, advice
from gateway.fleet.breaker import DEFAULT_LIMITS, Breaker, BreakerLimits
from gateway.fleet.inflight_request import InflightRequest
from gateway.fleet.model_traffic import ModelTraffic
from gateway.fleet.rank_load import RankLoad, Ticket
from gateway.http_client import Origin

_log = structlog.get_logger("gateway.proxy")


class Replica:
    """One engine replica.

    Attributes:
        id: Its name.
        url: Base URL, as configured.
        origin: The same, taken apart.
        model: The model it serves.
        authorization: Value of the ``authorization`` header to send there, or None.
        speed: What was learned of its speed.
        traffic: What was learned of its model's traffic.
        up: Whether its health checks pass; None before the first one ended.
        down_since: Monotonic seconds when they began to fail; None while they pass.
        ramp_until: Monotonic seconds until which it gets its share little by little.
        region: Where it is; empty if the configuration does not say.
        breaker: How it bears the requests it gets.
        warming: Whether its cache is being filled: until that is done it is used only for want of others.
        drain_causes: Why it gets no more requests; mostly empty.
        drain_ordered_at: Unix time of the last order to drain it, or not to any more; None: there was none.
        flights: Its requests.
        answered_at: When an answer of it was complete last, in monotonic seconds.
        facts: What its metrics say.
        server: What SGLang says of its arguments, where its metrics do not; None before it did.
        card: Its entry of the model in its ``/v1/models``, or None.
        misfit: Whether the model is not in there: an address may have gone to an engine of another one.
        usage_details: Whether its answers say how many prompt tokens were cached; None as long as none has shown it.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        url: str,
        model: ModelId,
        speed: RateLearner,
        *,
        authorization: bytes | None = None,
        region: str = "",
        breaker: BreakerLimits = DEFAULT_LIMITS,
    ) -> None:
        self.id = replica_id
        self.url = url
        self.origin = Origin.parse(url)
        self.model = model
        self.authorization = authorization
        self.region = region
        self.speed = speed
        self.traffic = ModelTraffic()
        self.up: bool | None = None
        self.down_since: float | None = None
        self.ramp_until = 0.0
        self.breaker = Breaker(breaker)
        self.warming = False
        self.drain_causes: set[DrainCause] = set()
        self.drain_ordered_at: float | None = None
        self.flights: set[InflightRequest] = set()
        self.answered_at = -math.inf
        self.facts = EngineFacts()
        self.server: ServerFacts | None = None
        self.card: Mapping[str, Any] | None = None
        self.misfit = False
        self.usage_details: bool | None = None
        self._targets = {0: Target(replica_id)}
        self._target_list = tuple(self._targets.values())
        self._loads = {0: RankLoad()}

    def state(self, now: float) -> ReplicaState:
        """What it is at ``now`` (monotonic seconds)."""
        if self.draining:
            return ReplicaState.DRAINING
        if self.up is None:
            return ReplicaState.STARTING
        if not self.up or self._is_ejected(now):
            return ReplicaState.EJECTED
        if self.breaker.failures or self.breaker.is_open(now):
            return ReplicaState.SUSPECT
        return ReplicaState.STARTING if self.warming or now < self.ramp_until else ReplicaState.READY

    def _is_ejected(self, now: float) -> bool:
        """Whether it failed requests again and again and gets none now.

        Once its time is over the next request tries it, so it is no worse off than one that failed once. Nothing else
        would show that it works again: its checks passed while it failed, too.
        """
        return self.breaker.ejected and (self.breaker.is_open(now) or self.is_tried())

    @property
    def draining(self) -> bool:
        """Whether it gets no more requests, whatever else is known of it."""
        return bool(self.drain_causes)

    def drain(self, cause: DrainCause, *, on: bool) -> bool:
        """Begin to drain it for a cause, or end that; returns whether ``draining`` is another than before."""
        before = self.draining
        (self.drain_causes.add if on else self.drain_causes.discard)(cause)
        if self.draining is before:
            return False
        _log.info("replica_draining" if self.draining else "replica_drain_ended", replica=self.id, cause=str(cause))
        return True

    def is_tried(self) -> bool:
        """Whether a request that was sent there since it last failed still waits for its first byte."""
        since = self.breaker.since
        return any(flight.sent_at >= since and flight.heard_at == flight.sent_at for flight in self.flights)

    @property
    def requests(self) -> int:
        """Requests sent there and not yet over."""
        return sum(load.requests for load in self._loads.values())

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens sent there and not yet computed."""
        return sum(load.prefill_tokens for load in self._loads.values())

    def targets(self) -> Sequence[Target]:
        """Its ranks as targets. A replica with a single rank is one with rank 0, whatever number the engine gives it:
        the ranks beside it are other replicas."""
        return self._target_list

    def asked_target(self, asked_rank: int) -> Target | None:
        """The target that a client means which sends ``x-data-parallel-rank`` itself; None if there is no such."""
        return self._targets.get(asked_rank + self._first_rank())

    def move(self, url: str) -> None:
        """It is reached at another address from now on, and was not looked at there yet."""
        self.url = url
        self.origin = Origin.parse(url)
        self.up = None
        self.down_since = None
        self.misfit = False

    def rank_header(self, rank: int) -> bytes | None:
        """Value of ``x-data-parallel-rank`` by which the engine sends a request to a rank; None if it has only one."""
        return None if len(self._targets) == 1 else str(rank - self._first_rank()).encode()

    def load(self, rank: int, now: float) -> Load:
        """What placement needs to know of one rank, at ``now`` (monotonic seconds)."""
        own = self._loads[rank]
        requests, prefill_tokens = own.foreign(now, self.traffic)
        return Load(
            self._targets[rank],
            own.prefill_tokens + own.peers.prefill_tokens + prefill_tokens,
            own.sequences + own.peers.sequences + requests,
            self.speed.rates,
        )

    def fair_load(self, rank: int, now: float) -> Load:
        """As ``load``, but with no more of others' requests there than of this gateway's own.

        By this one, gateways that look away from each other share a replica: nobody gives way to more than it has.
        """
        own, load = self._loads[rank], self.load(rank, now)
        return Load(
            load.target,
            min(load.prefill_tokens, 2 * own.prefill_tokens),
            min(load.requests, 2 * own.sequences),
            load.rates,
        )

    def loads(self) -> Iterable[tuple[int, RankLoad]]:
        """Its ranks, and what is in flight there."""
        return self._loads.items()

    def dispatch(self, rank: int, prefill_tokens: int, sequences: int = 1) -> Ticket:
        """A request with that many uncached tokens is being sent there; the engine counts it as ``sequences``."""
        self.traffic.sent(prefill_tokens)
        return Ticket(self._loads[rank], prefill_tokens, sequences)

    def begin_look(self) -> None:
        """Its metrics are about to be read."""
        for load in self._loads.values():
            load.begin_look()

    def end_look(self, facts: EngineFacts, valid_until: float) -> None:
        """Its metrics are read; what they say of others' requests holds until ``valid_until`` (monotonic seconds)."""
        self.facts = facts
        several = len(facts.ranks) > 1
        ranks = [each.rank for each in facts.ranks] if several else [0]
        if list(self._targets) != ranks:
            self._targets = {rank: Target(self.id, rank) for rank in ranks}
            self._target_list = tuple(self._targets.values())
        by_rank = {each.rank if several else 0: each for each in facts.ranks}
        for rank in ranks:
            self._loads.setdefault(rank, RankLoad()).end_look(by_rank.get(rank), self.traffic, valid_until)

    def answered(self, usage: Usage | None, held_tokens: int) -> None:
        """It answered a request; warn when its answers turn out not to tell the cached tokens.

        Args:
            usage: What the answer reported.
            held_tokens: Prompt tokens it was believed to hold.
        """
        if usage is None:
            return
        if usage.cached_tokens is not None:
            self.usage_details = True
        elif self.usage_details is None and (held_tokens > 0 or self.facts.kind is EngineKind.VLLM):
            # SGLang leaves the count out when it is zero, so there only a prompt that should be cached tells.
            self.lacks_usage_details()

    def lacks_usage_details(self) -> None:
        """Its answers do not say how many prompt tokens were cached."""
        self.usage_details = False
        _log.warning("usage_details_missing", replica=self.id, fix=advice(self.facts.kind).usage_details)

    def _first_rank(self) -> int:
        """What to take off a rank's number for the header: vLLM counts the ranks behind one port from 0 there, also
        where its metrics count them through several machines (``v1/engine/input_processor.py``, hybrid balancing)."""
        return min(self._targets) if self.facts.kind is EngineKind.VLLM else 0
