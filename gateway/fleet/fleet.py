"""The replicas of every model: which of them can take a request. No I/O, no clock."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.core.ids import ModelId, ReplicaId
from gateway.engines import is_count
from gateway.fleet.breaker import Breaker
from gateway.fleet.replica import Replica

_FIRST_REQUESTS = 1
"""Concurrent requests that a replica in slow start may have from the beginning."""

_NO_CARDS = ("", 0)

_MAX_KEPT = 256
"""Models, with regions and paths, for which the replicas are kept."""


class _Standing(NamedTuple):
    """Replicas of a model in some regions, by all that decides about them and rarely changes.

    Attributes:
        known: Those that may get requests.
        preferred: What ``routable`` returns while none of them has failed or is in slow start.
        breakers: Theirs.
        ramp_until: When the last slow start among them ends, in monotonic seconds.
    """

    known: Sequence[Replica]
    preferred: Sequence[Replica]
    breakers: Sequence[Breaker]
    ramp_until: float


class Fleet:
    """All replicas, by model.

    Args:
        replicas: The first ones.
        ramp_seconds: Length of the slow start of a new replica.

    Attributes:
        ramp_seconds: The same.
        version: Grows with every change after which what was made of its replicas has to be made anew: the replicas
            themselves, whether they get requests, their targets and block sizes.
    """

    def __init__(self, replicas: Iterable[Replica], ramp_seconds: float = 0) -> None:
        self.ramp_seconds = ramp_seconds
        self.version = 0
        self._by_model: dict[ModelId, list[Replica]] = {}
        # By model, from the cards of its replicas: adapter and context limit, which every request needs.
        self._card_facts: dict[ModelId, tuple[str, int]] = {}
        # Until a replica changes.
        self._standing: dict[tuple[ModelId, frozenset[str], str], _Standing] = {}
        for replica in replicas:
            self.add(replica)

    @property
    def replicas(self) -> Sequence[Replica]:
        """Every replica."""
        return [replica for replicas in self._by_model.values() for replica in replicas]

    def of(self, model: ModelId) -> Sequence[Replica]:
        """Every replica of a model."""
        return self._by_model.get(model, ())

    def add(self, replica: Replica) -> None:
        """Add a replica. Replicas of one model share one ``ModelTraffic``."""
        of_model = self._by_model.setdefault(replica.model, [])
        if of_model:
            replica.traffic = of_model[0].traffic
        of_model.append(replica)
        replica.on_change = self.changed
        self.changed()
        self._read_cards(replica.model)

    def remove(self, replica: Replica) -> None:
        """Remove a replica; its in-flight requests continue."""
        self._by_model[replica.model].remove(replica)
        self.changed()
        self._read_cards(replica.model)

    def changed(self) -> None:
        """Something has changed; see ``version``."""
        self.version += 1
        self._standing.clear()

    def find(self, replica: ReplicaId) -> Replica | None:
        """A replica by its name."""
        return next((each for each in self.replicas if each.id == replica), None)

    def set_card(self, replica: Replica, card: Mapping[str, Any] | None) -> None:
        """A replica's entry for its model in ``/v1/models`` was read."""
        replica.card = card
        self._read_cards(replica.model)

    def set_warming(self, replica: ReplicaId, on: bool) -> None:
        """Begin or end the warm-up of a replica: meanwhile it gets requests only if no other replica can."""
        known = self.find(replica)
        if known is not None:
            known.warming = on

    def routable(
        self,
        model: ModelId,
        now: float,
        exclude: Collection[ReplicaId] = (),
        regions: Collection[str] = (),
        path: str = "",
    ) -> Sequence[Replica]:
        """Replicas of a model that may get a request.

        First choice: ready replicas, replicas in slow start within their share, and a failed replica that is due for a
        trial; one that was silent gets the next request, at any cost. Otherwise: replicas that are being warmed,
        were never checked, or have used their share. If more than half have failed recently: all of them, because the
        rest would be overloaded; a retry uses failed replicas only if there are no others. Never: replicas whose checks
        fail, that drain, or that are in another region; nor replicas that serve another model, unless all of them do.

        Args:
            model: The model.
            now: Monotonic seconds.
            exclude: Replicas that already failed the request.
            regions: Allowed regions; empty for any.
            path: The called ``EnginePath``; empty for generation.
        """
        key = model, frozenset(regions), path
        standing = self._standing.get(key) or self._stand(key)
        if not exclude and standing.ramp_until <= now:
            for breaker in standing.breakers:
                if breaker.failures or breaker.until > now:
                    break
            else:
                return standing.preferred
        return self._usable(standing, now, exclude, path)

    def _stand(self, key: tuple[ModelId, frozenset[str], str]) -> _Standing:
        """Work out, and keep, the replicas of a model in some regions."""
        model, regions, path = key
        known = [
            r
            for r in self._fitting(model)
            if r.up is not False and not r.drain_causes and (not regions or r.region in regions) and r.serves(path)
        ]
        first = [r for r in known if r.up and not r.warming]
        standing = _Standing(
            known, first or known, [r.breaker for r in known], max([r.ramp_until for r in first], default=0.0)
        )
        if len(self._standing) >= _MAX_KEPT:
            self._standing.clear()
        self._standing[key] = standing
        return standing

    def _usable(self, standing: _Standing, now: float, exclude: Collection[ReplicaId], path: str) -> Sequence[Replica]:
        """``routable`` while replicas fail or are in slow start, or for a retry."""
        known = [r for r in standing.known if r.id not in exclude]
        sound: list[Replica] = []
        first: list[Replica] = []
        ramping = False
        stuck = 0
        for r in known:
            if (r.breaker.failures or r.breaker.until > now) and _failing(r, now):
                stuck += r.breaker.is_stuck
                continue
            if r.breaker.is_stuck and path:
                continue  # its answer would not show that prompts are computed again
            if r.breaker.is_stuck and not exclude:
                return [r]  # placement might never choose it, as long as the others hold the prompts
            sound.append(r)
            if r.up and not r.warming:
                first.append(r)
                ramping = ramping or r.ramp_until > now
        if not sound or (2 * len(sound) < len(known) - stuck and not exclude):
            return known
        if ramping:
            busiest = max([r.requests for r in sound if r.up and r.ramp_until <= now], default=None)
            first = [r for r in first if r.ramp_until <= now or self._has_room(r, busiest, now)]
        return first or sound

    def context_limit(self, model: ModelId) -> int:
        """The longest context in tokens that every engine of a model accepts; 0 if none reports it."""
        return self._card_facts.get(model, _NO_CARDS)[1]

    def card_facts(self, model: ModelId) -> tuple[str, int]:
        """The LoRA adapter's name if a model is an adapter, else an empty one, and its ``context_limit``.

        The same object until a replica's card is read again.
        """
        return self._card_facts.get(model, _NO_CARDS)

    def ready(self, model: ModelId) -> bool:
        """Whether a model has a replica whose checks pass and that does not drain."""
        return any(replica.up and not replica.draining for replica in self._fitting(model))

    def _read_cards(self, model: ModelId) -> None:
        cards = [replica.card for replica in self._by_model[model] if replica.card]
        limits = [card.get("max_model_len") for card in cards]
        self._card_facts[model] = (
            model if any(card.get("parent") for card in cards) else "",
            min([limit for limit in limits if is_count(limit) and limit], default=0),
        )

    def _fitting(self, model: ModelId) -> Sequence[Replica]:
        """Replicas that serve the model; all if none does: then the configured name is wrong."""
        replicas = self._by_model.get(model, ())
        return [each for each in replicas if not each.wrong_model] or replicas

    def _has_room(self, replica: Replica, busiest: int | None, now: float) -> bool:
        seconds_up = self.ramp_seconds - (replica.ramp_until - now)
        return has_room(replica.requests, seconds_up, self.ramp_seconds, busiest)


def _failing(replica: Replica, now: float) -> bool:
    breaker = replica.breaker
    if not breaker.failures:
        return now < breaker.until
    return breaker.is_open(now) or (breaker.on_trial(now) and replica.is_tried())


def has_room(requests: int, seconds_up: float, ramp_seconds: float, busiest: int | None) -> bool:
    """Whether a replica in slow start may get one more request: its share grows over a ramp.

    Its queue and its cache are empty. Without a ramp it would be the cheapest target for every cold prompt of the whole
    fleet at once, and their prefills would queue up; connections and compiled kernels are cold, too.

    Args:
        requests: Its requests in flight.
        seconds_up: Time since it came up.
        ramp_seconds: How long the ramp is; 0 for none.
        busiest: Most requests in flight at a replica of the model that is past its ramp; None without such a replica:
            then there is no ramp.
    """
    if seconds_up >= ramp_seconds or busiest is None:
        return True
    share = seconds_up / ramp_seconds
    return requests < _FIRST_REQUESTS + int(share * busiest)
