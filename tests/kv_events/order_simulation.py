"""An engine that publishes batches, a network that loses them, and the order machine between them and an index.

The engine is as vLLM's publisher: a sequence that starts at 0 with the process, a bounded buffer to replay from, one
stream to all subscribers. The reader is as the gateway's: while a replay is answered nothing live is read, a new
request for a replay replaces the one before, and a connection that breaks takes along what was not read.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, FeedState, UnknownEvent
from gateway.kv_events.order import BatchOrder
from gateway.kv_events.order_actions import Apply, AskReplay, Clear, Gap, SetState


@dataclass(eq=False)
class EngineProcess:
    """One process of the engine: what it holds after each batch."""

    number: int
    clock: float
    buffer: deque
    batches: list = field(default_factory=list)
    contents: list = field(default_factory=lambda: [Counter()])

    @property
    def content(self):
        return self.contents[-1]


@dataclass(eq=False)
class ReplayRequest:
    """A request for past batches: not served yet, or with what is still on its way."""

    start: int
    answers: deque | None = None
    shown: tuple | None = None


def play(content, batch):
    """What a content becomes by a batch."""
    content = Counter(content)
    for event in batch.events:
        match event:
            case BlockStored():
                content.update(event.names)
            case BlockRemoved():
                content -= Counter(event.names)
            case AllBlocksCleared():
                content.clear()
    return content


def stored(*names):
    return BlockStored(list(names), None, b"", 0)


class EventSimulation:
    """Everything. Each method is one thing that can happen; what cannot happen at the moment does nothing.

    Args:
        replays: Whether the engine answers replays.
        buffer: How many batches it keeps for them.
        index: Gets what to apply and when to forget; by default a count of names.
    """

    def __init__(self, *, replays=True, buffer=1000, index=None):
        self.order = BatchOrder(replays=replays)
        self.replays = replays
        self.now = 0.0
        self.linked = False
        self.half_open = False
        self.queue = deque()
        self.late = []
        self.request = None
        self.shown = None
        self.muted = False
        self.gaps = []
        self.states = []
        self.forgotten = 0
        self.applied = Counter()
        self._index = index
        self._buffer = buffer
        self.process = EngineProcess(0, 1e6, deque(maxlen=buffer))
        self.processes = [self.process]

    # What happens at the engine.

    def publish(self, *events, lose=False, damage=False):
        """One batch. Damaged: its last event cannot be read."""
        process = self.process
        sequence = len(process.batches)
        batch = EventBatch(process.clock + sequence + process.number / 1000, list(events))
        process.contents.append(play(process.content, batch))
        if damage:
            batch = batch._replace(events=[*events[:-1], UnknownEvent("BlockStored")])
        process.batches.append(batch)
        process.buffer.append((sequence, batch))
        if self.linked and not self.half_open and not lose:
            self.queue.append((process, sequence))

    def restart(self, *, clock_back=False, silently=False):
        """A new process. Its connections break, except for one whose end was not noticed yet."""
        clock = self.process.clock - 5000 if clock_back else self.process.clock + len(self.process.batches) + 10
        self.process = EngineProcess(len(self.processes), clock, deque(maxlen=self._buffer))
        self.processes.append(self.process)
        if self.linked:
            if silently:
                self.half_open = True
            else:
                self.disconnect()

    def set_clock_back(self):
        """The engine's clock, while it runs."""
        self.process.clock -= 500

    # What happens to the connections.

    def connect(self):
        if not self.linked:
            self.linked, self.half_open, self.muted = True, False, False
            self.do(self.order.connected())

    def disconnect(self):
        if self.linked:
            self.linked = self.half_open = False
            self.request = None
            self.queue.clear()
            self.late.clear()
            self.do(self.order.lost())

    def deliver(self, at=0):
        """A live batch is read: the next one, or one that overtook others."""
        if self.queue and self.request is None:
            self.queue.rotate(-(at % len(self.queue)))
            message = self.queue.popleft()
            self.queue.rotate(at % (len(self.queue) + 1))
            self._live(message)

    def duplicate(self, at=0):
        if self.queue:
            message = self.queue[at % len(self.queue)]
            self.queue.append(message)

    def drop(self, at=0):
        if self.queue:
            del self.queue[at % len(self.queue)]

    def hold_back(self, at=0):
        """A live batch is delayed."""
        if self.queue:
            message = self.queue[at % len(self.queue)]
            del self.queue[at % len(self.queue)]
            self.late.append(message)

    def let_go(self):
        self.queue.extend(self.late)
        self.late.clear()

    def serve(self, hole=None):
        """The engine answers a replay; ``hole`` is dropped on its way."""
        request = self.request
        if request is not None and request.answers is None:
            answers = [(self.process, sequence) for sequence, _ in self.process.buffer if sequence >= request.start]
            if hole is not None and answers:
                del answers[hole % len(answers)]
            request.answers = deque(answers)
            request.shown = (self.process, max((sequence + 1 for _, sequence in answers), default=0))
            if not self.process.batches or request.start >= len(self.process.batches):
                request.shown = (self.process, len(self.process.batches))

    def answer(self):
        """One message of a replay is read."""
        request = self.request
        if request is None or request.answers is None:
            return
        if request.answers and request.answers[0][0] is not self.process:
            return  # the rest went with the process
        if not request.answers:
            if request.shown[0] is self.process:
                self.request = None
                self._show(*request.shown)
                self.do(self.order.replay_ended())
            return
        process, sequence = request.answers.popleft()
        self.do(self.order.replayed(sequence, process.batches[sequence]))

    def fail_replay(self):
        """It took too long."""
        if self.request is not None:
            self.request = None
            self.do(self.order.replay_failed())

    # What happens inside of the gateway.

    def probe(self):
        if self.linked:
            self.do(self.order.probe())

    def retry(self):
        self.do(self.order.retry())

    def restart_noticed(self):
        if len(self.processes) > 1:
            self.do(self.order.restarted(self.process.clock))

    def silent(self, *, mute=False):
        self.muted = mute
        self.do(self.order.silent(mute=mute))

    def tick(self, seconds=1.0):
        self.now += seconds
        self.do(self.order.tick(self.now))

    def settle(self):
        """All that is on its way arrives, in order."""
        for _ in range(10_000):
            if self.request is not None:
                self.serve()
                if self.request.answers and self.request.answers[0][0] is not self.process:
                    self.fail_replay()
                    continue
                if not self.request.answers and self.request.shown[0] is not self.process:
                    self.fail_replay()
                    continue
                self.answer()
            elif self.queue:
                self.deliver()
            else:
                return
        raise AssertionError("it asks for replays without end")

    # What has to be true.

    @property
    def state(self):
        return self.order.state

    def check(self):
        """While it says that all is known, what was applied is what the engine held after the batch before ``next``."""
        if self.half_open or self.order.next is None or self.order.next > len(self.process.batches):
            if not self.half_open:
                assert self.state is not FeedState.LIVE
            return
        then = self.process.contents[self.order.next]
        if self.state is FeedState.LIVE:
            assert self.applied == then
            if self.shown == (self.process, len(self.process.batches)) and not self.queue and not self.late:
                assert self.applied == self.process.content

    def _live(self, message):
        process, sequence = message
        if self.linked:
            self.muted = False
            self._show(process, sequence + 1)
        self.do(self.order.live(sequence, process.batches[sequence], self.now))

    def _show(self, process, count):
        if self.shown is None or self.shown[0] is not process or self.shown[1] < count:
            self.shown = (process, count)

    def do(self, actions):
        """Take the actions of the order machine."""
        for action in actions:
            match action:
                case Apply(batch):
                    self.applied = play(self.applied, batch)
                    if self._index is not None:
                        self._index.apply(batch)
                case Clear():
                    self.forgotten += self.applied.total()
                    self.applied = Counter()
                    if self._index is not None:
                        self._index.clear()
                case AskReplay(start):
                    assert self.replays
                    self.request = ReplayRequest(start)
                case SetState(state):
                    self.states.append(state)
                case Gap():
                    self.gaps.append(action)
        if not self.states or self.states[-1] is not self.order.state:
            assert self.order.state is FeedState.CONNECTING
            assert not self.states
        assert self.order.asking == (self.request is not None)
