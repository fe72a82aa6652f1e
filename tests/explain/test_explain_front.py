"""Requests are handed to a process that explains them, and what it counted comes back; questions are answered."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from explain_world import World, eventually, runs
from explained_requests import request
from pydantic import ValidationError
from structlog.testing import capture_logs

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.explain.worker import ExplainClient
from gateway.explain.worker.explain_supervisor import ExplainTimeouts


async def test_every_missed_token_is_counted_and_answers_know_of_all_requests_before(tmp_path):
    async with World(tmp_path) as world:
        for number in range(50):
            world.front.finished(request(f"Question {number}", request_id=f"req-{number}"))
        shown = await world.summary(window="15m")
        assert (shown["requests"], shown["prompt_tokens"]) == (50, 5000)
        assert shown["arguments"] == {"window": "15m"}
        for number in range(250):
            world.front.finished(request(f"Question {number}", request_id=f"more-{number}"))
        assert await world.missed(300 * 68) == {"new_content": 300 * 68}
    assert world.counts.labels == {("demo", "shop")}
    assert world.counts.skipped == 0


async def test_a_request_without_text_counts_as_skipped(tmp_path):
    async with World(tmp_path) as world:
        world.front.finished(request(None))
        world.front.finished(request("Hello."))
        assert await world.missed(136) == {"new_content": 68, "unclassified": 68}
    assert world.counts.skipped == 1


async def test_a_request_that_fills_a_cache_is_explained_and_not_counted(tmp_path):
    async with World(tmp_path) as world:
        world.front.finished(request("Fill.", warming=True))
        world.front.finished(request(None, warming=True))
        world.front.finished(request("Hello."))
        await world.missed(68)
    assert world.counts.skipped == 0


async def test_text_is_wanted_as_soon_as_it_is_started(tmp_path):
    world = World(tmp_path)
    assert not world.front.wants_text
    async with world:
        assert world.front.wants_text
        world.front.finished(request("Before the process runs."))
        assert await world.missed(68) == {"new_content": 68}
    assert not world.front.wants_text


async def test_refusals_arrive_as_they_were_made(tmp_path):
    async with World(tmp_path) as world:
        with pytest.raises(NotFound) as missing:
            await world.front.ask("request", {"id": "req-1"})
        assert (missing.value.status, missing.value.code, missing.value.param) == (404, "unknown_request", "id")
        assert missing.value.message == "There is no such request."
        with pytest.raises(BadRequest) as wrong:
            await world.front.ask("wrong", {})
        assert (wrong.value.status, wrong.value.param) == (400, "window")


async def test_a_question_that_fails_is_refused_and_tells_nothing_of_prompts(tmp_path, capfd):
    async with World(tmp_path) as world:
        with capture_logs() as logs:
            with pytest.raises(GatewayError) as failed:
                await world.front.ask("broken", {})
            await eventually(lambda: logs)
        assert (failed.value.status, failed.value.code) == (500, "explain_failed")
        assert logs[0]["event"] == "explain_failed"
        assert logs[0]["error"] == "RuntimeError"
        assert "secret" not in failed.value.message + json.dumps(logs)
        assert (await world.summary())["requests"] == 0
    assert "secret" not in "".join(capfd.readouterr())


async def test_questions_at_once_get_their_own_answers(tmp_path):
    async with World(tmp_path) as world:
        answers = await asyncio.gather(*(world.summary(window=f"{n}m") for n in range(20)))
    assert [answer["arguments"]["window"] for answer in answers] == [f"{n}m" for n in range(20)]


async def test_a_poisonous_prompt_is_unclassified_and_harms_no_other(tmp_path, capfd):
    async with World(tmp_path) as world:
        pid = await world.pid()
        with capture_logs() as logs:
            for text in ("one", "poison in the well", "two", "more poison"):
                world.front.finished(request(text))
            assert await world.missed(4 * 68) == {"new_content": 136, "unclassified": 136}
        assert [line["error"] for line in logs if line["event"] == "explain_failed"] == ["ValueError"]
        assert "poison" not in json.dumps(logs)
        shown = await world.summary()
        assert (shown["pid"], shown["requests"]) == (pid, 4)
    assert "poison" not in "".join(capfd.readouterr())


async def test_what_the_other_side_cannot_read_is_unclassified(tmp_path):
    async with World(tmp_path) as world:
        world.front.finished(request("one"))
        world.front.finished(request("two", session=None))
        world.front.finished(request("three"))
        assert await world.missed(3 * 68) == {"new_content": 136, "unclassified": 68}
        shown = await world.summary()
        assert (shown["requests"], shown["left_out"], shown["prompt_tokens"]) == (2, 1, 300)
    assert world.counts.skipped == 1


async def test_what_cannot_be_sent_is_unclassified(tmp_path):
    async with World(tmp_path) as world:
        with capture_logs() as logs:
            world.front.finished(request("one", session="\ud800"))
            world.front.finished(request("two"))
            assert await world.missed(2 * 68) == {"new_content": 68, "unclassified": 68}
        assert [line["event"] for line in logs] == ["explain_failed"]
        assert (await world.summary())["left_out"] == 1


async def test_events_arrive_in_their_order(tmp_path):
    async with World(tmp_path) as world:
        world.front.happened(CacheEvent(CacheHistory.LEFT, 1.0, "r0"))
        world.front.happened(CacheEvent(CacheHistory.RETURNED, 2.0, "r0"))
        world.front.happened(CacheEvent(CacheHistory.LIFE_ENDED, 3.0, "a1b2", "request"))
        await world.summary()
        assert [each["what"] for each in world.told("happened")][-3:] == ["left", "returned", "life_ended"]


async def test_turned_off_nothing_is_started(tmp_path):
    async with World(tmp_path, enabled=False) as world:
        world.front.finished(request("Hello."))
        world.front.happened(CacheEvent(CacheHistory.LEFT, 1.0, "r0"))
        assert not world.front.wants_text
        with pytest.raises(NotFound) as off:
            await world.front.ask("summary", {})
        assert off.value.code == "explain_off"
        await asyncio.sleep(0.2)
    assert not world.log_file.exists()
    assert not world.counts.missed
    assert not world.counts.skipped


async def test_a_reload_goes_on_with_the_same_process(tmp_path):
    async with World(tmp_path) as world:
        world.front.finished(request("Hello."))
        pid = await world.pid()
        assert world.told("terms") == [{"kind": "terms", "pid": pid, "price": None, "gpus": {"demo": 2}}]
        await world.front.configure(ExplainSettings(gpu_hour_price=2.5), {"demo": 4})
        shown = await world.summary()
        assert (shown["pid"], shown["requests"]) == (pid, 1)
        assert world.told("configured") == [{"kind": "configured", "pid": pid, "price": 2.5, "gpus": {"demo": 4}}]
        await world.front.configure(ExplainSettings(gpu_hour_price=2.5), {"demo": 4})
        await world.summary()
        assert len(world.told("configured")) == 1


async def test_a_reload_turns_it_off_and_on(tmp_path):
    async with World(tmp_path) as world:
        pid = await world.pid()
        await world.front.configure(ExplainSettings(enabled=False), {})
        assert not runs(pid)
        with pytest.raises(NotFound):
            await world.front.ask("summary", {})
        await world.front.configure(ExplainSettings(), {})
        assert world.front.wants_text
        assert await world.pid() != pid


async def test_what_waits_is_counted_before_the_end(tmp_path):
    async with World(tmp_path) as world:
        await world.pid()
        for _ in range(100):
            world.front.finished(request("Hello."))
    assert world.counts.missed == {"new_content": 6800}


async def test_nothing_is_left_after_the_end(tmp_path):
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with World(tmp_path) as world:
            pid = await world.pid()
            world.front.finished(request("Hello."))
        assert not runs(pid)
        await world.front.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@pytest.mark.parametrize("wait", [0, 0.02, 0.1])
async def test_it_can_be_ended_while_it_starts(tmp_path, wait):
    async with World(tmp_path) as world:
        world.front.finished(request("Hello."))
        await asyncio.sleep(wait)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert world.counts.missed.total() == 68


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signals_meant_for_the_gateway_do_not_end_it(tmp_path, number):
    async with World(tmp_path) as world:
        pid = await world.pid()
        os.kill(pid, number)
        world.front.finished(request("Hello."))
        await world.missed(68)
        assert await world.pid() == pid


def test_the_process_loads_only_what_it_needs():
    """What a gateway needs besides, a web framework or tokenizers, would take memory and a second to start."""
    heavy = {"asyncio", "httpx", "prometheus_client", "pydantic", "rich", "starlette", "transformers", "uvicorn", "zmq"}
    code = "import gateway.explain.worker.build, gateway.explain.worker.process, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gateway.explain.worker.explain_worker" in loaded
    assert not heavy & set(loaded)


def test_settings_have_bounds():
    for wrong in ({"max_waiting_mib": 0}, {"journal_requests": 0}, {"currency": "euro"}, {"gpu_hour_price": -1}):
        with pytest.raises(ValidationError):
            ExplainSettings.model_validate(wrong)


async def test_the_real_process_explains_and_shows_what_it_explained(tmp_path):
    world = World(tmp_path, gpu_hour_price=3.6)
    world.front = ExplainClient(world.settings, world.counts, {"demo": 2})
    async with world:
        for number in range(4):
            world.front.finished(request("Hello." * number, request_id=f"req-{number}", at=time.time()))
        world.front.finished(request(None, request_id="req-4", at=time.time()))
        await world.missed(340)
        shown = await world.summary(window="15m")
        assert (shown["requests"], shown["skipped"], shown["prompt_tokens"], shown["hits"]) == (5, 1, 500, 160)
        assert sum(each["tokens"] for each in shown["reasons"]) == 340
        detail = json.loads(await world.front.ask("request", {"id": "req-2"}))
        assert (detail["id"], detail["hits"]) == ("req-2", 32)
        # 68 tokens of 0.1 ms, on two GPUs.
        assert sum(each["gpu_seconds"] for each in detail["missed"]) == pytest.approx(68 * 0.0001 * 2)
        with pytest.raises(BadRequest) as wrong:
            await world.front.ask("summary", {"window": "3m"})
        assert wrong.value.param == "window"
        with pytest.raises(NotFound):
            await world.front.ask("request", {"id": "req-9"})


async def test_a_reload_of_bounds_keeps_the_journal(tmp_path):
    world = World(tmp_path)
    world.front = ExplainClient(world.settings, world.counts, {"demo": 2})
    async with world:
        world.front.finished(request("Hello.", request_id="req-0", at=time.time()))
        assert (await world.summary())["requests"] == 1
        await world.front.configure(ExplainSettings(reference_mib=16, currency="EUR", gpu_hour_price=1), {"demo": 2})
        world.front.finished(request("Hello.", request_id="req-1", at=time.time()))
        shown = await world.summary()
        assert (shown["requests"], shown["price"]) == (2, {"per_gpu_hour": 1, "currency": "EUR"})
        await world.front.configure(ExplainSettings(journal_requests=1), {"demo": 2})
        listed = json.loads(await world.front.ask("requests", {}))["requests"]
        assert [each["id"] for each in listed] == ["req-1"]


async def test_what_was_lost_stands_in_the_next_journal_as_a_sum(tmp_path):
    patience = ExplainTimeouts(tick_seconds=0.05, silent_ticks=40, starting_ticks=600, first_pause_seconds=0.05)
    world = World(tmp_path)
    world.front = ExplainClient(world.settings, world.counts, {"demo": 2}, patience=patience)
    async with world:
        await world.front.ask("summary", {})
        keeper = world.front._keeper
        os.kill(keeper.child._process.pid, signal.SIGSTOP)
        for number in range(3):
            world.front.finished(request("Hello.", request_id=f"req-{number}", at=time.time()))
        await eventually(lambda: not world.front.wants_text)
        await eventually(lambda: world.front.wants_text)
        shown = await world.summary()
        assert (shown["requests"], shown["skipped"], shown["prompt_tokens"], shown["hits"]) == (3, 3, 300, 96)
        assert [(each["code"], each["tokens"]) for each in shown["reasons"] if each["tokens"]] == [
            ("unclassified", 204)
        ]
        assert [(each["template"], each["requests"]) for each in shown["by_template"]] == [("tpl", 3)]
    assert world.counts.missed == {"unclassified": 204}
