"""Finds the event sources of every replica and runs a ``Feed`` for each."""

import asyncio
import ipaddress
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
import structlog
import zmq

from gateway.config.index_settings import IngestSettings
from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.core.ids import ReplicaId, Target
from gateway.core.kv_events import EventSource
from gateway.core.ports import EngineReader, EngineUnavailable, EventIndex, EventObserver
from gateway.core.settlement import Refusal, Settlement
from gateway.engines import advice, event_sources, event_sources_path, offset_sources
from gateway.kv_events.feed import Feed
from gateway.kv_events.feed_report import FeedReport
from gateway.kv_events.work_scheduler import WorkScheduler
from gateway.kv_events.zmq_sockets import Context
from gateway.tasks import TaskGroupOwner, in_daemon_thread

_TICK_SECONDS = 0.5
_ASK_TIMEOUT_SECONDS = 5.0
_ASK_AGAIN_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_END_SECONDS = 0.5
"""How long to wait for ZeroMQ's threads to end; they end with the process in any case."""

_CHECK_CONFIGURATION = "check events and replay of this replica in the gateway's configuration"

_log = structlog.get_logger("gateway.kv_events")


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """The configuration of a replica's events.

    Attributes:
        host: Host the replica is reached at.
        events: ``auto`` (ask the engine), ``off``, or the ZeroMQ address of rank 0.
        replay: ZeroMQ address of rank 0 for past events; only with an address in ``events``.
    """

    host: str
    events: str = "auto"
    replay: str | None = None


@dataclass(slots=True, eq=False)
class _Followed:
    plan: FeedPlan
    facts: EngineFacts | None = None
    feeds: dict[Target, Feed] = field(default_factory=dict)
    search: asyncio.Task[None] | None = None
    context: Context | None = None
    off_logged: bool = False


class KvFeeds:
    """The feeds of all replicas. An ``Observer``: settled requests show when events are due.

    Args:
        plans: The configuration, by replica.
        index: The events are applied to it.
        engines: Asks engines for the addresses of their events.
        observer: Counts events.
        settings: Limits and time-outs.
    """

    def __init__(
        self,
        plans: Mapping[ReplicaId, FeedPlan],
        index: EventIndex,
        engines: EngineReader,
        observer: EventObserver,
        settings: IngestSettings,
    ) -> None:
        self._followed = {replica: _Followed(plan) for replica, plan in plans.items()}
        self._index = index
        self._engines = engines
        self._observer = observer
        self._settings = settings
        self._context: Context | None = None
        self._scheduler = WorkScheduler()
        self._tasks = TaskGroupOwner()
        self._started = False

    def start(self) -> None:
        """Start. Feeds start once their replica's facts are known, those with a configured address at once."""
        self._started = True
        self._tasks.spawn(self._ticks(), name="kv-events-ticks")
        for replica in self._followed:
            self._begin(replica)

    def add(self, replica: ReplicaId, plan: FeedPlan) -> None:
        """A replica has joined, or the configuration of its events has changed."""
        followed = self._followed.get(replica)
        if followed is None:
            self._followed[replica] = _Followed(plan)
            if self._started:
                self._begin(replica)
            return
        followed.plan = plan
        followed.off_logged = False
        if plan.events == "off":
            self._drop(followed)
        elif followed.facts is None:
            self._begin(replica)
        else:
            self._search(replica, followed)

    def remove(self, replica: ReplicaId) -> None:
        """A replica has left."""
        followed = self._followed.pop(replica, None)
        if followed is not None:
            self._drop(followed)

    async def stop(self) -> None:
        """End all feeds."""
        await self._tasks.cancel()
        ended = [self._close(followed) for followed in self._followed.values()]
        context, self._context = self._context, None
        ended.append(_end(context))
        await asyncio.wait(ended, timeout=_END_SECONDS)

    def on_facts(self, replica: ReplicaId, facts: EngineFacts) -> None:
        """The replica's metrics were read for the first time, or its cache has changed."""
        followed = self._followed.get(replica)
        if followed is None:
            return
        before, followed.facts = followed.facts, facts
        if before is not None and (before.kind, len(before.ranks)) == (facts.kind, len(facts.ranks)):
            return
        self._search(replica, followed)

    def on_restarted(self, replica: ReplicaId, started_at: float) -> None:
        """The replica's process is a new one since ``started_at`` (Unix time), perhaps with other settings."""
        followed = self._followed.get(replica)
        if followed is None:
            return
        for feed in followed.feeds.values():
            feed.restarted(started_at)
        if followed.facts is not None:
            self._search(replica, followed)

    def follows(self, replica: ReplicaId) -> bool:
        """Whether a replica has feeds, in any state."""
        followed = self._followed.get(replica)
        return followed is not None and bool(followed.feeds)

    def reports(self, replica: ReplicaId) -> Sequence[FeedReport]:
        """The state of a replica's feeds, by rank; empty without events."""
        now = time.monotonic()
        followed = self._followed.get(replica)
        feeds = {} if followed is None else followed.feeds
        return [feeds[target].report(now) for target in sorted(feeds)]

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``: a complete answer to a prompt that was not cached must have stored blocks."""
        decision = settlement.decision
        if decision is None or settlement.status != 200 or not settlement.has_prompt:
            return
        followed = self._followed.get(decision.target.replica)
        if followed is None or not followed.feeds:
            return
        feed, facts = followed.feeds.get(decision.target), followed.facts
        if feed is None or facts is None or facts.prefix_caching is False:
            return
        cached = settlement.predicted_tokens if settlement.cached_tokens is None else settlement.cached_tokens
        block_size = facts.block_size
        if block_size and settlement.prompt_tokens - cached > 2 * block_size:
            feed.answered(settlement.ended_at - settlement.seconds, time.monotonic())

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""

    def _begin(self, replica: ReplicaId) -> None:
        """Start feeds with a configured address; the others start with the replica's facts."""
        if self._followed[replica].plan.events not in ("auto", "off"):
            self.on_facts(replica, EngineFacts())

    def _drop(self, followed: _Followed) -> None:
        if followed.search is not None:
            followed.search.cancel()
            followed.search = None
        self._close(followed)

    def _search(self, replica: ReplicaId, followed: _Followed) -> None:
        if followed.search is not None:
            followed.search.cancel()
        if followed.plan.events != "off":
            followed.search = self._tasks.spawn(self._find(replica, followed), name=f"kv-events-{replica}")

    async def _find(self, replica: ReplicaId, followed: _Followed) -> None:
        sources = await self._sources(replica, followed)
        facts = followed.facts
        assert facts is not None
        if len(facts.ranks) <= 1 and len(sources) == 1:
            # A single rank is target 0, also if the engine numbers it differently.
            wanted = {Target(replica, 0): sources[0]}
        else:
            wanted = {Target(replica, source.rank): source for source in sources}
        wanted = {target: source for target, source in wanted.items() if not source.refused}
        if refused := [source for source in sources if source.refused]:
            first = refused[0]
            _log.error(
                "kv_events_address_refused",
                replica=replica,
                rank=first.rank,
                address=first.events,
                problem=first.problem,
                ranks=len(refused),
            )
        for target, feed in list(followed.feeds.items()):
            if wanted.get(target) != feed.source:
                feed.close()
                del followed.feeds[target]
                _log.info("kv_events_gone", replica=replica, rank=target.rank, address=feed.source.events)
        is_configured = followed.plan.events != "auto"
        fix = _CHECK_CONFIGURATION if is_configured else advice(facts.kind).events
        for target, source in wanted.items():
            if target not in followed.feeds:
                self._open(target, source, followed, fix)
        if not wanted and not followed.off_logged:
            followed.off_logged = True
            _log.info("kv_events_off", replica=replica, instead="its cache is predicted", to_change=fix)

    async def _sources(self, replica: ReplicaId, followed: _Followed) -> Sequence[EventSource]:
        plan, facts = followed.plan, followed.facts
        assert facts is not None
        if plan.events != "auto":
            return offset_sources(plan.events, plan.replay, max(len(facts.ranks), 1))
        if facts.kind is None:
            return await self._sources_of_unknown(replica, plan)
        for pause in itertools.chain(_ASK_AGAIN_SECONDS, itertools.repeat(_ASK_AGAIN_SECONDS[-1])):
            try:
                answer = await self._engines.read(replica, event_sources_path(facts.kind), _ASK_TIMEOUT_SECONDS)
                return event_sources(facts.kind, orjson.loads(answer), plan.host)
            except orjson.JSONDecodeError:
                return ()
            except EngineUnavailable as error:
                if error.status in (401, 403, 404, 405):
                    return ()  # an older engine, or one that does not publish it
            await asyncio.sleep(pause)
        raise AssertionError("the loop has no other end")

    async def _sources_of_unknown(self, replica: ReplicaId, plan: FeedPlan) -> Sequence[EventSource]:
        """Sources of an engine of unknown kind, because its metrics cannot be read: try each."""
        for kind in EngineKind:
            try:
                answer = await self._engines.read(replica, event_sources_path(kind), _ASK_TIMEOUT_SECONDS)
                sources = event_sources(kind, orjson.loads(answer), plan.host)
            except (EngineUnavailable, orjson.JSONDecodeError):
                continue
            if sources:
                return sources
        return ()

    def _open(self, target: Target, source: EventSource, followed: _Followed, fix: str) -> None:
        try:
            followed.feeds[target] = Feed(
                target,
                source,
                context=self._context_for(source, followed),
                scheduler=self._scheduler,
                index=self._index,
                observer=self._observer,
                settings=self._settings,
                fix=fix,
            )
        except zmq.ZMQError as error:
            _log.error("kv_events_address_unusable", replica=target.replica, address=source.events, problem=str(error))
            return
        log = _log.error if source.problem else _log.info
        log(
            "kv_events_found",
            replica=target.replica,
            rank=target.rank,
            address=source.events,
            replay=source.replay,
            problem=source.problem,
        )

    def _context_for(self, source: EventSource, followed: _Followed) -> Context:
        """The shared context, or one of its own for a source with a host name: ZeroMQ resolves names in the one thread
        that serves all sockets of a context, so a slow name server would block all of them."""
        if all(map(_is_numeric, filter(None, (source.events, source.replay)))):
            self._context = self._context or zmq.Context()
            return self._context
        followed.context = followed.context or zmq.Context()
        return followed.context

    def _close(self, followed: _Followed) -> "asyncio.Future[None]":
        for feed in followed.feeds.values():
            feed.close()
        followed.feeds.clear()
        context, followed.context = followed.context, None
        return _end(context)

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self._index.tidy()
            for followed in list(self._followed.values()):
                for feed in list(followed.feeds.values()):
                    feed.tick(now)


def _end(context: Context | None) -> "asyncio.Future[None]":
    """End a context whose sockets are closed. This waits for a name look-up that is in progress."""
    if context is not None:
        return in_daemon_thread(context.term, name="kv-events-end")
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    return ended


def _is_numeric(address: str) -> bool:
    """Whether a ZeroMQ address needs no name look-up."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return scheme != "tcp"
    return True
