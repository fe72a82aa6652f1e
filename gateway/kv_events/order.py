"""The order of one target's event batches: which to apply, and when to ask for a replay. No I/O, no clock.

Batches carry a sequence number that starts at 0 with the engine's process. Every batch of one process has to be applied
once and in order; after a loss that no replay can fill, all blocks are cleared and the state says so.

Two processes of an engine use the same numbers, so a batch is identified by its number and time stamp. A replay is
requested from the last batch that was applied, not from the next: if the engine has another batch under that number, or
none, it has been restarted.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from gateway.core.kv_events import AllBlocksCleared, EventBatch, FeedState, UnknownEvent
from gateway.kv_events.order_actions import Action, Apply, AskReplay, Clear, Gap, SetState

_REMEMBERED = 1024
"""Batches whose time stamps are kept, to distinguish a late copy from a restarted engine."""

_WAITING_LIMIT = 20_000
"""Batches that wait for one that is missing. More than engines keep for a replay (10,000)."""

_WAITING_BYTES = 64 * 1024 * 1024
"""Encoded size of these batches; decoded they take a multiple. Batches beyond are requested again or dropped."""

_MAX_COPIES = 20_000
"""Batches in a row that may count as late copies. More are batches of an engine whose clock was once far ahead."""

_TRIES = 3
"""Replays in a row that may have gaps: engines drop messages to a reader that is too slow."""

_PATIENCE_SECONDS = 0.5
"""How long to wait for a missing batch when there is no replay to ask for."""


class _Waiting(NamedTuple):
    batch: EventBatch
    size: int


class BatchOrder:
    """The state machine of one target.

    Every method returns the actions to take, in order. The state changes as they are taken, so each iterator has to be
    exhausted before another method's is begun; taking one action costs little, however many batches wait.

    Args:
        replays: Whether the engine can be asked for past batches.

    Attributes:
        next: Sequence number of the next batch; None while it is unknown.
        asking: Whether the answer to a replay is awaited.
        doubted: Whether events have matched nothing since all blocks counted as known, so that complete batches do not
            make the state live.
    """

    def __init__(self, *, replays: bool) -> None:
        self.next: int | None = None
        self.asking = self.doubted = False
        self._offers_replays = self._replays = replays
        self._state = FeedState.CONNECTING
        self._complete = False
        self._stamps: dict[int, float] = {}
        self._last_stamp = 0.0
        self._copies = 0
        # Batches received ahead of a missing one, and their sequence numbers as a heap.
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._numbers: list[int] = []
        self._waiting_until = 0.0
        # Of the subscription: whether it holds, whether it has brought anything, and whether it has not when it should.
        self._linked = self._received_any = self._mute = False
        # Of the replay under way: whether its first batch was seen, whether it is a probe, how many in a row had gaps.
        self._begun = self._probing = False
        self._tries = self._asked_from = 0

    @property
    def state(self) -> FeedState:
        """How far what was applied can be trusted."""
        return self._state

    @property
    def complete(self) -> bool:
        """Whether every batch since the cache was empty was applied, or what was applied accounts for all blocks."""
        return self._complete

    def connected(self) -> Iterator[Action]:
        """The subscription is connected, for the first time or again."""
        self._linked = True
        self._received_any = self._mute = False
        self._replays = self._offers_replays
        self._tries = 0
        if self._replays:
            yield from self._ask(probing=False)
        else:
            if self.next is not None:
                # Batches sent while the subscription was down are lost.
                yield from self._forget()
            yield from self._settle()

    def lost(self) -> Iterator[Action]:
        """The subscription is disconnected."""
        self._linked = self.asking = False
        self._drop_waiting()
        yield from self._enter(FeedState.CONNECTING)

    def restarted(self, started_at: float) -> Iterator[Action]:
        """The engine was restarted at ``started_at`` (its own clock), according to its metrics."""
        if not self._replays and self.next is not None and self._last_stamp >= started_at:
            return  # its batches have shown the restart already, and no replay could bring them again
        yield from self._forget()
        if self._linked:
            yield from self.connected()

    def failed(self) -> Iterator[Action]:
        """Applying failed: clear the target and wait for ``connected``."""
        yield from self.lost()
        yield from self._forget()

    def probe(self) -> Iterator[Action]:
        """No batch has arrived for a while: check with a replay that none was missed. The state does not change."""
        if self._replays and not self.asking and self._state is not FeedState.CONNECTING:
            self._tries = 0
            yield from self._ask(probing=True)

    def retry(self) -> Iterator[Action]:
        """Repeat a replay that was not answered."""
        if self._replays and not self.asking and self._state is FeedState.REBUILDING:
            self.next = None
            self._tries = 0
            yield from self._ask(probing=False)

    def live(self, sequence: int, batch: EventBatch, now: float, size: int = 0) -> Iterator[Action]:
        """A batch was received from the subscription.

        Args:
            sequence: Its number.
            batch: The batch.
            now: Monotonic seconds.
            size: Encoded size in bytes.
        """
        if not self._linked:
            return  # from before it broke: what came after is missing, and is asked for once it holds again
        self._received_any = True
        self._mute = False
        if self.asking:
            self._wait(sequence, batch, size)
        elif self.next is None:
            # Earlier batches are unknown, unless this is the first.
            self._complete = sequence == 0
            self.next = sequence
            yield from self._take(sequence, batch)
            yield from self._settle()
        elif sequence == self.next and self._replays and batch.timestamp < self._last_stamp:
            # The right number, and older than what came before it: left over from a previous engine process, or
            # a clock that was set back. A replay decides; until then, this batch may be missing.
            self._tries = 0
            yield from self._enter(FeedState.CONNECTING)
            yield from self._ask(probing=False)
        elif sequence == self.next:
            yield from self._take(sequence, batch)
            yield from self._catch_up()
            if not self._waiting:
                yield from self._settle()
        elif sequence < self.next:
            self._copies += 1
            if self._copies > _MAX_COPIES or not self._is_copy(sequence, batch):
                yield from self._new_life(sequence, batch, size)
        elif sequence in self._waiting:
            return
        else:
            if not self._waiting:
                yield Gap(self.next, sequence)
                self._waiting_until = now + _PATIENCE_SECONDS
                yield from self._enter(FeedState.CONNECTING)
            self._wait(sequence, batch, size)
            if self._replays:
                self._tries = 0
                yield from self._ask(probing=False)

    def replayed(self, sequence: int, batch: EventBatch, size: int = 0) -> Iterator[Action]:
        """A batch of a replay was received; arguments as for ``live``."""
        if not self.asking:
            return
        if not self._begun:
            self._begun = True
            yield from self._begin_replay(sequence, batch)
            if not self._begun:  # requested again
                return
        if self.next is None or sequence == self.next:
            yield from self._take(sequence, batch)
        elif sequence > self.next:
            self._wait(sequence, batch, size)

    def replay_ended(self) -> Iterator[Action]:
        """The answer to a replay is complete."""
        if not self.asking:
            return
        if not self._begun:
            if self.next:
                # The engine has not reached this number: it is a new process, unless the answer was lost.
                yield from self._forget()
                self._tries += 1
                if self._asked_from or self._tries < _TRIES:
                    yield from self._ask(probing=False)
                    return
            if self.next is None:
                yield Clear()
                self.next = 0
                # No batch was ever sent, or this engine keeps none to replay.
                self._complete = not self._received_any
                self._replays = not self._received_any
        self.asking = False
        yield from self._catch_up()
        if self._waiting:
            self._tries += 1
            if self._tries < _TRIES:
                yield from self._ask(probing=False)
                return
            yield from self._give_up()
        yield from self._settle()

    def replay_failed(self) -> Iterator[Action]:
        """A replay was not answered."""
        if not self.asking:
            return
        self.asking = False
        if self._probing and not self._waiting:
            return
        yield from self._give_up()
        yield from self._settle()

    def tick(self, now: float) -> Iterator[Action]:
        """Give up a missing batch that no replay can bring."""
        if self._waiting and not self.asking and now >= self._waiting_until:
            yield from self._give_up()
            yield from self._settle()

    def completed(self) -> Iterator[Action]:
        """The applied events account for all blocks of the engine."""
        if self._state is FeedState.REBUILDING and not self.doubted:
            self._complete = True
            yield from self._enter(FeedState.LIVE)

    def refuted(self) -> Iterator[Action]:
        """The applied events exceed the engine's capacity: clear, without a replay, which would repeat them."""
        yield Clear()
        self._complete = False
        yield from self._settle()

    def contradicted(self) -> Iterator[Action]:
        """Events matched nothing although all blocks counted as known. ``retry`` asks for all batches again."""
        if self._state is FeedState.LIVE:
            self._complete = False
            self.doubted = True
            if not self._replays:
                yield Clear()
            yield from self._settle()

    def trusted(self) -> Iterator[Action]:
        """Events match again, and account for all blocks of the engine."""
        self.doubted = False
        yield from self.completed()

    def silent(self, *, mute: bool) -> Iterator[Action]:
        """Batches were due and have not arrived.

        Args:
            mute: The subscription delivers nothing, so only a live batch ends this state.
        """
        self._mute = mute
        yield from self._enter(FeedState.SILENT)

    def _ask(self, *, probing: bool) -> Iterator[Action]:
        self.asking = True
        self._begun = False
        self._probing = probing
        self._asked_from = max(self.next - 1, 0) if self.next else 0
        yield AskReplay(self._asked_from)

    def _begin_replay(self, sequence: int, batch: EventBatch) -> Iterator[Action]:
        """The first batch of a replay shows whether the engine is still the same process."""
        if self.next:
            if sequence == self._asked_from and self._stamps.get(sequence) == batch.timestamp:
                return
            if sequence == self._asked_from and sequence > 0:
                # Another batch under the same number: a new process. Request its earlier batches.
                yield from self._forget()
                yield from self._ask(probing=False)
                return
            # It is the engine's first batch, or the engine keeps no older ones.
        # Batches received meanwhile follow it, unless they are from a previous process.
        later = [item for item in self._waiting.items() if item[1].batch.timestamp >= batch.timestamp]
        yield from self._forget()
        for number, (other, size) in sorted(later):
            self._wait(number, other, size)
        self.next = sequence
        self._complete = sequence == 0

    def _take(self, sequence: int, batch: EventBatch) -> Iterator[Action]:
        yield Apply(batch)
        self._copies = 0
        self.next = sequence + 1
        self._last_stamp = batch.timestamp
        self._stamps[sequence] = batch.timestamp
        if len(self._stamps) > _REMEMBERED:
            del self._stamps[next(iter(self._stamps))]
        kinds = set(map(type, batch.events))
        if UnknownEvent in kinds and any(isinstance(event, UnknownEvent) and event.is_loss for event in batch.events):
            # Its changes are unknown, and a replay would repeat the same.
            yield Clear()
            self._complete = False
        elif AllBlocksCleared in kinds:
            self._complete = True

    def _catch_up(self) -> Iterator[Action]:
        """Apply waiting batches that are next; drop those already applied."""
        while self._numbers and self.next is not None and self._numbers[0] <= self.next:
            sequence = heapq.heappop(self._numbers)
            batch = self._pop_waiting(sequence)
            if sequence == self.next:
                yield from self._take(sequence, batch)

    def _give_up(self) -> Iterator[Action]:
        """The missing batches are lost: clear, and continue behind the last gap."""
        self._complete = False
        self._stamps.clear()
        self._numbers.sort()
        begin = _last_run(self._numbers)
        for sequence in self._numbers[:begin]:
            self._pop_waiting(sequence)
        del self._numbers[:begin]
        self.next = self._numbers[0] if self._numbers else None
        yield Clear()
        yield from self._catch_up()

    def _new_life(self, sequence: int, batch: EventBatch, size: int) -> Iterator[Action]:
        """The sequence number decreased: the engine was restarted."""
        self._copies = 0
        yield from self._forget()
        self._wait(sequence, batch, size)
        if self._replays:
            yield from self._ask(probing=False)
            return
        self._complete = sequence == 0
        self.next = sequence
        yield from self._catch_up()
        yield from self._settle()

    def _forget(self) -> Iterator[Action]:
        self.next = None
        self._complete = False
        self._stamps.clear()
        self._drop_waiting()
        yield from self._enter(FeedState.CONNECTING)
        yield Clear()

    def _is_copy(self, sequence: int, batch: EventBatch) -> bool:
        known = self._stamps.get(sequence)
        return batch.timestamp == known if known is not None else batch.timestamp <= self._last_stamp

    def _wait(self, sequence: int, batch: EventBatch, size: int) -> None:
        if sequence in self._waiting:
            self._pop_waiting(sequence)
        elif len(self._waiting) < _WAITING_LIMIT and self._waiting_bytes + size <= _WAITING_BYTES:
            heapq.heappush(self._numbers, sequence)
        else:
            return
        self._waiting[sequence] = _Waiting(batch, size)
        self._waiting_bytes += size

    def _pop_waiting(self, sequence: int) -> EventBatch:
        batch, size = self._waiting.pop(sequence)
        self._waiting_bytes -= size
        return batch

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._numbers.clear()
        self._waiting_bytes = 0

    def _settle(self) -> Iterator[Action]:
        state = FeedState.LIVE if self._complete and not self.doubted else FeedState.REBUILDING
        yield from self._enter(FeedState.SILENT if self._mute else state)

    def _enter(self, state: FeedState) -> Iterator[Action]:
        if state is not self._state:
            self._state = state
            yield SetState(state)


def _last_run(numbers: list[int]) -> int:
    """Index at which the last run of consecutive numbers of a sorted list begins."""
    begin = max(len(numbers) - 1, 0)
    while begin and numbers[begin - 1] == numbers[begin] - 1:
        begin -= 1
    return begin
