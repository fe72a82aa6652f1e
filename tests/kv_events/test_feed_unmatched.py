"""Events that match nothing although all blocks count as known: reported, asked for again, and not trusted."""

import asyncio

import pytest
from kv_events.feed_reader import LIVE, REBUILDING, SETTINGS, TARGET, fill, following
from kv_events.publishing_engine import PublishingEngine
from structlog.testing import capture_logs

INTERVAL = SETTINGS.unmatched_replay_seconds
COMMON = tuple(range(1000, 1064))


def leave_out(engine, *tokens):
    """A request whose events the engine does not publish, though no number of its batches is missing."""
    engine.ask(*tokens, send=False)
    engine._kept.pop()
    engine._sequence -= 1


async def stays_rebuilding(reader):
    """It is not live for as long as a replay takes several times over, and rebuilding in the end."""
    for _ in range(20):
        await asyncio.sleep(0.003)
        reader.tick()
        assert reader.state is not LIVE
    await reader.until(lambda: reader.tick() or reader.state is REBUILDING)


def test_unmatched_blocks_are_reported_and_asked_for_again_once(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            leave_out(engine, *COMMON)
            asked = len(engine.asked)
            with capture_logs() as logs:
                engine.ask(*COMMON, *range(40))
                await reader.until(lambda: reader.tick() or len(engine.asked) > asked)
                # The replay repeats the same events, so it does not help.
                await stays_rebuilding(reader)
            assert engine.asked[asked:] == [0]
            assert reader.counts.unmatched["unplaced"] >= 2
            assert reader.report.unmatched_blocks == reader.counts.unmatched.total()
            (warning,) = [log for log in logs if log["event"] == "kv_events_unmatched"]
            assert warning["blocks"] == {"unfit": 0, "unplaced": 2, "removed": 0}
            for _ in range(4):
                reader.tick(INTERVAL)
            assert [start for start in engine.asked[asked:] if start == 0] == [0]
            assert reader.state is REBUILDING

    run(body)


def test_replay_after_which_all_events_match_makes_it_live(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            engine.ask(*COMMON)
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            reader.index.clear(TARGET)  # a mistake at this side
            engine.ask(*COMMON, *range(40))
            await reader.until(lambda: reader.tick() or reader.report.unmatched_blocks > 0)
            await reader.until(lambda: reader.tick() or reader.equals(engine))
            assert engine.asked[-1] == 0
            assert reader.report.unmatched_blocks == reader.counts.unmatched["unplaced"] == 2

    run(body)


def test_replays_keep_their_distance(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            engine.ask(*COMMON)
            await reader.until(lambda: reader.equals(engine))
            asked = len(engine.asked)
            for number in range(3):
                reader.index.clear(TARGET)
                engine.ask(*COMMON, *range(number * 40, number * 40 + 40))
                await reader.until(lambda: reader.tick() or reader.state is not LIVE)
                if number:
                    for _ in range(10):
                        await asyncio.sleep(0.002)
                        reader.tick()
                    assert len([start for start in engine.asked[asked:] if start == 0]) == number
                    assert reader.state is REBUILDING
                    reader.tick(number * (INTERVAL + 1))
                    reader.later = 0.0  # a replay that has begun is not to be late
                await reader.until(lambda: reader.tick() or reader.equals(engine))
            assert len([start for start in engine.asked[asked:] if start == 0]) == 3

    run(body)


def test_removals_of_what_was_stored_before_the_gateway_began_are_normal(run):
    async def body():
        engine = PublishingEngine(buffer=5)
        await fill(engine, 60)
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            reader.index.set_capacity(TARGET, engine.pool.usable)
            await fill(engine, 300, start=100)
            await reader.until(lambda: reader.tick() or reader.equals(engine))
            assert reader.index.unmatched(TARGET).removed > 0
            assert not reader.counts.unmatched
            assert reader.report.unmatched_blocks == 0

    run(body)


def test_blocks_of_another_size_are_reported_also_while_not_all_is_known(run):
    async def body():
        engine = PublishingEngine(buffer=5)
        await fill(engine, 20)
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is REBUILDING)
            engine.pool.block_size = 8
            engine.ask(*range(500, 541))
            await reader.until(lambda: reader.tick() or reader.counts.unmatched["unfit"] == 5)
            assert set(reader.counts.unmatched) == {"unfit"}
            assert reader.state is REBUILDING

    run(body)


def test_full_cache_is_live_after_a_replay_that_did_not_help_only_once_events_have_matched_for_a_while(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            reader.index.set_capacity(TARGET, engine.pool.usable)
            await reader.until(lambda: reader.state is LIVE)
            leave_out(engine, *COMMON)
            engine.ask(*COMMON, *range(100))
            await reader.until(lambda: reader.tick() or reader.report.unmatched_blocks > 0)
            await stays_rebuilding(reader)
            await fill(engine, 300, start=200)
            await reader.until(lambda: reader.tick() or reader.index.is_complete(TARGET))
            await stays_rebuilding(reader)
            engine.publish()
            reader.tick(INTERVAL)
            await reader.until(lambda: reader.tick() or reader.equals(engine))

    run(body)


@pytest.mark.parametrize("replay", [True, False])
def test_cleared_cache_is_known_again(run, replay):
    async def body():
        engine = PublishingEngine()
        async with following(engine, replay=replay) as reader:
            if not replay:
                await reader.until(lambda: reader.state is REBUILDING)
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            leave_out(engine, *COMMON)
            engine.ask(*COMMON, *range(40))
            await reader.until(lambda: reader.tick() or reader.report.unmatched_blocks > 0)
            await stays_rebuilding(reader)
            engine.reset()
            await fill(engine, 3)
            await reader.until(lambda: reader.tick() or reader.equals(engine))

    run(body)
