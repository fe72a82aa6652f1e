"""The replicas of every model: which can take requests, and what each is busy with."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.relay.http import Origin
from gateway.values.engine import EngineFacts
from gateway.values.ids import ModelId, ReplicaId
from gateway.values.load import Load
from gateway.values.ports import RateLearner


class Ticket:
    """One request's share of a replica's load. Both steps may be repeated without harm."""

    __slots__ = ("_open", "_replica", "prefill_ahead", "prefill_tokens")

    def __init__(self, replica: "Replica", prefill_tokens: int) -> None:
        self._replica = replica
        self._open = True
        self.prefill_ahead = replica.prefill_tokens
        self.prefill_tokens = prefill_tokens
        replica.prefill_tokens += prefill_tokens
        replica.requests += 1

    def prefill_done(self) -> None:
        """The prompt is computed."""
        self._replica.prefill_tokens -= self.prefill_tokens
        self.prefill_tokens = 0

    def done(self) -> None:
        """The request is over, however it ended."""
        self.prefill_done()
        if self._open:
            self._open = False
            self._replica.requests -= 1


class Replica:
    """One engine replica.

    Attributes:
        id: Its name.
        url: Base URL, as configured.
        origin: The same, taken apart.
        model: The model it serves.
        authorization: Value of the ``authorization`` header to send there, or None.
        speed: What was learned of its speed.
        up: Whether its health checks pass; None before the first one ended.
        suspect_until: Monotonic seconds until which it is used only for want of others: it just failed.
        facts: What its metrics say.
        card: Its entry of the model in its ``/v1/models``, or None.
        prefill_tokens: Uncached prompt tokens sent there and not yet computed.
        requests: Requests sent there and not yet over.
    """

    def __init__(
        self, replica_id: ReplicaId, url: str, model: ModelId, speed: RateLearner, authorization: bytes | None = None
    ) -> None:
        self.id = replica_id
        self.url = url
        self.origin = Origin.parse(url)
        self.model = model
        self.authorization = authorization
        self.speed = speed
        self.up: bool | None = None
        self.suspect_until = 0.0
        self.facts = EngineFacts()
        self.card: Mapping[str, Any] | None = None
        self.prefill_tokens = 0
        self.requests = 0

    def load(self) -> Load:
        """What placement needs to know, now."""
        return Load(self.id, self.prefill_tokens, self.requests, self.speed.rates)

    def dispatch(self, prefill_tokens: int) -> Ticket:
        """A request with that many uncached tokens is being sent there."""
        return Ticket(self, prefill_tokens)


class Fleet:
    """All replicas, by model."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._by_model: dict[ModelId, list[Replica]] = {}
        for replica in replicas:
            self._by_model.setdefault(replica.model, []).append(replica)

    @property
    def replicas(self) -> Sequence[Replica]:
        """Every replica."""
        return [replica for replicas in self._by_model.values() for replica in replicas]

    def of(self, model: ModelId) -> Sequence[Replica]:
        """Every replica of a model."""
        return self._by_model.get(model, ())

    def routable(self, model: ModelId, now: float, exclude: Collection[ReplicaId] = ()) -> Sequence[Replica]:
        """Replicas of a model that may get a request, the most trustworthy kind that there is.

        Those whose checks pass; else those that pass but just failed a request, or were never checked; never those
        whose checks fail.
        """
        known = [r for r in self._by_model.get(model, ()) if r.up is not False and r.id not in exclude]
        trusted = [r for r in known if r.up and r.suspect_until <= now]
        return trusted or known

    def ready(self, model: ModelId) -> bool:
        """Whether a model has a replica whose checks pass."""
        return any(replica.up for replica in self.of(model))


def suspect(replica: Replica, seconds: float) -> None:
    """A request just failed there: prefer others for a while."""
    replica.suspect_until = time.monotonic() + seconds
