"""Engine, order machine and index together: never wrong while claiming to know all."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from index.engine_model import Engine, Prompt
from index.event_index import TARGET, chain_of, event_index, gpu_copies
from kv_events.order_simulation import EventSimulation
from kv_events.order_steps import end_faults

from gateway.core.kv_events import FeedState

SIZE = 16

prompts = st.builds(
    lambda letters, rest, salt: Prompt(
        tuple(letter for letter in letters for _ in range(SIZE))[: len(letters) * SIZE - rest], salt
    ),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.sampled_from([0, 1]),
    st.sampled_from(["", "", "tenant"]),
)
numbers = st.integers(0, 3)
steps = st.one_of(
    *[st.tuples(st.just("ask"), prompts)] * 3,
    *[st.tuples(st.sampled_from(["deliver", "deliver", "connect", "settle", "serve", "answer"]), st.none())] * 3,
    st.tuples(st.sampled_from(["ask and lose", "ask together"]), prompts),
    st.tuples(st.sampled_from(["drop", "duplicate", "hold_back", "deliver", "serve"]), numbers),
    st.tuples(
        st.sampled_from(["reset", "restart", "disconnect", "let_go", "fail_replay", "probe", "retry", "tick", "end"]),
        st.none(),
    ),
)


class IndexUpdates:
    """Passes the order machine's updates to an index."""

    def __init__(self):
        self.index = event_index()

    def apply(self, batch):
        for event in batch.events:
            self.index.apply(TARGET, event)

    def clear(self):
        self.index.clear(TARGET)


class Whole:
    def __init__(self, *, replays, buffer):
        self.reported = IndexUpdates()
        self.simulation = EventSimulation(replays=replays, buffer=buffer, index=self.reported)
        self.engine = Engine(10, SIZE)
        self.seen = []

    def take(self, what, argument):
        match what:
            case "ask" | "ask and lose" | "ask together":
                self.seen.append(argument)
                if self.engine.begin(argument) and what != "ask together":
                    self.engine.end(self.engine.running[-1])
                self.publish(lose=what == "ask and lose")
            case "end":
                if self.engine.running:
                    self.engine.end(self.engine.running[0])
            case "reset":
                self.engine.reset()
                self.publish()
            case "restart":
                self.engine.restart()
                self.simulation.restart()
            case _ if argument is None:
                getattr(self.simulation, what)()
            case _:
                getattr(self.simulation, what)(argument)

    def publish(self, *, lose=False):
        events = self.engine.take_events()
        if events:
            self.simulation.publish(*events, lose=lose)

    def check(self):
        """While it claims to know all, copies and prefixes are those the engine had after the batch before ``next``."""
        self.simulation.check()
        part = self.reported.index.part(TARGET)
        copies = Counter(gpu_copies(part)) if part else Counter()
        if self.simulation.state is FeedState.LIVE:
            held = self.simulation.process.contents[self.simulation.order.next]
            assert copies == held
            for prompt in self.seen:
                names = prompt.names(SIZE)[: (len(prompt.tokens) - 1) // SIZE]
                reusable = next((n for n, name in enumerate(names) if not held[name]), len(names))
                assert self.depth(prompt) == reusable
        elif self.simulation.state is FeedState.REBUILDING and self.simulation.order.next is not None:
            # Not all, and none that is not there.
            assert copies <= self.simulation.process.contents[self.simulation.order.next]

    def depth(self, prompt):
        chain = chain_of(prompt, SIZE)
        return self.reported.index.depths(chain, chain.reusable_blocks, [TARGET])[0]


@settings(max_examples=2 * settings.default.max_examples)
@given(
    order=st.lists(steps, max_size=40),
    buffer=st.sampled_from([1000, 1000, 4]),
    replays=st.sampled_from([True, True, False]),
)
def test_index_equals_the_engine_or_says_that_it_is_rebuilding(order, buffer, replays):
    whole = Whole(replays=replays, buffer=buffer)
    for what, argument in order:
        whole.take(what, argument)
        whole.check()
    end_faults(whole.simulation, probe=True)
    whole.check()
    if replays and len(whole.simulation.process.batches) <= buffer:
        assert whole.simulation.state is FeedState.LIVE
        for prompt in whole.seen:
            assert whole.depth(prompt) == whole.engine.hit(prompt)
