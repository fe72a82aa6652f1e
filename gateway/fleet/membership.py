"""Membership of the fleet: adds, changes and removes replicas after the configuration and discovery."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from gateway.config.replica_settings import AddedReplica, ReplicaSettings
from gateway.config.settings import ModelSettings, Settings
from gateway.core.errors import BadRequest, NotFound
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.replica_state import DrainCause, Rates
from gateway.discovery import Condition, DiscoveredReplica
from gateway.fleet.drains import Drains
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import HealthMonitor
from gateway.fleet.replica import Replica
from gateway.http_client.client import HttpClient, Origin
from gateway.index import ReplicaIndex
from gateway.kv_events import FeedPlan, KvFeeds
from gateway.routing import LearnedRates
from gateway.spaces import SpaceKeeper
from gateway.tasks import TaskGroupOwner

_LOOK_SECONDS = 0.5
_IDLE_LOOKS = 3
"""Idle checks in a row after which a leaving replica is removed: its last requests are accounted for shortly after they
end."""

_MAX_ADDED = 256  # by operators, and not removed

_log = structlog.get_logger("gateway.fleet.membership")


@dataclass(slots=True, eq=False)
class _Member:
    replica: Replica
    settings: ReplicaSettings
    removed: bool = False
    """Not configured or discovered any more: it is forgotten once it is idle."""
    leaving: asyncio.Task[None] | None = None
    """Task that waits until it is idle."""


class Membership:
    """Keeps the fleet equal to the configured, added and discovered replicas.

    A replica is identified by its id. One that is no longer listed drains, and is forgotten with all its state once its
    last request has ended. A replica that stays listed keeps its state: index, learned rates, breaker, connections.

    Args:
        settings: Initial rates and breaker limits. Its models are applied by ``configure``.
        fleet: The replicas.
        client: Connections to them.
        drains: Starts and ends drains.
        health: Checks them.
        feeds: Follow their events.
        index: Holds what they cache.
        keeper: Records which engine each of them is.
        on_removed: Called with every replica that was removed.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        fleet: Fleet,
        client: HttpClient,
        drains: Drains,
        health: HealthMonitor,
        feeds: KvFeeds,
        index: ReplicaIndex,
        keeper: SpaceKeeper,
        on_removed: Callable[[Replica], None],
    ) -> None:
        start = settings.placement
        self._rates = Rates(
            base_seconds=start.base_ttft_seconds,
            prefill_seconds_per_token=1 / start.prefill_tokens_per_second,
            decode_seconds_per_token=start.decode_seconds_per_token,
            request_seconds=start.base_ttft_seconds + 100 * start.decode_seconds_per_token,
        )
        self._breaker = settings.relay
        self._fleet = fleet
        self._client = client
        self._drains = drains
        self._health = health
        self._feeds = feeds
        self._index = index
        self._keeper = keeper
        self._on_removed = on_removed
        self._pools: dict[ModelId, LearnedRates] = {}
        self._members: dict[ReplicaId, _Member] = {}
        self._named: dict[ModelId, Sequence[ReplicaSettings]] = {}
        self._added: dict[str, AddedReplica] = {}
        self._found: dict[ModelId, Sequence[DiscoveredReplica]] = {}
        self._clashes: set[tuple[ModelId, str]] = set()
        self._tasks = TaskGroupOwner()

    def configure(self, models: Sequence[ModelSettings]) -> None:
        """Set the configured replicas; discovered replicas are added to them."""
        for model in models:
            self._named[ModelId(model.id)] = model.replicas
        self._update_all()

    def found(self, model: ModelId, found: Sequence[DiscoveredReplica]) -> None:
        """Set the discovered replicas of a model; they are added to the configured ones."""
        self._found[model] = found
        self._update(model)

    def add(self, settings: AddedReplica) -> None:
        """Add a replica, until it is removed or the process ends. One that was added so already stays as it is.

        Raises:
            NotFound: Its model is not served.
            BadRequest: Another replica has its id or URL, or there are too many.
        """
        model = ModelId(settings.model)
        if self._added.get(settings.id) == settings:
            return
        if model not in self._named:
            raise NotFound(f"`model` must be one of {', '.join(self._named)}.", param="model", code="model_not_found")
        there = [member.settings for member in self._members.values() if not member.removed]
        for name in ("id", "url"):
            if any(getattr(each, name) == getattr(settings, name) for each in there):
                raise BadRequest(f"There is a replica with this `{name}` already.", param=name, code="replica_exists")
        if len(self._added) >= _MAX_ADDED:
            raise BadRequest(f"{_MAX_ADDED} replicas were added: remove some first.", code="too_many_replicas")
        self._added[settings.id] = settings
        self._update(model)

    def remove(self, replica: str) -> None:
        """Drain an added replica, and forget it once it is idle.

        Raises:
            NotFound: It was not added.
        """
        removed = self._added.pop(replica, None)
        if removed is None:
            message = "No replica of this id was added here; configured and discovered ones can only be drained."
            raise NotFound(message, param="replica", code="unknown_replica")
        self._update(ModelId(removed.model))

    def model_of(self, replica: ReplicaId) -> ModelId:
        """The model that a replica of the fleet serves."""
        return self._members[replica].replica.model

    async def stop(self) -> None:
        """End waiting for replicas that leave."""
        await self._tasks.cancel()

    def _update_all(self) -> None:
        for model in self._named:
            self._update(model)

    def _update(self, model: ModelId) -> None:
        wanted = {ReplicaId(each.replica.id): each for each in self._wanted(model)}
        for name, member in self._members.items():
            if member.replica.model == model and name not in wanted and not member.removed:
                self._start_leaving(member)
        for name, each in wanted.items():
            known = self._members.get(name)
            if known is None:
                if each.condition is Condition.READY:
                    self._add(model, each.replica)
            elif known.replica.model == model:
                self._change(known, each)
            elif not known.removed:  # else it joins once it has left the other model
                self._note_clash(model, f"replica {name} serves {known.replica.model}")

    def _wanted(self, model: ModelId) -> Iterator[DiscoveredReplica]:
        """Configured replicas first, then added ones; a later one with the same id or URL is the same engine."""
        names, urls = set(), set()
        added = [each for each in self._added.values() if each.model == model]
        named = map(DiscoveredReplica, (*self._named.get(model, ()), *added))
        for each in (*named, *self._found.get(model, ())):
            if each.replica.id not in names and each.replica.url not in urls:
                names.add(each.replica.id)
                urls.add(each.replica.url)
                yield each

    def _add(self, model: ModelId, settings: ReplicaSettings) -> None:
        pool = self._pools.setdefault(model, LearnedRates(self._rates))
        replica = Replica(
            ReplicaId(settings.id),
            settings.url,
            model,
            LearnedRates(self._rates, pool),
            authorization=_authorization(settings),
            tls_files=settings.tls_files,
            region=settings.region,
            endpoints=settings.endpoints,
            breaker=self._breaker,
        )
        self._members[replica.id] = _Member(replica, settings)
        self._fleet.add(replica)
        self._keeper.joined(replica.id, model)
        self._feeds.add(replica.id, _feed_plan(settings))
        replica.drain(DrainCause.CONFIGURATION, on=settings.drain)
        self._health.watch(replica)
        _log.info("replica_added", replica=replica.id, model=model, url=replica.url)

    def _change(self, member: _Member, found: DiscoveredReplica) -> None:
        replica, before, after = member.replica, member.settings, found.replica
        if member.removed:
            member.removed = False
            if member.leaving is not None:
                member.leaving.cancel()  # else it would be forgotten twice if it leaves again at once
            _log.info("replica_back", replica=replica.id, model=replica.model)
        member.settings = after
        replica.region = after.region
        replica.endpoints = after.endpoints
        replica.authorization = _authorization(after)
        origin = Origin.parse(after.url, after.tls_files)
        if origin != replica.origin:
            self._close_idle(member)
        if after.url != before.url:
            _log.info("replica_moved", replica=replica.id, model=replica.model, url=after.url, before=before.url)
            replica.move(after.url)
            self._health.moved(replica)
        replica.origin = origin
        if _feed_plan(after) != _feed_plan(before) or after.url != before.url:
            self._feeds.add(replica.id, _feed_plan(after))
        self._drains.set(replica, DrainCause.CONFIGURATION, on=after.drain)
        self._drains.set(replica, DrainCause.LEAVING, on=found.condition is not Condition.READY)

    def _start_leaving(self, member: _Member) -> None:
        member.removed = True
        replica = member.replica
        _log.info("replica_leaving", replica=replica.id, model=replica.model, requests=replica.requests)
        self._drains.set(replica, DrainCause.LEAVING, on=True)
        member.leaving = self._tasks.spawn(self._forget_when_idle(member), name=f"leaving-{replica.id}")

    async def _forget_when_idle(self, member: _Member) -> None:
        idle = 0
        while idle < _IDLE_LOOKS:
            await asyncio.sleep(_LOOK_SECONDS)
            busy = member.replica.requests or member.replica.flights
            idle = 0 if busy else idle + 1
        self._forget(member)

    def _forget(self, member: _Member) -> None:
        replica = member.replica
        del self._members[replica.id]
        self._health.forget(replica)
        self._fleet.remove(replica)
        self._feeds.remove(replica.id)
        self._index.forget(replica.id)
        self._keeper.left(replica.id)
        self._close_idle(member)
        self._on_removed(replica)
        _log.info("replica_removed", replica=replica.id, model=replica.model)
        self._update_all()  # another model may wait for its id

    def _close_idle(self, member: _Member) -> None:
        """Close its idle connections, unless another replica at the same address uses them."""
        origin = member.replica.origin
        if all(other is member or other.replica.origin != origin for other in self._members.values()):
            self._client.forget(origin)

    def _note_clash(self, model: ModelId, problem: str) -> None:
        if (model, problem) not in self._clashes:
            self._clashes.add((model, problem))
            _log.error("replica_named_twice", model=model, problem=f"{problem} already", fix="give one another id")


def _feed_plan(settings: ReplicaSettings) -> FeedPlan:
    return FeedPlan(urlsplit(settings.url).hostname or "", settings.events, settings.replay)


def _authorization(settings: ReplicaSettings) -> bytes | None:
    return f"Bearer {settings.api_key.get_secret_value()}".encode() if settings.api_key else None
