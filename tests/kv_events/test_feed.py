"""One target's events over real sockets, into a real index."""

import asyncio
import time

import pytest
from kv_events.feed_reader import (
    CONNECTING,
    LIVE,
    REBUILDING,
    SETTINGS,
    TARGET,
    Reader,
    fill,
    following,
)
from kv_events.publishing_engine import PublishingEngine

from gateway.core.kv_events import EventSource


def test_late_start_fills_the_index_from_the_replay(run):
    async def body():
        engine = PublishingEngine()
        await fill(engine, 50)
        async with following(engine) as reader:
            await reader.until(lambda: reader.equals(engine))
            assert reader.counts.gaps == 0
            assert reader.report.next_sequence == 50
            asked_at = time.monotonic()
            engine.ask(*range(900, 960))
            await reader.until(lambda: reader.report.next_sequence == 51 and reader.equals(engine))
            now = time.monotonic()
            age = reader.feed.report(now + 60).last_batch_age_seconds
            assert 60 <= age <= 60.001 + now - asked_at

    run(body)


def test_two_gateways_that_started_at_different_times_know_the_same(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as early:
            await early.until(lambda: early.state is LIVE)
            await fill(engine, 30)
            late = Reader(EventSource(0, engine.events, engine.replay))
            try:
                await engine.subscribed()
                await fill(engine, 5, start=100)
                await early.until(lambda: early.equals(engine) and late.equals(engine))
                assert early.index.state(TARGET) == late.index.state(TARGET)
                assert early.index.state(TARGET).digest != 0
            finally:
                late.close()

    run(body)


def test_gap_is_replayed(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            await fill(engine, 5)
            engine.ask(*range(500, 560), send=False)
            engine.ask(*range(600, 660))
            await reader.until(lambda: reader.equals(engine))
            assert reader.counts.gaps == reader.report.gaps == 1
            assert engine.asked[-1] == 4

    run(body)


def test_batches_lost_at_the_end_are_found_by_a_probe(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            engine.ask(*range(500, 560), send=False)
            reader.tick(SETTINGS.probe_seconds / 2)
            asked = len(engine.asked)
            reader.tick(SETTINGS.probe_seconds)
            await reader.until(lambda: reader.equals(engine))
            assert len(engine.asked) == asked + 1

    run(body)


def test_gap_without_a_replay_leaves_the_part_rebuilding(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine, replay=False) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            engine.ask(*range(500, 560), send=False)
            engine.ask(*range(600, 660))
            await reader.until(lambda: reader.state is CONNECTING)
            reader.tick(1.0)
            await reader.until(lambda: reader.index.state(TARGET).blocks == 3)
            assert reader.state is REBUILDING
            engine.reset()
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))

    run(body)


def full_of(index, engine):
    """So small a cache that what is held accounts for all of it."""
    index.set_capacity(TARGET, sum(engine.pool.copies().values()))
    assert index.is_complete(TARGET)


def test_full_cache_does_not_make_a_gap_that_cannot_be_filled_complete(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine, replay=False) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            await fill(engine, 20)
            await reader.until(lambda: reader.equals(engine))
            full_of(reader.index, engine)
            engine.ask(*range(500, 560), send=False)
            engine.ask(*range(600, 660))
            await reader.until(lambda: reader.state is CONNECTING)
            reader.tick(1.0)
            assert reader.state is REBUILDING
            for _ in range(20):
                await asyncio.sleep(0.005)
                reader.tick()
                assert reader.state is REBUILDING
            assert reader.index.state(TARGET).blocks == 3

    run(body)


def test_full_cache_does_not_make_a_replay_that_failed_complete(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 20)
            await reader.until(lambda: reader.equals(engine))
            full_of(reader.index, engine)
            engine._answers = False
            engine.ask(*range(500, 560), send=False)
            engine.ask(*range(600, 660))
            await reader.until(lambda: reader.state is CONNECTING)
            reader.tick(SETTINGS.replay_timeout_seconds + 1)
            assert reader.state is REBUILDING

    run(body)


def test_part_that_accounts_for_the_whole_cache_is_live(run):
    async def body():
        engine = PublishingEngine(buffer=20)
        await fill(engine, 60)
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is REBUILDING and reader.report.next_sequence == 60)
            reader.tick()
            assert reader.state is REBUILDING
            reader.index.set_capacity(TARGET, engine.pool.usable)
            await fill(engine, 150, start=200)
            await reader.until(lambda: reader.report.next_sequence == 210 and reader.index.is_complete(TARGET))
            # What the last events say may not be done yet; then this tick is not the one that finds the part complete.
            await reader.until(lambda: reader.tick() or reader.equals(engine))

    run(body)


def test_socket_that_was_killed_is_found_again_with_what_was_missed(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 5)
            await reader.until(lambda: reader.equals(engine))
            engine.close()
            await reader.until(lambda: reader.state is CONNECTING)
            await reader.until(lambda: reader.index.state(TARGET).source == "predicted")  # in its turn
            await fill(engine, 5, start=100)
            engine.open()
            await reader.until(lambda: reader.equals(engine))
            assert reader.report.next_sequence == 10

    run(body)


@pytest.mark.parametrize("batches", [0, 3, 5, 8])
def test_restarted_engine_is_followed_from_its_beginning(run, batches):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 5)
            await reader.until(lambda: reader.equals(engine))
            engine.restart()
            await reader.until(lambda: reader.state is CONNECTING)
            await fill(engine, batches, start=300)
            engine.open()
            await reader.until(lambda: reader.equals(engine))
            assert reader.report.next_sequence == batches

    run(body)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("clock_seconds", [0, -3600])
@pytest.mark.parametrize("batches", [4, 5, 6])
def test_batches_unread_when_the_engine_died_are_not_taken_for_the_new_ones(run, batches, clock_seconds, replay):
    async def body():
        engine = PublishingEngine()
        async with following(engine, replay=replay) as reader:
            await reader.until(lambda: reader.state in (LIVE, REBUILDING))
            await fill(engine, 5)
            await reader.until(lambda: reader.equals(engine))
            # The gateway is busy: nothing is read while the old engine goes and the new one comes.
            await fill(engine, 3, start=100)
            time.sleep(0.2)
            engine.restart()
            time.sleep(0.2)
            engine.clock_seconds = clock_seconds
            engine.open()
            time.sleep(0.5)
            await fill(engine, batches, start=300)
            if replay:
                await reader.until(lambda: reader.equals(engine))
            while not reader.equals(engine):
                # Without a replay, all is known again with the first batch of this kind that is received.
                engine.reset()
                await asyncio.sleep(0.05)

    run(body)
