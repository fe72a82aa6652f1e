"""Messages that are not what they should be."""

import asyncio
import random
import time

import msgspec
import pytest
from kv_events.feed_reader import (
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


def hostile(rng):
    """Messages no engine sends."""
    yield [b"kv"]
    yield [b"kv", b"", b""]
    yield [b"kv", b"\0" * 7, b"x"]
    yield [b"kv", b"\0" * 9, b"x"]
    yield [b"kv"] * 50
    yield [b"kv", b"\xff" * 8, b"x"]
    yield [b"kv" + b"x" * 5_000_000]
    for _ in range(50):
        yield [b"kv" + rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(1, 5))]


def unreadable(rng):
    """Payloads that are no batch."""
    yield b""
    yield b"\xdd\xff\xff\xff\xff"
    yield b"\x93\x00" + b"\x91" * 50_000
    yield rng.randbytes(5_000_000)
    yield msgspec.msgpack.encode([1.0, [["BlockStored"]]])
    yield msgspec.msgpack.encode([1.0, [{"type": "BlockStored", "block_hashes": [1], "token_ids": "x"}]])
    for _ in range(50):
        yield rng.randbytes(rng.randrange(60))


def test_hostile_messages_are_counted_and_forgotten(run):
    async def body():
        engine = PublishingEngine()
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            await fill(engine, 3)
            for frames in hostile(random.Random(1)):
                engine.send_frames(frames)
            await fill(engine, 3, start=100)
            await reader.until(lambda: reader.report.next_sequence == 6)
            reader.tick(SETTINGS.probe_seconds + 1)
            await reader.until(lambda: reader.equals(engine))
            assert failures == []

    run(body)


@pytest.mark.parametrize("replay", [True, False])
def test_unreadable_batches_leave_the_part_rebuilding_and_the_feed_running(run, replay):
    async def body():
        engine = PublishingEngine()
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with following(engine, replay=replay) as reader:
            await reader.until(lambda: reader.state in (LIVE, REBUILDING))
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            for payload in unreadable(random.Random(2)):
                engine.send(payload)
            engine.ask(*range(500, 560))
            await reader.until(lambda: reader.report.batches > 50 and reader.index.state(TARGET).blocks == 3)
            assert reader.state is REBUILDING
            assert reader.counts.events["unknown"] >= 56
            assert reader.counts.gaps == 0
            engine.reset()
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            assert failures == []

    run(body)


def test_event_of_a_new_type_is_counted_and_changes_nothing(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            await fill(engine, 2)
            engine.send(msgspec.msgpack.encode([time.time(), [{"type": "BlockPraised", "by": "all"}], 0]))
            await fill(engine, 2, start=100)
            await reader.until(lambda: reader.report.next_sequence == 5 and reader.equals(engine))
            assert reader.counts.events["unknown"] == 1
            assert reader.counts.events["stored"] == 4

    run(body)


def test_hostile_answers_to_a_replay_are_given_up(run):
    async def body():
        engine = PublishingEngine()
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        await fill(engine, 3)
        rng = random.Random(3)
        engine._kept.extend([b"kv", rng.randbytes(rng.randrange(12)), rng.randbytes(30)] for _ in range(20))
        async with following(engine) as reader:
            await reader.until(lambda: engine.asked)
            await reader.until(lambda: reader.state in (LIVE, REBUILDING))
            await fill(engine, 3, start=100)
            await reader.until(lambda: reader.index.state(TARGET).blocks > 0)
            assert failures == []

    run(body)


@pytest.mark.parametrize("replay", ["tcp://127.0.0.1:99999", "nonsense", "tcp://"])
def test_replay_address_that_cannot_be_used_does_not_stop_the_feed(run, replay):
    async def body():
        engine = PublishingEngine()
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        reader = Reader(EventSource(0, engine.events, replay))
        try:
            await reader.until(lambda: reader.feed._linked)
            for number in range(5):
                reader.tick(SETTINGS.replay_timeout_seconds + 1)
                engine.ask(*range(number, number + 40))
                await asyncio.sleep(0.02)
            await reader.until(lambda: reader.index.state(TARGET).blocks > 0)
            assert failures == []
        finally:
            reader.close()
            engine.end()

    run(body)
