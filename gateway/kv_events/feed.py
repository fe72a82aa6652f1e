"""Follows the events of one target: reads the sockets, orders the batches, applies them to the index."""

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator

import structlog
import zmq

from gateway.config.index_settings import IngestSettings
from gateway.core.ids import Target
from gateway.core.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventSource,
    FeedState,
    KvEvent,
    UnknownEvent,
)
from gateway.core.ports import EventIndex, EventObserver
from gateway.kv_events.event_portions import EncodedBatch, pieces
from gateway.kv_events.feed_audit import FeedAudit
from gateway.kv_events.feed_report import FeedReport, LogLimiter
from gateway.kv_events.order import BatchOrder
from gateway.kv_events.order_actions import Action, Apply, AskReplay, Clear, Gap, SetState
from gateway.kv_events.work_scheduler import WorkScheduler
from gateway.kv_events.zmq_sockets import Context, FrameUnreadable, Replay, Subscription

_REPLAY_BATCHES = 1_000_000
_REPLAY_SECONDS = 300.0
"""Limits of one replay; engines keep 10,000 batches. A replay beyond either is treated as endless and given up."""

_MAX_LOGGED_TYPES = 10
"""Most types of unreadable events in one log line."""

_RETRY_SECONDS = 30.0
_CHECK_ENGINE = "check that the engine runs and that its event port can be reached, as it could before"
_FAILED_PROBES = 2
"""Probes in a row without an answer after which the events count as lost."""

_KINDS = {BlockStored: "stored", BlockRemoved: "removed", AllBlocksCleared: "cleared", UnknownEvent: "unknown"}

_log = structlog.get_logger("gateway.kv_events")


class Feed:
    """Follows the events of one target.

    Args:
        target: The target.
        source: Addresses of its events.
        context: ZeroMQ context.
        scheduler: Runs this feed's steps on the event loop.
        index: The events are applied to it.
        observer: Counts the events.
        settings: Limits and time-outs.
        fix: What to change at the engine when no events arrive, as half a sentence for the log.
    """

    def __init__(
        self,
        target: Target,
        source: EventSource,
        *,
        context: Context,
        scheduler: WorkScheduler,
        index: EventIndex,
        observer: EventObserver,
        settings: IngestSettings,
        fix: str,
    ) -> None:
        self.source = source
        self._target = target
        self._context = context
        self._scheduler = scheduler
        self._index = index
        self._observer = observer
        self._settings = settings
        self._max_bytes = settings.max_batch_mib * 2**20
        self._order = BatchOrder(replays=source.replay is not None)
        self._actions: deque[Iterator[Action]] = deque()
        self._events: Iterator[KvEvent] = iter(())
        self._decoding: EncodedBatch | None = None
        self._replay: Replay | None = None
        self._replay_began = self._replay_received_at = 0.0
        self._replay_batches = 0
        self._linked = False
        self._started_at = self._received_at = self._probed_at = time.monotonic()
        self._batches = 0
        self._gaps = 0
        self._expected_since: float | None = None
        self._failed_probes = 0
        self._retry_at: float | None = None
        self._resume_at: float | None = None
        self._reporter = LogLimiter(target, source.problem, fix)
        self._audit = FeedAudit(target, index, observer, self._reporter, settings.unmatched_replay_seconds)
        self._foreign_peer = False
        self._subscription = self._subscribe()
        index.set_feed(target, FeedState.CONNECTING)
        self._wake()

    def report(self, now: float) -> FeedReport:
        """The state at ``now`` (monotonic seconds)."""
        return FeedReport(
            rank=self._target.rank,
            state=self._order.state,
            address=self.source.events,
            replay_address=self.source.replay,
            next_sequence=self._order.next,
            batches=self._batches,
            gaps=self._gaps,
            unmatched_blocks=self._audit.unmatched,
            last_batch_age_seconds=round(now - self._received_at, 3) if self._batches else None,
            problem=self._reporter.problem or self._index.problem(self._target) or None,
        )

    def restarted(self, started_at: float) -> None:
        """The engine's process is a new one since ``started_at``, Unix time at the engine."""
        self._enqueue(self._order.restarted(started_at))

    def answered(self, since: float, now: float) -> None:
        """The target has computed blocks after ``since``: an event about them has been sent or will be."""
        if since < self._started_at:
            return  # it may have been sent to the previous connection
        if self._expected_since is None and (not self._batches or self._received_at < since):
            self._expected_since = now

    def step(self) -> bool:
        """See ``PortionedWork``."""
        try:
            return self._step()
        except Exception:  # noqa: BLE001 - a failing feed must not stop the others
            self._fail()
            return False

    def _step(self) -> bool:
        if self._index.advance(self._target) or self._next_action():
            return True
        if self._decoding is not None:
            self._decode_on(self._decoding)
            return True
        change = self._subscription.link_change()
        if change is not None:
            self._link_changed(linked=change)
            return True
        if self._replay is not None:
            return self._read_replay(self._replay)
        return self._read_live()

    def _next_action(self) -> bool:
        """Apply the next event, or take the next action. Returns False when there is none."""
        event = next(self._events, None)
        if event is not None:
            self._index.apply(self._target, event)
            if isinstance(event, AllBlocksCleared):
                self._audit.begin()
            return True
        while self._actions:
            action = next(self._actions[0], None)
            if action is not None:
                self._execute(action)
                return True
            self._actions.popleft()
        return False

    def tick(self, now: float) -> None:
        """Check time-outs; called about twice a second."""
        try:
            self._tick(now)
        except Exception:  # noqa: BLE001 - as above
            self._fail()

    def _tick(self, now: float) -> None:
        settings = self._settings
        if self._resume_at is not None:
            if now < self._resume_at:
                return
            self._resume_at = None
            if self._linked:
                self._enqueue(self._order.connected())
        if self._actions:
            # Received batches are not read before these actions are done, so no time-out of the engine counts.
            self._replay_received_at = now
            return
        self._enqueue(self._order.tick(now))
        if self._replay is not None:
            if now - self._replay_received_at > settings.replay_timeout_seconds:
                self._replay_failed(now)
            elif now - self._replay_began > _REPLAY_SECONDS:
                self._replay_endless(now)
        elif self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._enqueue(self._order.retry())
        elif self._audit.replay_due(now):
            self._enqueue(self._order.retry())
        elif self._linked and now - max(self._received_at, self._probed_at) > settings.probe_seconds:
            self._probed_at = now
            self._enqueue(self._order.probe())
        if not self._actions and self._order.state in (FeedState.LIVE, FeedState.REBUILDING):
            self._enqueue(self._audit.check(self._order, now))
        self._check_silence(now)

    def close(self) -> None:
        """Stop following."""
        self._scheduler.forget(self)
        self._end_replay()
        self._subscription.close()
        self._index.set_feed(self._target, FeedState.OFF)
        self._index.clear(self._target)

    def _fail(self) -> None:
        """An unexpected error: clear this target's events and start again after ``_RETRY_SECONDS``."""
        _log.exception("kv_events_failed", replica=self._target.replica, rank=self._target.rank)
        self._actions.clear()
        self._events = iter(())
        self._decoding = None
        if self._resume_at is not None:
            return  # clearing failed: the target stays in the failed state until events are followed again
        self._end_replay()
        self._enqueue(self._order.failed())
        self._resume_at = time.monotonic() + _RETRY_SECONDS

    def _wake(self) -> None:
        self._scheduler.wake(self)

    def _enqueue(self, actions: Iterator[Action]) -> None:
        """Queue actions, if there are any."""
        if not self._actions:
            first = next(actions, None)
            if first is None:
                return
            actions = itertools.chain((first,), actions)
        self._actions.append(actions)
        self._wake()

    def _execute(self, action: Action) -> None:
        match action:
            case Apply(batch):
                self._count(batch)
                self._events = pieces(batch.events)
            case AskReplay(start):
                self._ask(start)
            case Clear():
                self._index.clear(self._target)
                self._audit.begin()
            case SetState(state):
                self._index.set_feed(self._target, state)
                _log.info("kv_events_state", replica=self._target.replica, rank=self._target.rank, state=str(state))
            case Gap(expected, got):
                self._gaps += 1
                self._observer.on_kv_gap(self._target.replica)
                _log.warning(
                    "kv_events_gap", replica=self._target.replica, rank=self._target.rank, expected=expected, got=got
                )

    def _link_changed(self, *, linked: bool) -> None:
        if not linked and not self._linked:
            self._foreign_peer = True  # ZeroMQ reconnects with increasing delays
            return
        self._foreign_peer = False
        self._linked = linked
        self._started_at = time.monotonic()
        self._expected_since = None
        if linked:
            self._reporter.end()
            self._reporter.fix = _CHECK_ENGINE  # the engine is set up correctly
            self._enqueue(self._order.connected())
        else:
            self._end_replay()
            # Batches in the socket may be from an engine process that has ended.
            self._decoding = None
            self._subscription.close()
            self._subscription = self._subscribe()
            self._enqueue(self._order.lost())

    def _subscribe(self) -> Subscription:
        return Subscription(self._context, self.source.events, self.source.topic, self._wake, max_bytes=self._max_bytes)

    def _read_live(self) -> bool:
        try:
            frame = self._subscription.receive()
        except FrameUnreadable:
            self._observer.on_kv_events(self._target.replica, "unknown", 1)
            return True  # if it was a batch, the next one shows the gap
        if frame is None:
            return False
        sequence, payload = frame
        if sequence < 0:  # the end mark of replays, which no live batch carries
            self._observer.on_kv_events(self._target.replica, "unknown", 1)
            return True
        self._received_at = time.monotonic()
        self._expected_since = None
        self._decode(EncodedBatch(sequence, payload, replayed=False))
        return True

    def _read_replay(self, replay: Replay) -> bool:
        try:
            frame = replay.receive()
        except FrameUnreadable:
            return True
        if frame is None:
            return False
        self._replay_received_at = time.monotonic()
        sequence, payload = frame
        if sequence < 0:
            self._failed_probes = 0
            self._end_replay()
            self._enqueue(self._order.replay_ended())
            return True
        self._replay_batches += 1
        if self._replay_batches > _REPLAY_BATCHES:
            self._replay_endless(self._replay_received_at)
            return True
        self._decode(EncodedBatch(sequence, payload, replayed=True))
        return True

    def _decode(self, batch: EncodedBatch) -> None:
        """Decode a batch, a large one in several steps."""
        if batch.is_large:
            self._decoding = batch
        else:
            self._decode_on(batch)

    def _decode_on(self, encoded: EncodedBatch) -> None:
        batch = encoded.decode()
        self._decoding = encoded if batch is None else None
        if batch is not None:
            self._received(encoded.sequence, batch, encoded.size, replayed=encoded.replayed)

    def _received(self, sequence: int, batch: EventBatch, size: int, *, replayed: bool) -> None:
        if replayed:
            self._enqueue(self._order.replayed(sequence, batch, size))
        else:
            self._enqueue(self._order.live(sequence, batch, time.monotonic(), size))

    def _count(self, batch: EventBatch) -> None:
        self._batches += 1
        kinds = Counter(map(type, batch.events))
        for kind, count in kinds.items():
            self._observer.on_kv_events(self._target.replica, _KINDS[kind], count)
        if UnknownEvent not in kinds:
            return
        lost = {event.type for event in batch.events if isinstance(event, UnknownEvent) and event.is_loss}
        if lost:
            self._reporter.warn("kv_events_unreadable", types=sorted(lost)[:_MAX_LOGGED_TYPES])

    def _ask(self, start: int) -> None:
        self._end_replay()
        assert self.source.replay is not None
        self._replay_began = self._replay_received_at = now = time.monotonic()
        self._replay_batches = 0
        try:
            self._replay = Replay(self._context, self.source.replay, start, self._wake, max_bytes=self._max_bytes)
        except zmq.ZMQError:
            self._replay_failed(now)

    def _end_replay(self) -> None:
        if self._decoding is not None and self._decoding.replayed:
            self._decoding = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _replay_failed(self, now: float) -> None:
        self._failed_probes += 1
        self._reporter.warn(
            "kv_events_replay_failed", address=self.source.replay, seconds=self._settings.replay_timeout_seconds
        )
        self._give_up_replay(now)

    def _replay_endless(self, now: float) -> None:
        self._reporter.warn("kv_events_replay_endless", address=self.source.replay, batches=self._replay_batches)
        self._give_up_replay(now)

    def _give_up_replay(self, now: float) -> None:
        self._end_replay()
        self._enqueue(self._order.replay_failed())
        self._retry_at = now + _RETRY_SECONDS

    def _check_silence(self, now: float) -> None:
        limit = self._settings.silent_after_seconds
        if not self._linked:
            if now - self._started_at > limit:
                answer = "the port does not publish events" if self._foreign_peer else "no answer"
                self._report_silence(f"no connection to {self.source.events}: {answer}")
        elif self._expected_since is not None and now - self._expected_since > limit:
            self._report_silence(f"requests were computed, but {self.source.events} sent no event", mute=True)
        elif self._failed_probes >= _FAILED_PROBES:
            # Batches that arrive in order remain valid.
            self._reporter.raise_(
                f"{self.source.replay} does not answer", instead="missed batches are not requested again"
            )
        else:
            self._reporter.end()

    def _report_silence(self, what: str, *, mute: bool = False) -> None:
        self._enqueue(self._order.silent(mute=mute))
        self._reporter.raise_(what, instead="its cache is predicted")
