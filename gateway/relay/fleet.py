"""The replicas of every model: which can take requests, and what each is busy with."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from gateway.relay.http import Origin
from gateway.relay.rank import RankLoad, Ticket
from gateway.relay.traffic import ModelTraffic
from gateway.values.engine import EngineFacts, EngineKind
from gateway.values.ids import ModelId, ReplicaId, Target
from gateway.values.load import Load
from gateway.values.outcome import Usage
from gateway.values.ports import RateLearner
from gateway.vendors import ServerFacts, advice

_log = structlog.get_logger("gateway.relay")


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
        region: Where it is; empty if the configuration does not say.
        suspect_until: Monotonic seconds until which it is used only for want of others: it just failed.
        warming: Whether its cache is being filled: until that is done it is used only for want of others.
        facts: What its metrics say.
        server: What SGLang says of its arguments, where its metrics do not; None before it did.
        card: Its entry of the model in its ``/v1/models``, or None.
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
        self.suspect_until = 0.0
        self.warming = False
        self.facts = EngineFacts()
        self.server: ServerFacts | None = None
        self.card: Mapping[str, Any] | None = None
        self.usage_details: bool | None = None
        self._targets = {0: Target(replica_id)}
        self._loads = {0: RankLoad()}

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
        return list(self._targets.values())

    def asked_target(self, asked_rank: int) -> Target | None:
        """The target that a client means which sends ``x-data-parallel-rank`` itself; None if there is no such."""
        return self._targets.get(asked_rank + self._first_rank())

    def rank_header(self, rank: int) -> bytes | None:
        """Value of ``x-data-parallel-rank`` by which the engine sends a request to a rank; None if it has only one."""
        return None if len(self._targets) == 1 else str(rank - self._first_rank()).encode()

    def load(self, rank: int, now: float) -> Load:
        """What placement needs to know of one rank, at ``now`` (monotonic seconds)."""
        own = self._loads[rank]
        requests, prefill_tokens = own.foreign(now, self.traffic)
        return Load(
            self._targets[rank], own.prefill_tokens + prefill_tokens, own.sequences + requests, self.speed.rates
        )

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
        self._targets = {rank: Target(self.id, rank) for rank in ranks}
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


class Fleet:
    """All replicas, by model."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._by_model: dict[ModelId, list[Replica]] = {}
        for replica in replicas:
            of_model = self._by_model.setdefault(replica.model, [])
            if of_model:
                replica.traffic = of_model[0].traffic
            of_model.append(replica)

    @property
    def replicas(self) -> Sequence[Replica]:
        """Every replica."""
        return [replica for replicas in self._by_model.values() for replica in replicas]

    def of(self, model: ModelId) -> Sequence[Replica]:
        """Every replica of a model."""
        return self._by_model.get(model, ())

    def routable(
        self,
        model: ModelId,
        now: float,
        exclude: Collection[ReplicaId] = (),
        regions: Collection[str] = (),
    ) -> Sequence[Replica]:
        """Replicas of a model that may get a request, the most trustworthy kind that there is.

        Those whose checks pass; else those that pass but just failed a request, are being warmed, or were never
        checked; never those whose checks fail, and never those of another region than the given ones.

        Args:
            model: The model.
            now: Monotonic seconds.
            exclude: Replicas that are left out.
            regions: Where they have to be; empty for anywhere.
        """
        known = [
            r
            for r in self._by_model.get(model, ())
            if r.up is not False and r.id not in exclude and (not regions or r.region in regions)
        ]
        trusted = [r for r in known if r.up and r.suspect_until <= now and not r.warming]
        return trusted or known

    def adapter(self, model: ModelId) -> str:
        """The LoRA adapter's name, if a model is one that its engines serve beside their base model; else empty."""
        cards = (replica.card for replica in self.of(model))
        return model if any(card and card.get("parent") for card in cards) else ""

    def context_limit(self, model: ModelId) -> int:
        """The longest context in tokens that every engine of a model takes, as far as they tell; else 0."""
        limits = [replica.card.get("max_model_len") for replica in self.of(model) if replica.card]
        return min((limit for limit in limits if type(limit) is int), default=0)

    def ready(self, model: ModelId) -> bool:
        """Whether a model has a replica whose checks pass."""
        return any(replica.up for replica in self.of(model))


def suspect(replica: Replica, seconds: float) -> None:
    """A request just failed there: prefer others for a while."""
    replica.suspect_until = time.monotonic() + seconds
