"""The replicas of every model: which of them can take a request."""

from collections.abc import Collection, Iterable, Sequence

from gateway.core.ids import ModelId, ReplicaId
from gateway.engines import is_count
from gateway.fleet.replica import Replica
from gateway.fleet.slow_start import has_room


class Fleet:
    """All replicas, by model.

    Args:
        replicas: The first ones.
        ramp_seconds: How long it takes until a replica that comes up gets its whole share.

    Attributes:
        ramp_seconds: The same.
    """

    def __init__(self, replicas: Iterable[Replica], ramp_seconds: float = 0) -> None:
        self.ramp_seconds = ramp_seconds
        self._by_model: dict[ModelId, list[Replica]] = {}
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
        """One more. Replicas of one model share what is learned of its traffic."""
        of_model = self._by_model.setdefault(replica.model, [])
        if of_model:
            replica.traffic = of_model[0].traffic
        of_model.append(replica)

    def remove(self, replica: Replica) -> None:
        """One less; what it is still busy with goes on."""
        self._by_model[replica.model].remove(replica)

    def find(self, replica: ReplicaId) -> Replica | None:
        """A replica by its name."""
        return next((each for each in self.replicas if each.id == replica), None)

    def routable(
        self,
        model: ModelId,
        now: float,
        exclude: Collection[ReplicaId] = (),
        regions: Collection[str] = (),
    ) -> Sequence[Replica]:
        """Replicas of a model that may get a request, the most trustworthy kind that there is.

        Those that are ready, those that have just come up as far as their share goes, and one that failed if it is time
        to try it again; else those that are being warmed, were never checked, or have their share. If more than half
        failed requests lately, then all: rather some requests fail at first than one replica gets what is meant for
        many. A request that failed somewhere already is better off: it goes to one of those only if there is no other.
        Never those whose checks fail, those that are to leave, and those of another region than the given ones; nor
        those that say they serve another model, unless all of them say so.

        Args:
            model: The model.
            now: Monotonic seconds.
            exclude: Replicas that are left out, because they failed the request.
            regions: Where they have to be; empty for anywhere.
        """
        known = [
            r
            for r in self._fitting(model)
            if r.up is not False and not r.draining and r.id not in exclude and (not regions or r.region in regions)
        ]
        sound = [r for r in known if not _failing(r, now)]
        if not sound or (2 * len(sound) < len(known) and not exclude):
            return known
        return [r for r in sound if r.up and not r.warming and self._has_room(r, sound, now)] or sound

    def adapter(self, model: ModelId) -> str:
        """The LoRA adapter's name, if a model is one that its engines serve beside their base model; else empty."""
        cards = (replica.card for replica in self.of(model))
        return model if any(card and card.get("parent") for card in cards) else ""

    def context_limit(self, model: ModelId) -> int:
        """The longest context in tokens that every engine of a model takes, as far as they tell; else 0."""
        limits = [replica.card.get("max_model_len") for replica in self.of(model) if replica.card]
        return min((limit for limit in limits if is_count(limit) and limit), default=0)

    def ready(self, model: ModelId) -> bool:
        """Whether a model has a replica whose checks pass, and that does not drain."""
        return any(replica.up and not replica.draining for replica in self._fitting(model))

    def _fitting(self, model: ModelId) -> Sequence[Replica]:
        """Those that serve it; all if none says so: then its name is what is wrong."""
        replicas = self._by_model.get(model, ())
        return [each for each in replicas if not each.misfit] or replicas

    def _has_room(self, replica: Replica, sound: Sequence[Replica], now: float) -> bool:
        seconds_left = replica.ramp_until - now
        if seconds_left <= 0:
            return True
        others = [other.requests for other in sound if other.up and other.ramp_until <= now]
        return has_room(replica.requests, self.ramp_seconds - seconds_left, self.ramp_seconds, others)


def _failing(replica: Replica, now: float) -> bool:
    breaker = replica.breaker
    return breaker.is_open(now) or (breaker.on_trial(now) and replica.is_tried())
