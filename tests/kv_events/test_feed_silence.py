"""Events that do not come: what is said, and what is believed meanwhile."""

import asyncio
import random
import time
from types import SimpleNamespace

import pytest
import structlog
from kv_events.feed_reader import (
    LIVE,
    REBUILDING,
    SETTINGS,
    SILENT,
    TARGET,
    Reader,
    fill,
    following,
)
from kv_events.publishing_engine import PublishingEngine

from gateway.core.kv_events import EventSource


def test_engine_that_answers_no_replay_is_followed_all_the_same_and_asked_again(run):
    async def body():
        engine = PublishingEngine(answers=False)
        await fill(engine, 3)
        async with following(engine) as reader:
            await reader.until(lambda: engine.asked == [0])
            with structlog.testing.capture_logs() as logs:
                reader.tick(SETTINGS.replay_timeout_seconds + 1)
            assert [log["event"] for log in logs] == ["kv_events_replay_failed", "kv_events_state"]
            await reader.until(lambda: reader.state is REBUILDING)
            await fill(engine, 2, start=100)
            await reader.until(lambda: reader.index.state(TARGET).blocks > 0)
            assert reader.state is REBUILDING
            engine._answers = True
            reader.tick(60.0)
            await reader.until(lambda: reader.equals(engine))

    run(body)


def test_replay_that_is_never_answered_is_reported_without_shutting_out_what_is_received(run):
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


def test_address_without_a_publisher_is_reported_as_silent_within_the_configured_time(run, monkeypatch):
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
            monkeypatch.setattr("gateway.kv_events.feed_report.time", clock)
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
def test_another_server_at_the_address_is_asked_rarely_and_is_reported(run, greeting):
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
            # The first ones may have been received by a replay alone; behind this one none of them is still to come.
            await fill(engine, 1, start=300)
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


def test_what_was_computed_before_a_connection_is_not_owed_on_it(run):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            engine.close()
            await reader.until(lambda: reader.state is not LIVE)
            # One answer before the connection is made again, one that began before it and ended after.
            asked_at = time.monotonic()
            reader.feed.answered(asked_at, time.monotonic())
            engine.open()
            await reader.until(lambda: reader.state is LIVE)
            reader.feed.answered(asked_at, time.monotonic())
            reader.tick(SETTINGS.silent_after_seconds + 1)
            assert reader.state is LIVE
            assert reader.report.problem is None

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
