"""Many events at once, failures inside, and the end of a feed."""

import asyncio
import time

import pytest
import structlog
from index.event_index import HASHER, MODEL, WORTH, chain_of
from kv_events.feed_reader import (
    CONNECTING,
    LIVE,
    SIZE,
    TARGET,
    Reader,
    fill,
    following,
)
from kv_events.publishing_engine import PublishingEngine

from gateway.core.kv_events import EventSource
from gateway.index import ReplicaIndex


class Watched:
    """An index that notes how much is done to it between two turns of another task."""

    def __init__(self, index):
        self._index = index
        self.since_turn = 0
        self.most = 0

    def apply(self, target, event):
        self.since_turn += 1
        self.most = max(self.most, self.since_turn)
        self._index.apply(target, event)

    def __getattr__(self, name):
        return getattr(self._index, name)


@pytest.mark.parametrize("late", [True, False])
def test_two_thousand_batches_let_other_tasks_have_their_turns(run, late):
    async def body():
        index = Watched(
            ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
        )
        engine = PublishingEngine()
        if late:
            await fill(engine, 2_000)
        async with following(engine, index=index) as reader:
            if not late:
                await reader.until(lambda: reader.state is LIVE)
                await fill(engine, 2_000)
            time.sleep(0.3)
            turns = 0
            while reader.report.next_sequence != 2_000 or reader.feed._actions:
                await asyncio.sleep(0)
                turns += 1
                index.since_turn = 0
            assert reader.equals(engine)
            assert turns > 20
            assert index.most <= 500

    run(body)


def test_one_long_prompt_is_taken_over_in_pieces(run):
    async def body():
        index = Watched(
            ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
        )
        engine = PublishingEngine()
        async with following(engine, index=index) as reader:
            await reader.until(lambda: reader.state is LIVE)
            calls = []
            apply = index.apply
            index.apply = lambda target, event: (calls.append(len(event.names)), apply(target, event))
            engine.ask(*range(199 * SIZE), salt="tenant")
            await reader.until(lambda: reader.equals(engine))
            assert sum(calls) == 199
            assert max(calls) < 199
            prompt = engine.pool.described[next(iter(engine.pool.copies()))][0]
            (holding,) = index.holdings([chain_of(prompt, SIZE)], [TARGET], 0.0)
            assert holding.tokens == 198 * SIZE

    run(body)


class Stumbles:
    """An index that fails once."""

    def __init__(self, index, at):
        self._index = index
        self.left = at

    def apply(self, target, event):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("odd")
        self._index.apply(target, event)

    def __getattr__(self, name):
        return getattr(self._index, name)


def test_failure_inside_is_said_claims_nothing_and_is_begun_anew_after_a_while(run):
    async def body():
        index = ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
        engine = PublishingEngine()
        other = PublishingEngine()
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with following(engine, index=Stumbles(index, 4)) as reader:
            await reader.until(lambda: reader.state is LIVE)
            beside = Reader(EventSource(0, other.events, other.replay), pump=reader.pump)
            await other.subscribed()
            with structlog.testing.capture_logs() as logs:
                await fill(engine, 6)
                await reader.until(lambda: reader.state is CONNECTING)
                await fill(other, 6)
                await beside.until(lambda: beside.equals(other))
            assert "kv_events_failed" in [log["event"] for log in logs]
            await fill(engine, 3, start=100)
            await reader.until(lambda: reader.index.state(TARGET).source == "predicted")
            assert reader.state is CONNECTING
            for _ in range(3):  # begin anew; the answer to that is late by this clock; ask again
                reader.tick(60.0)
            await reader.until(lambda: reader.equals(engine))
            assert failures == []
            beside.close()
            other.end()

    run(body)


def test_closed_feed_leaves_nothing_behind(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 5)
            await reader.until(lambda: reader.equals(engine))
            reader.feed.close()
            engine.ask(*range(100))
            await asyncio.sleep(0.05)
            state = reader.index.state(TARGET)
            assert (state.source, state.blocks, state.digest) == ("predicted", 0, None)
            reader.feed.close = lambda: None

    run(body)
