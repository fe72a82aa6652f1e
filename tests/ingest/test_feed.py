"""One target's events over real sockets, into a real index."""

import asyncio
import random
import time
from collections import Counter
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
import structlog
import zmq
from index.event_index import HASHER, MODEL, WORTH, chain_of, digest
from ingest.publishing_engine import PublishingEngine

from gateway.index import ReplicaIndex
from gateway.ingest.feed import Feed
from gateway.ingest.pump import Pump
from gateway.ingest.settings import IngestSettings
from gateway.values.ids import ReplicaId, Target
from gateway.values.kv_events import EventSource, FeedState

LIVE, REBUILDING, CONNECTING, SILENT = FeedState.LIVE, FeedState.REBUILDING, FeedState.CONNECTING, FeedState.SILENT
TARGET = Target(ReplicaId("engine"))
SETTINGS = IngestSettings()
SIZE = 16


class Counts:
    """An ``EventObserver``."""

    def __init__(self):
        self.events = Counter()
        self.gaps = 0

    def on_kv_events(self, replica, kind, count):
        self.events[kind] += count

    def on_kv_gap(self, replica):
        self.gaps += 1


class Reader:
    """A feed with all it needs. Its clock is the real one plus ``later``."""

    def __init__(self, source, index=None, pump=None):
        self.context = zmq.Context()
        self.pump = pump or Pump()
        self.counts = Counts()
        self.index = index or ReplicaIndex(
            HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0
        )
        self.later = 0.0
        self.feed = Feed(
            TARGET,
            source,
            context=self.context,
            pump=self.pump,
            index=self.index,
            observer=self.counts,
            settings=SETTINGS,
            fix="do something about it",
        )

    @property
    def report(self):
        return self.feed.report(time.monotonic())

    @property
    def state(self):
        return self.report.state

    def tick(self, seconds=0.0):
        self.later += seconds
        self.feed.tick(time.monotonic() + self.later)

    async def until(self, condition):
        """Wait for something to become true."""
        while not condition():
            await asyncio.sleep(0.005)

    def equals(self, engine):
        """Whether it claims to know all, and does."""
        known = self.index.state(TARGET)
        return self.state is LIVE and known.digest == digest(engine.pool) and known.blocks == len(engine.pool.copies())

    def close(self):
        self.feed.close()
        self.context.destroy(0)


@asynccontextmanager
async def following(engine, *, replay=True, index=None):
    source = EventSource(0, engine.events, engine.replay if replay else None)
    reader = Reader(source, index)
    try:
        if engine.is_open:
            await engine.subscribed()
        yield reader
    finally:
        reader.close()
        engine.end()


async def fill(engine, count, start=0):
    for number in range(start, start + count):
        engine.ask(*range(number, number + 40))


def test_late_start_fills_the_index_from_the_replay(run):
    async def body():
        engine = PublishingEngine()
        await fill(engine, 50)
        async with following(engine) as reader:
            await reader.until(lambda: reader.equals(engine))
            assert reader.counts.gaps == 0
            assert reader.report.next_sequence == 50
            engine.ask(*range(900, 960))
            await reader.until(lambda: reader.report.next_sequence == 51 and reader.equals(engine))
            assert reader.report.last_batch_age_seconds >= 0

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
            reader.tick()
            await reader.until(lambda: reader.equals(engine))

    run(body)


def test_socket_that_was_killed_is_found_again_with_what_was_missed(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 5)
            await reader.until(lambda: reader.equals(engine))
            engine.close()
            await reader.until(lambda: reader.state is CONNECTING)
            assert reader.index.state(TARGET).source == "predicted"
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
                # Without a replay, all is known again with the first batch of this kind that is heard.
                engine.reset()
                await asyncio.sleep(0.05)

    run(body)


def test_engine_that_answers_no_replay_is_followed_all_the_same_and_asked_again(run):
    async def body():
        engine = PublishingEngine(answers=False)
        await fill(engine, 3)
        async with following(engine) as reader:
            await reader.until(lambda: engine.asked == [0])
            with structlog.testing.capture_logs() as logs:
                reader.tick(SETTINGS.replay_timeout_seconds + 1)
            assert [log["event"] for log in logs] == ["kv_events_replay_failed"]
            await reader.until(lambda: reader.state is REBUILDING)
            await fill(engine, 2, start=100)
            await reader.until(lambda: reader.index.state(TARGET).blocks > 0)
            assert reader.state is REBUILDING
            engine._answers = True
            reader.tick(60.0)
            await reader.until(lambda: reader.equals(engine))

    run(body)


def test_replay_that_is_never_answered_is_reported_without_shutting_out_what_is_heard(run):
    async def body():
        engine = PublishingEngine(answers=False)
        async with following(engine) as reader:
            await reader.until(lambda: engine.asked)
            with structlog.testing.capture_logs() as logs:
                for _ in range(20):
                    reader.tick(SETTINGS.replay_timeout_seconds + 4)
                    engine.ask(*range(random.randrange(1000), 1040))
                    before = reader.counts.events["stored"]
                    await asyncio.sleep(0.02)
                    assert reader.counts.events["stored"] >= before
            problems = {log["problem"] for log in logs if log["event"] == "kv_events_silent"}
            assert problems == {f"{engine.replay} does not answer"}
            states = [log["state"] for log in logs if log["event"] == "kv_events_state"]
            assert len(states) <= 4, states

    run(body)


def test_address_where_nobody_is_is_reported_as_silent_within_the_configured_time(run, monkeypatch):
    async def body():
        engine = PublishingEngine()
        engine.close()
        async with following(engine) as reader:
            with structlog.testing.capture_logs() as logs:
                reader.tick(SETTINGS.silent_after_seconds - 0.5)
                assert not logs
                reader.tick(1.0)
                reader.tick(1.0)
                await reader.until(lambda: reader.state is SILENT)
            (error,) = [log for log in logs if log["event"] == "kv_events_silent"]
            assert error["log_level"] == "error"
            assert error["replica"] == "engine"
            assert engine.events in error["problem"]
            assert error["fix"] == "do something about it"
            assert engine.events in reader.report.problem
            clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 61.0)
            monkeypatch.setattr("gateway.ingest.alarm.time", clock)
            with structlog.testing.capture_logs() as logs:
                reader.tick()
                reader.tick()
            assert [log["event"] for log in logs] == ["kv_events_silent"], "once a minute"
            engine.open()
            await reader.until(lambda: reader.state is LIVE)
            reader.later = 0.0
            reader.tick()
            assert reader.report.problem is None

    run(body)


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03" + bytes(53)]
)
def test_somebody_else_at_the_address_is_not_hammered_and_is_reported(run, greeting):
    async def body():
        visits = []

        async def dismiss(reader, writer):
            visits.append(None)
            writer.write(greeting)
            writer.close()

        server = await asyncio.start_server(dismiss, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader = Reader(EventSource(0, f"tcp://127.0.0.1:{port}", None))
        try:
            await reader.until(lambda: visits)
            await asyncio.sleep(1.0)
            # ZeroMQ waits longer from time to time, from a tenth of a second on.
            assert len(visits) <= 15
            # It counts from the first attempt, not from the last.
            with structlog.testing.capture_logs() as logs:
                reader.tick(SETTINGS.silent_after_seconds - 0.5)
            assert "kv_events_silent" in [log["event"] for log in logs]
        finally:
            reader.close()
            server.close()

    run(body)


def test_events_that_are_owed_and_do_not_come_are_reported_until_one_does(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            now = time.monotonic()
            reader.feed.answered(now, now)
            with structlog.testing.capture_logs() as logs:
                reader.tick(SETTINGS.silent_after_seconds - 1)
                assert reader.state is LIVE
                reader.tick(2.0)
            assert "kv_events_silent" in [log["event"] for log in logs]
            assert reader.state is SILENT
            await reader.until(lambda: reader.index.state(TARGET).source == "predicted")
            # A probe that is answered shows nothing about the subscription.
            reader.tick(SETTINGS.probe_seconds + 1)
            await asyncio.sleep(0.1)
            assert reader.state is SILENT
            engine.ask(*range(500, 560))
            await reader.until(lambda: reader.equals(engine))
            reader.tick(1.0)
            assert reader.state is LIVE

    run(body)


def test_events_that_came_in_time_are_not_owed(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            asked_at = time.monotonic()
            await fill(engine, 3)
            await reader.until(lambda: reader.equals(engine))
            reader.feed.answered(asked_at, time.monotonic())
            reader.tick(SETTINGS.silent_after_seconds + 1)
            assert reader.state is LIVE

    run(body)


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
def test_ten_thousand_batches_let_other_tasks_have_their_turns(run, late):
    async def body():
        index = Watched(
            ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
        )
        engine = PublishingEngine()
        if late:
            await fill(engine, 10_000)
        async with following(engine, index=index) as reader:
            if not late:
                await reader.until(lambda: reader.state is LIVE)
                await fill(engine, 10_000)
            time.sleep(0.3)
            turns = 0
            while reader.report.next_sequence != 10_000 or reader.feed._work:
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
            reader.tick(60.0)
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
