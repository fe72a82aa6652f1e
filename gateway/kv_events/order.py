"""The order of one target's event batches: what to do with each, without sockets and clocks of its own.

Batches carry a sequence number that starts at 0 with the engine's process. What is applied has to be all of them, each
once, in order, from one life of the engine; what cannot be had again is forgotten, and that is said.

Two lives of an engine may use the same numbers, so a number alone does not say which batch is meant: its time stamp
does. A replay is therefore asked for from the last batch that was applied, not from the next: if the engine then shows
another batch under that number, or none, it has been started anew.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.kv_events import AllBlocksCleared, EventBatch, FeedState, UnknownEvent

_REMEMBERED = 1024
"""Batches whose time stamps are kept, to tell a late copy from a restarted engine."""

_WAITING_LIMIT = 20_000
"""Batches that wait for one that is missing. More than engines keep for a replay (10,000)."""

_WAITING_BYTES = 64 * 1024 * 1024
"""Encoded size of these batches; decoded they take a multiple. What exceeds it is asked for again or forgotten."""

_MOST_COPIES = 20_000
"""Batches in a row that may pass for late copies. More are the batches of an engine whose clock was far ahead once."""

_TRIES = 3
"""Replays in a row that may turn out to have holes: engines drop messages to a reader that is too slow."""

_PATIENCE_SECONDS = 0.5
"""How long to wait for a missing batch when there is no replay to ask for."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Take over the events of a batch."""

    batch: EventBatch


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget all that was applied."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask the engine for its past batches, from a sequence number on."""

    start: int


@dataclass(frozen=True, slots=True)
class SetState:
    """The feed's state from here on."""

    state: FeedState


@dataclass(frozen=True, slots=True)
class Gap:
    """Batches are missing.

    Attributes:
        expected: The first one missing.
        got: The one that came instead.
    """

    expected: int
    got: int


Action = Apply | Clear | AskReplay | SetState | Gap


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
        next: Sequence number of the batch that should come next; None while that is not known.
        asking: Whether the answer to a replay is awaited.
    """

    def __init__(self, *, replays: bool) -> None:
        self.next: int | None = None
        self.asking = False
        self._offers_replays = self._replays = replays
        self._state = FeedState.CONNECTING
        self._complete = False
        self._stamps: dict[int, float] = {}
        self._last_stamp = 0.0
        self._copies = 0
        # Batches that came ahead of a missing one, and their sequence numbers as a heap.
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._numbers: list[int] = []
        self._waiting_until = 0.0
        # Of the subscription: whether it holds, whether it has brought anything, and whether it has not when it should.
        self._linked = False
        self._heard = False
        self._mute = False
        # Of the replay under way: whether its first batch was seen, whether it only looks if all is well, and how many
        # in a row had holes.
        self._begun = False
        self._probing = False
        self._tries = 0
        self._asked_from = 0

    @property
    def state(self) -> FeedState:
        """How far what was applied can be trusted."""
        return self._state

    def connected(self) -> Iterator[Action]:
        """The subscription holds, for the first time or again."""
        self._linked = True
        self._heard = self._mute = False
        self._replays = self._offers_replays
        self._tries = 0
        if self._replays:
            yield from self._ask(probing=False)
        else:
            if self.next is not None:
                # What came while nobody listened is lost.
                yield from self._forget()
            yield from self._settle()

    def lost(self) -> Iterator[Action]:
        """The subscription does not hold any more."""
        self._linked = self.asking = False
        self._drop_waiting()
        yield from self._enter(FeedState.CONNECTING)

    def restarted(self, started_at: float) -> Iterator[Action]:
        """Something else says that the engine is a new process since ``started_at``, by the engine's clock."""
        if not self._replays and self.next is not None and self._last_stamp >= started_at:
            return  # its batches have told already, and could not be had again
        yield from self._forget()
        if self._linked:
            yield from self.connected()

    def failed(self) -> Iterator[Action]:
        """What was applied is not what it should be: forget it, and wait for ``connected``."""
        yield from self.lost()
        yield from self._forget()

    def probe(self) -> Iterator[Action]:
        """Nothing has come for a while: ask whether nothing was missed. The state stays as it is."""
        if self._replays and not self.asking and self._state is not FeedState.CONNECTING:
            self._tries = 0
            yield from self._ask(probing=True)

    def retry(self) -> Iterator[Action]:
        """A replay was not answered before: ask for everything once more."""
        if self._replays and not self.asking and self._state is FeedState.REBUILDING:
            self.next = None
            self._tries = 0
            yield from self._ask(probing=False)

    def live(self, sequence: int, batch: EventBatch, now: float, size: int = 0) -> Iterator[Action]:
        """A batch came by the subscription.

        Args:
            sequence: Its number.
            batch: The batch.
            now: Monotonic seconds.
            size: Encoded size in bytes.
        """
        if not self._linked:
            return  # from before it broke: what came after is missing, and is asked for once it holds again
        self._heard = True
        self._mute = False
        if self.asking:
            self._wait(sequence, batch, size)
        elif self.next is None:
            # Nothing is known of the past, unless this is its beginning.
            self._complete = sequence == 0
            self.next = sequence
            yield from self._take(sequence, batch)
            yield from self._settle()
        elif sequence == self.next and self._replays and batch.timestamp < self._last_stamp:
            # The right number, and older than what came before it: left over from an engine that was there before, or
            # a clock that was set back. The engine can tell; until it has, what was applied may lack this batch.
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
            if self._copies > _MOST_COPIES or not self._is_copy(sequence, batch):
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
        """A batch came in answer to a replay; arguments as for ``live``."""
        if not self.asking:
            return
        if not self._begun:
            self._begun = True
            yield from self._begin_replay(sequence, batch)
            if not self._begun:  # asked anew
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
                # The engine has not come so far yet: it is a new one, unless the answer got lost on its way.
                yield from self._forget()
                self._tries += 1
                if self._asked_from or self._tries < _TRIES:
                    yield from self._ask(probing=False)
                    return
            if self.next is None:
                yield Clear()
                self.next = 0
                # Nothing has ever happened; or it has, and this engine keeps nothing to replay.
                self._complete = not self._heard
                self._replays = not self._heard
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
        """Time passes: give up a missing batch that nobody can be asked for."""
        if self._waiting and not self.asking and now >= self._waiting_until:
            yield from self._give_up()
            yield from self._settle()

    def completed(self) -> Iterator[Action]:
        """What was applied turned out to account for everything the engine holds."""
        if self._state is FeedState.REBUILDING:
            self._complete = True
            yield from self._enter(FeedState.LIVE)

    def refuted(self) -> Iterator[Action]:
        """What was applied cannot be true: begin anew from what comes, as a replay would bring the same."""
        yield Clear()
        self._complete = False
        yield from self._settle()

    def silent(self, *, mute: bool) -> Iterator[Action]:
        """Batches should have come and have not.

        Args:
            mute: The subscription itself brings nothing, so that only a live batch will show that all is well again.
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
        """The first batch of a replay tells whether the engine is still the one that was known."""
        if self.next:
            if sequence == self._asked_from and self._stamps.get(sequence) == batch.timestamp:
                return
            if sequence == self._asked_from and sequence > 0:
                # Another batch under the same number. What this engine did before it has to be asked for.
                yield from self._forget()
                yield from self._ask(probing=False)
                return
            # It is the engine's first, or older ones are not to be had any more.
        # What came meanwhile belongs behind it, unless it is from an engine that was there before.
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
            # What it did is not known, and a replay would bring the same.
            yield Clear()
            self._complete = False
        elif AllBlocksCleared in kinds:
            self._complete = True

    def _catch_up(self) -> Iterator[Action]:
        """Apply what waited and is next; drop what waited and is already applied."""
        while self._numbers and self.next is not None and self._numbers[0] <= self.next:
            sequence = heapq.heappop(self._numbers)
            batch = self._pop_waiting(sequence)
            if sequence == self.next:
                yield from self._take(sequence, batch)

    def _give_up(self) -> Iterator[Action]:
        """What is missing cannot be had: forget everything up to the last gap, and go on behind it."""
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
        """The sequence fell back: the engine's process is a new one."""
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
        state = FeedState.LIVE if self._complete else FeedState.REBUILDING
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
