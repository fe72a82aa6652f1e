"""Feeds of engines that lose, repeat, or invent batches: bounded work, in portions, for any events."""

import asyncio
import itertools
import time

import msgspec
import pytest
from index.event_index import HASHER, MODEL, WORTH
from kv_events.feed_reader import CONNECTING, LIVE, REBUILDING, TARGET, Reader, fill, following
from kv_events.publishing_engine import END, TOPIC, PublishingEngine

from gateway.config.index_settings import IngestSettings
from gateway.core.kv_events import EventSource
from gateway.index import ReplicaIndex
from gateway.kv_events import feed as feed_module


class Counted:
    """An index that counts what is asked of it, and the most that one turn of the event loop asks."""

    def __init__(self):
        self.index = ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30)
        self.clears = self.turn = self.most_blocks = 0

    def apply(self, target, event):
        self.turn += len(getattr(event, "names", ())) or 1
        self.most_blocks = max(self.most_blocks, self.turn)
        self.index.apply(target, event)

    def clear(self, target):
        self.clears += 1
        self.index.clear(target)

    def __getattr__(self, name):
        return getattr(self.index, name)


async def heartbeat(index, longest):
    """Note the most CPU time between two turns, and begin a new count of blocks in each."""
    last = time.process_time()
    while True:
        await asyncio.sleep(0)
        now = time.process_time()
        longest[0], last = max(longest[0], now - last), now
        index.turn = 0


def batch(number, events):
    return [TOPIC, number.to_bytes(8, "big"), msgspec.msgpack.encode([1e6 + number / 2**64, events, 0])]


def stored(number, count=1):
    names = list(range(number * 100_000 + 1, number * 100_000 + 1 + count))
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": None,
        "token_ids": [number % 50_000] * 16 * count,
        "block_size": 16,
    }


@pytest.mark.parametrize("storm", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_storm_of_which_every_second_batch_is_lost_costs_one_clear(run, monkeypatch, storm):
    monkeypatch.setattr("gateway.kv_events.order._PATIENCE_SECONDS", 1e6)  # given up when this test says so

    async def body():
        engine = PublishingEngine()
        index = Counted()
        longest = [0.0]
        async with following(engine, index=index, replay=False) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            engine.send_frames(batch(0, [stored(1)]))
            await reader.until(lambda: reader.report.next_sequence == 1)
            clears = index.clears
            for number in range(2, 2 * storm, 2):
                engine.send_frames(batch(number, [stored(number)]))
                if number % 500 == 0:
                    await asyncio.sleep(0)
            await reader.until(lambda: len(reader.feed._order._waiting) == storm - 1)
            beat = asyncio.create_task(heartbeat(index, longest))
            await asyncio.sleep(0.01)
            reader.feed.tick(time.monotonic() + 2e6)
            await reader.until(lambda: reader.report.next_sequence == 2 * storm - 1)
            await reader.until(lambda: reader.index.state(TARGET).blocks == 1 and not reader.feed._actions)
            beat.cancel()
            assert index.clears == clears + 1
            assert reader.index.state(TARGET).blocks == 1  # what the last batch says, and nothing from before a gap
            assert longest[0] < 1.5  # it was 6 seconds

    run(body)


def test_a_replay_of_which_every_second_batch_is_missing_costs_a_few_clears(run):
    async def body():
        engine = PublishingEngine(answers=False)
        index = Counted()
        longest = [0.0]
        async with following(engine, index=index) as reader:
            beat = asyncio.create_task(heartbeat(index, longest))
            for asked in range(1, 4):
                await reader.until(lambda asked=asked: len(engine.asked) == asked)
                for number in range(0, 2000, 2):
                    engine.send_replay(engine.clients[-1], batch(number, [stored(number)]))
                engine.send_replay(engine.clients[-1], [b"", END, b""])
            await reader.until(lambda: reader.state is REBUILDING)
            await reader.until(lambda: reader.report.next_sequence == 1999)
            beat.cancel()
            assert len(engine.asked) == 3
            assert index.clears <= 4
            assert longest[0] < 1.5

    run(body)


def test_what_waited_is_applied_in_turns(run, monkeypatch):
    monkeypatch.setattr("gateway.kv_events.order._PATIENCE_SECONDS", 1e6)

    async def body():
        engine = PublishingEngine()
        index = Counted()
        async with following(engine, index=index, replay=False) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            for number in [0, *range(2, 5002)]:
                engine.send_frames(batch(number, [stored(number)]))
            await reader.until(lambda: len(reader.feed._order._waiting) == 5000)
            beat = asyncio.create_task(heartbeat(index, [0.0]))
            reader.feed.tick(time.monotonic() + 2e6)
            await reader.until(lambda: reader.report.batches == 5001 and not reader.feed._actions)
            beat.cancel()
            assert reader.index.state(TARGET).blocks == 5000
            assert index.most_blocks < 1000

    run(body)


def test_batches_taken_for_late_copies_again_and_again_are_a_new_engine(run, monkeypatch):
    """One time stamp far ahead must not make copies of all that follows."""
    monkeypatch.setattr("gateway.kv_events.order._MAX_COPIES", 50)

    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            frames = [TOPIC, (10**6).to_bytes(8, "big"), msgspec.msgpack.encode([1e300, [stored(1)], 0])]
            engine.send_frames(frames)
            await reader.until(lambda: reader.report.next_sequence == 10**6 + 1)
            await fill(engine, 60)
            await reader.until(lambda: reader.equals(engine))

    run(body)


@pytest.mark.parametrize("number", [10**6, 2**63, 2**64 - 2])
def test_a_number_far_ahead_costs_what_was_known_and_nothing_else(run, number):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            engine.send_frames(batch(number, [stored(1)]))
            await reader.until(lambda: reader.report.gaps == 1 and reader.state is not CONNECTING)
            await fill(engine, 3, start=200)
            await reader.until(lambda: reader.equals(engine))

    run(body)


def test_the_end_mark_is_no_live_batch(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine, replay=False) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            engine.send_frames([TOPIC, END, b""])
            await fill(engine, 1)
            await reader.until(lambda: reader.report.next_sequence == 1)
            assert reader.report.gaps == 0
            assert reader.state is LIVE

    run(body)


@pytest.mark.parametrize("endless", ["batches", "seconds"])
def test_a_replay_that_does_not_end_is_given_up(run, monkeypatch, endless):
    monkeypatch.setattr(feed_module, "_REPLAY_BATCHES", 300)

    async def body():
        engine = PublishingEngine(answers=False)
        async with following(engine) as reader:
            await reader.until(lambda: engine.asked == [0])
            (client,) = engine.clients
            sent = 400 if endless == "batches" else 100
            for number in range(sent):
                engine.send_replay(client, batch(number, [stored(number)]))
            if endless == "seconds":
                # While actions are left, no time-out counts.
                await reader.until(lambda: reader.report.batches == sent and not reader.feed._actions)
                reader.later = 400.0
                reader.feed._replay_received_at = time.monotonic() + reader.later  # it has gone on all the time
                reader.feed.tick(time.monotonic() + reader.later)
            await reader.until(lambda: reader.state is REBUILDING)
            assert 100 <= reader.report.batches <= 300
            engine.send_frames(batch(sent, [stored(7)]))
            await reader.until(lambda: reader.report.next_sequence == sent + 1)

    run(body)


def test_a_batch_beyond_the_limit_breaks_the_connection_and_is_not_held(run):
    async def body():
        engine = PublishingEngine()
        source = EventSource(0, engine.events, None)
        reader = Reader(source, settings=IngestSettings(max_batch_mib=1))
        try:
            await engine.subscribed()
            await reader.until(lambda: reader.state is REBUILDING)
            engine.send_frames([TOPIC, (0).to_bytes(8, "big"), bytes(2**21)])
            await engine.subscribed()  # a second time
            await fill(engine, 2)
            await reader.until(lambda: reader.report.batches == 2)
        finally:
            reader.close()
            engine.end()

    run(body)


def test_a_million_hashes_and_a_long_prompt_come_in_portions(run):
    async def body():
        engine = PublishingEngine()
        index = Counted()
        async with following(engine, index=index) as reader:
            await reader.until(lambda: reader.state is LIVE)
            longest = [0.0]
            beat = asyncio.create_task(heartbeat(index, longest))
            removed = {"type": "BlockRemoved", "block_hashes": list(range(2**50, 2**50 + 200_000))}
            cleared = [{"type": "AllBlocksCleared"}, {"type": "BlockRemoved", "block_hashes": []}] * 20_000
            engine.send_frames(batch(0, [stored(1, 20_000), removed, *cleared, stored(2, 5)]))
            await reader.until(lambda: reader.report.next_sequence == 1 and not reader.feed._actions)
            await reader.until(lambda: next(reader.feed._events, None) is None)
            beat.cancel()
            assert index.most_blocks < 2000
            assert longest[0] < 1.5
            assert reader.counts.events == {"stored": 80, "removed": 20_049, "cleared": 20_000}

    run(body)


@pytest.mark.slow
def test_orphans_are_adopted_in_turns(run):
    """Thirty thousand blocks wait for one that comes last."""

    async def body():
        engine = PublishingEngine()
        index = Counted()
        async with following(engine, index=index) as reader:
            await reader.until(lambda: reader.state is LIVE)
            every = stored(1, 30_000)
            names, tokens = every["block_hashes"], every["token_ids"]
            behind = {**every, "block_hashes": names[1:], "token_ids": tokens[16:], "parent_block_hash": names[0]}
            first = {**every, "block_hashes": names[:1], "token_ids": tokens[:16]}
            engine.send_frames(batch(0, [behind]))
            await reader.until(lambda: index.index._events.part(TARGET) is not None)
            await reader.until(lambda: index.index._events.part(TARGET).waiting == 29_999)
            placed = []
            part = index.index._events.part(TARGET)
            engine.send_frames(batch(1, [first]))
            while part.waiting:
                placed.append(part.waiting)
                await asyncio.sleep(0)
            placed.append(0)
            assert max(before - after for before, after in itertools.pairwise(placed)) <= 5000
            await reader.until(lambda: reader.index.state(TARGET).blocks == 30_000)

    run(body)
