"""Whether what is known from a target's events can be true.

A feed whose batches all arrived can still be wrong about the cache: the engine describes its blocks in another form, or
left some of them out. Then events store more blocks than there are, or name blocks that are not known. Some unknown
blocks are normal while only a part of the cache is known, such as removals of what was stored before the gateway began,
so they count only where everything counts as known.
"""

from collections.abc import Iterator

from gateway.core.ids import Target
from gateway.core.kv_events import FeedState, Unmatched
from gateway.core.ports import EventIndex, EventObserver
from gateway.kv_events.feed_report import LogLimiter
from gateway.kv_events.order import BatchOrder
from gateway.kv_events.order_actions import Action


class FeedAudit:
    """Compares what is known of one target with itself.

    Args:
        target: The target.
        index: What is known.
        observer: Gets the blocks that match nothing.
        reporter: Gets warnings.
        interval: Least seconds between two replays because of such blocks, and how long a cache that was rebuilt after
            one has to stay free of them.

    Attributes:
        unmatched: Blocks that the observer got.
    """

    def __init__(
        self, target: Target, index: EventIndex, observer: EventObserver, reporter: LogLimiter, interval: float
    ) -> None:
        self.unmatched = 0
        self._target = target
        self._index = index
        self._observer = observer
        self._reporter = reporter
        self._interval = interval
        # Counts that were reported or left out as normal, and their sum when what is known was last taken for all.
        self._passed = index.unmatched(target)
        self._basis = sum(self._passed)
        self._replay_at: float | None = None
        self._replayed_at = -interval
        # Of a cache that is being rebuilt: since when it is complete, and the sum of the counts at that time.
        self._rebuilt: tuple[float, int] | None = None

    def begin(self) -> None:
        """What is known of the target starts anew: it was cleared, or accounts for all of the engine's blocks."""
        found = self._index.unmatched(self._target)
        self._basis = sum(found)
        self._passed = found._replace(unfit=self._passed.unfit)
        self._rebuilt = None

    def check(self, order: BatchOrder, now: float) -> Iterator[Action]:
        """Compare, while the state is live or rebuilding.

        Args:
            order: The target's batches.
            now: Monotonic seconds.

        Returns:
            What follows from it.
        """
        if problem := self._index.problem(self._target):
            self._reporter.warn("kv_events_undecided", problem=problem, instead="its cache is predicted")
        self._report(complete=order.complete)
        if self._index.is_impossible(self._target):
            # vLLM reports reused blocks as stored if a client asks for it.
            self._reporter.warn(
                "kv_events_impossible",
                problem="the events store more blocks than the engine has",
                fix="keep clients from sending vllm_xargs.kv_cache_report_mode",
            )
            return order.refuted()
        if order.state is FeedState.LIVE:
            if self._exceeds(self._basis):
                self._reporter.warn(
                    "kv_events_unmatched",
                    problem="events name blocks that no earlier event has stored",
                    blocks=self._index.unmatched(self._target)._asdict(),
                    instead="its cache is predicted, and all events are asked for again",
                )
                self._rebuilt = None
                self._replay_at = max(now, self._replayed_at + self._interval)
                return order.contradicted()
        elif order.doubted:
            if self._is_trusted_again(order, now):
                self.begin()
                return order.trusted()
        elif self._index.is_complete(self._target):
            self.begin()
            return order.completed()
        return iter(())

    def replay_due(self, now: float) -> bool:
        """Whether to ask for all batches again because of what matched nothing; True once."""
        if self._replay_at is None or now < self._replay_at:
            return False
        self._replay_at = None
        self._replayed_at = now
        return True

    def _report(self, *, complete: bool) -> None:
        """Pass on what matched nothing since the last time, and should not be so."""
        found, passed = self._index.unmatched(self._target), self._passed
        if found == passed:
            return
        wrong = complete and self._exceeds(self._basis)
        for kind, now, before in zip(Unmatched._fields, found, passed, strict=True):
            if now > before and (wrong or kind == "unfit"):
                self.unmatched += now - before
                self._observer.on_kv_unmatched(self._target.replica, kind, now - before)
        # Few of them are reported once more of them show that they are not normal.
        self._passed = found if wrong or not complete else passed._replace(unfit=found.unfit)

    def _is_trusted_again(self, order: BatchOrder, now: float) -> bool:
        """Whether what is known can be taken for all again, after it was contradicted.

        If the events of a whole replay, or since the cache was cleared, were applied: once they all matched. Otherwise
        the blocks have to account for the whole cache, and match for a while.
        """
        if order.complete and not self._exceeds(self._basis):
            return True
        if not self._index.is_complete(self._target):
            self._rebuilt = None
            return False
        if self._rebuilt is None or self._exceeds(self._rebuilt[1]):
            self._rebuilt = now, sum(self._index.unmatched(self._target))
            return False
        return now - self._rebuilt[0] >= self._interval

    def _exceeds(self, basis: int) -> bool:
        """Whether more matched nothing since the sum was ``basis`` than a cache that counts as known can have."""
        return self._index.is_contradicted(self._target, sum(self._index.unmatched(self._target)) - basis)
