"""All replicas' events: found by asking the engines, or at configured addresses."""

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import structlog
from index.event_index import HASHER, MODEL, WORTH, digest
from kv_events.publishing_engine import PublishingEngine

from gateway.config.index_settings import IngestSettings
from gateway.core.decision import Decision, DecisionKind
from gateway.core.engine_facts import EngineFacts, EngineKind, RankFacts
from gateway.core.ids import ModelId, ReplicaId, RequestId, Target
from gateway.core.kv_events import FeedState
from gateway.core.outcome import Ending
from gateway.core.ports import EngineUnavailable
from gateway.core.prompt import TokenSource
from gateway.core.request import Endpoint
from gateway.core.settlement import Settlement
from gateway.index import ReplicaIndex
from gateway.kv_events import FeedPlan, KvFeeds

ONE, TWO = ReplicaId("one"), ReplicaId("two")
QUICK = IngestSettings(silent_after_seconds=0.2, replay_timeout_seconds=1, probe_seconds=0.3)
VLLM = EngineFacts(kind=EngineKind.VLLM, block_size=16, ranks=(RankFacts(0),))


class Counts:
    def __init__(self):
        self.events = Counter()

    def on_kv_events(self, replica, kind, count):
        self.events[replica, kind] += count

    def on_kv_gap(self, replica):
        self.events[replica, "gap"] += 1

    def on_kv_unmatched(self, replica, kind, blocks):
        self.events[replica, kind] += blocks


class Engines:
    """What engines answer, by replica: a document, or an error."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def read(self, replica, path, timeout_seconds):
        self.asked.append((replica, path))
        answer = self.answers[replica]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def reported(*engines):
    """``/kv_event_sources`` of a vLLM with a rank per engine."""
    return {
        str(rank): {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{engine.ports[0]}",
            "replay_endpoint": f"tcp://*:{engine.ports[1]}",
            "topic": "kv",
        }
        for rank, engine in enumerate(engines)
    }


def auto(*replicas):
    return {replica: FeedPlan("127.0.0.1") for replica in replicas}


class Gateway:
    def __init__(self, plans, engines, settings=QUICK):
        self.index = ReplicaIndex(
            HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0
        )
        self.counts = Counts()
        self.feeds = KvFeeds(plans, self.index, engines, self.counts, settings)

    def has_state_of(self, target, engine):
        states = [report.state for report in self.feeds.reports(target.replica) if report.rank == target.rank]
        return states == [FeedState.LIVE] and self.index.state(target).digest == digest(engine.pool)

    def states(self, replica):
        return [report.state for report in self.feeds.reports(replica)]

    async def until(self, condition):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway(plans, engines=None, *, publishers=(), settings=QUICK):
    running = Gateway(plans, engines or Engines(), settings)
    running.feeds.start()
    try:
        yield running
    finally:
        await running.feeds.stop()
        for publisher in publishers:
            publisher.end()


def settled(target, *, prompt_tokens=100, predicted_tokens=0, cached_tokens=0, status=200, began_at=None):
    decision = Decision(target, DecisionKind.COLD, 0, "cost", ())
    return Settlement(
        request_id=RequestId("r"),
        model=ModelId("m"),
        endpoint=next(iter(Endpoint)),
        decision=decision,
        ending=next(iter(Ending)),
        status=status,
        failed_attempts=0,
        failures=(),
        streamed=False,
        token_source=TokenSource.LOCAL,
        prompt_tokens=prompt_tokens,
        predicted_tokens=predicted_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=1,
        parity=True,
        saved_prefill_seconds=0.0,
        ttft_seconds=None,
        seconds=0.01,
        stages=(),
        ended_at=(time.monotonic() if began_at is None else began_at) + 0.01,
    )


def test_engines_are_asked_where_they_publish_and_each_rank_is_followed(run):
    async def body():
        ranks = [PublishingEngine(), PublishingEngine()]
        alone = PublishingEngine()
        for number, engine in enumerate([*ranks, alone]):
            engine.ask(*range(number * 100, number * 100 + 50))
        engines = Engines(one=reported(*ranks), two=reported(alone))
        async with gateway(auto(ONE, TWO), engines, publishers=[*ranks, alone]) as running:
            assert not running.feeds.follows(ONE)
            running.feeds.on_facts(ONE, EngineFacts(kind=EngineKind.VLLM, ranks=(RankFacts(0), RankFacts(1))))
            running.feeds.on_facts(TWO, VLLM)
            await running.until(
                lambda: (
                    running.has_state_of(Target(ONE, 0), ranks[0])
                    and running.has_state_of(Target(ONE, 1), ranks[1])
                    and running.has_state_of(Target(TWO, 0), alone)
                )
            )
            assert set(engines.asked) == {(ONE, "/kv_event_sources"), (TWO, "/kv_event_sources")}
            assert running.feeds.follows(ONE)
            assert [report.rank for report in running.feeds.reports(ONE)] == [0, 1]
            assert running.counts.events[ONE, "stored"] == 2
            running.feeds.on_facts(TWO, VLLM)
            await asyncio.sleep(0.05)
            assert len(engines.asked) == 2, "the same facts are no reason to ask again"

    run(body)


def test_only_rank_of_an_engine_is_the_replica_itself_with_any_number(run):
    async def body():
        engine = PublishingEngine()
        engine.ask(*range(50))
        source = reported(engine)
        async with gateway(auto(ONE), Engines(one={"3": source["0"]}), publishers=[engine]) as running:
            running.feeds.on_facts(ONE, VLLM)
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))

    run(body)


def test_configured_addresses_are_followed_without_asking(run):
    async def body():
        engine = PublishingEngine()
        engine.ask(*range(50))
        plans = {ONE: FeedPlan("127.0.0.1", engine.events, engine.replay)}
        async with gateway(plans, Engines(), publishers=[engine]) as running:
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))
            running.feeds.on_facts(ONE, VLLM)
            await asyncio.sleep(0.05)
            assert running.has_state_of(Target(ONE, 0), engine)

    run(body)


def test_replica_whose_events_are_off_is_not_asked(run):
    async def body():
        engines = Engines()
        async with gateway({ONE: FeedPlan("127.0.0.1", "off")}, engines) as running:
            running.feeds.on_facts(ONE, VLLM)
            running.feeds.on_restarted(ONE, time.time())
            await asyncio.sleep(0.05)
            assert engines.asked == []
            assert not running.feeds.follows(ONE)

    run(body)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        None,
        7,
        {"0": None},
        {"0": {"enable_kv_cache_events": False}},
        {"x": 1},
        b"<html>",
        EngineUnavailable("not found", 404),
    ],
)
def test_engine_that_publishes_nothing_is_reported_once_with_what_to_change(run, answer):
    async def body():
        with structlog.testing.capture_logs() as logs:
            async with gateway(auto(ONE), Engines(one=answer)) as running:
                running.feeds.on_facts(ONE, VLLM)
                await running.until(lambda: logs)
                running.feeds.on_restarted(ONE, time.time())
                await asyncio.sleep(0.05)
                assert not running.feeds.follows(ONE)
                assert running.feeds.reports(ONE) == []
        (log,) = logs
        assert (log["event"], log["replica"]) == ("kv_events_off", "one")
        assert "--kv-events-config" in log["to_change"]

    run(body)


def test_engine_that_does_not_answer_yet_is_asked_again(run):
    async def body():
        engine = PublishingEngine()
        engines = Engines(one=EngineUnavailable("starting", 503))
        async with gateway(auto(ONE), engines, publishers=[engine]) as running:
            running.feeds.on_facts(ONE, VLLM)
            await running.until(lambda: engines.asked)
            engines.answers["one"] = reported(engine)
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))

    run(body)


def test_restarted_replica_is_asked_anew_and_followed_at_its_new_place(run):
    async def body():
        old, new = PublishingEngine(), PublishingEngine()
        old.ask(*range(50))
        engines = Engines(one=reported(old))
        async with gateway(auto(ONE), engines, publishers=[old, new]) as running:
            running.feeds.on_facts(ONE, VLLM)
            await running.until(lambda: running.has_state_of(Target(ONE, 0), old))
            new.ask(*range(200, 300))
            engines.answers["one"] = reported(new)
            running.feeds.on_restarted(ONE, time.time())
            await running.until(lambda: running.has_state_of(Target(ONE, 0), new))
            assert len(running.feeds.reports(ONE)) == 1

    run(body)


def test_replica_that_publishes_no_more_is_predicted(run):
    async def body():
        engine = PublishingEngine()
        engine.ask(*range(50))
        engines = Engines(one=reported(engine))
        async with gateway(auto(ONE), engines, publishers=[engine]) as running:
            running.feeds.on_facts(ONE, VLLM)
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))
            engines.answers["one"] = {}
            running.feeds.on_restarted(ONE, time.time())
            await running.until(lambda: not running.feeds.follows(ONE))
            state = running.index.state(Target(ONE, 0))
            assert (state.source, state.blocks, state.digest) == ("predicted", 0, None)

    run(body)


def test_address_where_nothing_listens_is_reported_by_itself(run):
    async def body():
        engine = PublishingEngine()
        engine.close()
        with structlog.testing.capture_logs() as logs:
            async with gateway(auto(ONE), Engines(one=reported(engine)), publishers=[engine]) as running:
                running.feeds.on_facts(ONE, VLLM)
                await running.until(lambda: running.states(ONE) == [FeedState.SILENT])
                (report,) = running.feeds.reports(ONE)
                assert engine.events in report.problem
                engine.open()
                await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))
        errors = [log for log in logs if log["event"] == "kv_events_silent"]
        assert errors
        assert errors[0]["log_level"] == "error"
        # Now and then a connection to a free port of this machine reaches itself, and is reported as one that was lost.
        assert any(fix in errors[0]["fix"] for fix in ("--kv-events-config", "as it could before"))

    run(body)


def test_source_with_a_known_problem_is_reported_with_it(run):
    async def body():
        engine = PublishingEngine()
        source = reported(engine)
        source["0"]["endpoint"] = engine.events
        with structlog.testing.capture_logs() as logs:
            async with gateway(auto(ONE), Engines(one=source), publishers=[engine]) as running:
                running.feeds.on_facts(ONE, VLLM)
                await running.until(lambda: running.feeds.reports(ONE))
                (report,) = running.feeds.reports(ONE)
                assert "instead of listening" in report.problem
        found = [log for log in logs if log["event"] == "kv_events_found"]
        assert [log["log_level"] for log in found] == ["error"]

    run(body)


def test_answers_that_were_computed_without_an_event_are_noticed(run):
    async def body():
        engine = PublishingEngine()
        engine.ask(*range(50))
        async with gateway(auto(ONE), Engines(one=reported(engine)), publishers=[engine]) as running:
            running.feeds.on_facts(ONE, VLLM)
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))
            began_at = time.monotonic()
            engine.ask(*range(100, 150))
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))
            await asyncio.sleep(0.05)
            for harmless in (
                settled(Target(ONE, 0), began_at=began_at),  # its event came before it was settled
                settled(Target(ONE, 0), cached_tokens=90),
                settled(Target(ONE, 0), predicted_tokens=90, cached_tokens=None),
                settled(Target(ONE, 0), status=500),
                settled(Target(ReplicaId("other"), 0)),
                settled(Target(ONE, 5)),
            ):
                running.feeds.on_settled(harmless)
            await asyncio.sleep(1.0)
            assert running.states(ONE) == [FeedState.LIVE]
            running.feeds.on_settled(settled(Target(ONE, 0)))
            await running.until(lambda: running.states(ONE) == [FeedState.SILENT])
            engine.ask(*range(300, 350))
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))

    run(body)


@pytest.mark.parametrize("address", ["nonsense", "tcp://", "tcp://host", "foo://x:1"])
def test_address_that_cannot_be_used_is_said_and_other_replicas_are_followed(run, address):
    async def body():
        engine = PublishingEngine()
        engine.ask(*range(50))
        plans = {ONE: FeedPlan("127.0.0.1", address), TWO: FeedPlan("127.0.0.1", engine.events, engine.replay)}
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        with structlog.testing.capture_logs() as logs:
            async with gateway(plans, publishers=[engine]) as running:
                await running.until(lambda: running.has_state_of(Target(TWO, 0), engine))
                assert not running.feeds.follows(ONE)
        assert [log["replica"] for log in logs if log["event"] == "kv_events_address_unusable"] == ["one"]
        assert failures == []

    run(body)


def test_replay_address_that_cannot_be_used_leaves_other_replicas_alone(run):
    async def body():
        engine, other = PublishingEngine(), PublishingEngine()
        plans = {
            ONE: FeedPlan("127.0.0.1", other.events, "nonsense"),
            TWO: FeedPlan("127.0.0.1", engine.events, engine.replay),
        }
        async with gateway(plans, publishers=[engine, other]) as running:
            await running.until(lambda: running.has_state_of(Target(TWO, 0), engine))
            engine.ask(*range(50), send=False)
            await running.until(lambda: running.has_state_of(Target(TWO, 0), engine))

    run(body)


def test_feeds_can_be_stopped_and_leave_no_task_behind(run):
    async def body():
        engine = PublishingEngine()
        async with gateway(auto(ONE), Engines(one=reported(engine)), publishers=[engine]) as running:
            running.feeds.on_facts(ONE, VLLM)
            await running.until(lambda: running.has_state_of(Target(ONE, 0), engine))
            await running.feeds.stop()
            assert running.index.state(Target(ONE, 0)).source == "predicted"
            assert [task for task in asyncio.all_tasks() if "kv-events" in task.get_name()] == []

    run(body)
