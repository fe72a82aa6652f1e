"""Requests are handed to a process that explains them, and what it counted comes back; questions are answered."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from explain_harness import ClientHarness, eventually, runs
from explained_requests import request
from pydantic import ValidationError
from structlog.testing import capture_logs

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.core.explanation import MEASUREMENT, CacheEvent, CacheHistory
from gateway.explain.worker import ExplainClient, explain_client
from gateway.explain.worker.explain_supervisor import ExplainTimeouts


async def test_every_missed_token_is_counted_and_answers_include_all_earlier_requests(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for number in range(50):
            harness.client.record_request(request(f"Question {number}", request_id=f"req-{number}"))
        shown = await harness.summary(window="15m")
        assert (shown["requests"], shown["prompt_tokens"]) == (50, 5000)
        assert shown["arguments"] == {"window": "15m"}
        for number in range(250):
            harness.client.record_request(request(f"Question {number}", request_id=f"more-{number}"))
        assert await harness.missed(300 * 68) == {"new_content": 300 * 68}
    assert harness.counts.labels == {("demo", "shop")}
    assert harness.counts.skipped == 0


async def test_an_answer_includes_long_requests_that_came_right_before(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for number in range(12):
            harness.client.record_request(request(f"Question {number} " + "x" * 30_000, request_id=f"req-{number}"))
        assert (await harness.summary(window="15m"))["requests"] == 12


async def test_a_request_without_text_counts_as_skipped(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(request(None))
        harness.client.record_request(request("Hello."))
        assert await harness.missed(136) == {"new_content": 68, "unclassified": 68}
    assert harness.counts.skipped == 1


async def test_a_request_that_fills_a_cache_is_explained_and_not_counted(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(request("Fill.", warming=True))
        harness.client.record_request(request(None, warming=True))
        harness.client.record_request(request("Hello."))
        await harness.missed(68)
    assert harness.counts.skipped == 0


async def test_a_request_that_measures_is_counted_as_any_other(tmp_path):
    about = {"source": MEASUREMENT, "measured": True}
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(request("Measure.", **about))
        harness.client.record_request(request(None, **about))
        assert await harness.missed(136) == {"new_content": 68, "unclassified": 68}
    assert harness.counts.skipped == 1


async def test_text_is_accepted_as_soon_as_the_client_is_started(tmp_path):
    harness = ClientHarness(tmp_path)
    assert not harness.client.accepts_text
    async with harness:
        assert harness.client.accepts_text
        harness.client.record_request(request("Before the process runs."))
        assert await harness.missed(68) == {"new_content": 68}
    assert not harness.client.accepts_text


async def test_what_waited_for_the_process_is_sent_in_batches_that_do_not_wait_for_further_requests(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(explain_client, "_GATHER_SECONDS", 3600)
    async with ClientHarness(tmp_path) as harness:
        for number in range(10):
            harness.client.record_request(request("x" * (50_000 + number), request_id=f"req-{number}"))
        await harness.missed(680)
        assert harness.counts.skipped == 0


async def test_errors_of_questions_keep_status_code_and_parameter(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        with pytest.raises(NotFound) as missing:
            await harness.client.ask("request", {"id": "req-1"})
        assert (missing.value.status, missing.value.code, missing.value.param) == (404, "unknown_request", "id")
        assert missing.value.message == "There is no such request."
        with pytest.raises(BadRequest) as wrong:
            await harness.client.ask("wrong", {})
        assert (wrong.value.status, wrong.value.param) == (400, "window")


async def test_a_failing_question_is_refused_without_any_text_of_prompts(tmp_path, capfd):
    async with ClientHarness(tmp_path) as harness:
        with capture_logs() as logs:
            with pytest.raises(GatewayError) as failed:
                await harness.client.ask("broken", {})
            await eventually(lambda: logs)
        assert (failed.value.status, failed.value.code) == (500, "explain_failed")
        assert logs[0]["event"] == "explain_failed"
        assert logs[0]["error"] == "RuntimeError"
        assert "secret" not in failed.value.message + json.dumps(logs)
        assert (await harness.summary())["requests"] == 0
    assert "secret" not in "".join(capfd.readouterr())


async def test_questions_at_once_get_their_own_answers(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        answers = await asyncio.gather(*(harness.summary(window=f"{n}m") for n in range(20)))
    assert [answer["arguments"]["window"] for answer in answers] == [f"{n}m" for n in range(20)]


async def test_a_prompt_that_cannot_be_explained_is_unclassified_and_affects_no_other(tmp_path, capfd):
    async with ClientHarness(tmp_path) as harness:
        pid = await harness.pid()
        with capture_logs() as logs:
            for text in ("one", "poison in the well", "two", "more poison"):
                harness.client.record_request(request(text))
            assert await harness.missed(4 * 68) == {"new_content": 136, "unclassified": 136}
        assert [line["error"] for line in logs if line["event"] == "explain_failed"] == ["ValueError"]
        assert "poison" not in json.dumps(logs)
        shown = await harness.summary()
        assert (shown["pid"], shown["requests"]) == (pid, 4)
    assert "poison" not in "".join(capfd.readouterr())


async def test_a_request_that_the_worker_cannot_decode_is_unclassified(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(request("one"))
        harness.client.record_request(request("two", session=None))
        harness.client.record_request(request("three"))
        assert await harness.missed(3 * 68) == {"new_content": 136, "unclassified": 68}
        shown = await harness.summary()
        assert (shown["requests"], shown["skipped"], shown["prompt_tokens"]) == (2, 1, 300)
    assert harness.counts.skipped == 1


async def test_a_request_that_cannot_be_encoded_is_unclassified(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        with capture_logs() as logs:
            harness.client.record_request(request("one", session="\ud800"))
            harness.client.record_request(request("two"))
            assert await harness.missed(2 * 68) == {"new_content": 68, "unclassified": 68}
        assert [line["event"] for line in logs] == ["explain_failed"]
        assert (await harness.summary())["skipped"] == 1


async def test_a_batch_that_cannot_be_encoded_holds_up_no_other(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for _ in range(16):
            harness.client.record_request(request("one", session="\ud800"))
        harness.client.record_request(request("two"))
        assert await harness.missed(17 * 68) == {"new_content": 68, "unclassified": 16 * 68}


async def test_events_arrive_in_their_order(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_event(CacheEvent(CacheHistory.LEFT, 1.0, "r0"))
        harness.client.record_event(CacheEvent(CacheHistory.RETURNED, 2.0, "r0"))
        harness.client.record_event(CacheEvent(CacheHistory.LIFE_ENDED, 3.0, "a1b2", "request"))
        await harness.summary()
        assert [each["what"] for each in harness.reported("record_event")][-3:] == ["left", "returned", "life_ended"]


async def test_disabled_client_starts_no_process(tmp_path):
    async with ClientHarness(tmp_path, enabled=False) as harness:
        harness.client.record_request(request("Hello."))
        harness.client.record_event(CacheEvent(CacheHistory.LEFT, 1.0, "r0"))
        assert not harness.client.accepts_text
        with pytest.raises(NotFound) as off:
            await harness.client.ask("summary", {})
        assert off.value.code == "explain_off"
        await asyncio.sleep(0.2)
    assert not harness.log_file.exists()
    assert not harness.counts.missed
    assert not harness.counts.skipped


async def test_a_reload_keeps_the_process(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(request("Hello."))
        pid = await harness.pid()
        assert harness.reported("options") == [{"kind": "options", "pid": pid, "price": None, "gpus": {"demo": 2}}]
        await harness.client.configure(ExplainSettings(gpu_hour_price=2.5), {"demo": 4})
        shown = await harness.summary()
        assert (shown["pid"], shown["requests"]) == (pid, 1)
        assert harness.reported("configured") == [{"kind": "configured", "pid": pid, "price": 2.5, "gpus": {"demo": 4}}]
        await harness.client.configure(ExplainSettings(gpu_hour_price=2.5), {"demo": 4})
        await harness.summary()
        assert len(harness.reported("configured")) == 1


async def test_a_reload_disables_and_enables_explanations(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        pid = await harness.pid()
        await harness.client.configure(ExplainSettings(enabled=False), {})
        assert not runs(pid)
        with pytest.raises(NotFound):
            await harness.client.ask("summary", {})
        await harness.client.configure(ExplainSettings(), {})
        assert harness.client.accepts_text
        assert await harness.pid() != pid


async def test_outstanding_requests_are_counted_before_the_end(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        await harness.pid()
        for _ in range(100):
            harness.client.record_request(request("Hello."))
    assert harness.counts.missed == {"new_content": 6800}


async def test_no_process_is_left_after_the_end(tmp_path):
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with ClientHarness(tmp_path) as harness:
            pid = await harness.pid()
            harness.client.record_request(request("Hello."))
        assert not runs(pid)
        await harness.client.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@pytest.mark.parametrize("wait", [0, 0.02, 0.1])
async def test_worker_can_be_stopped_while_it_starts(tmp_path, wait):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(request("Hello."))
        await asyncio.sleep(wait)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert harness.counts.missed.total() == 68


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signals_to_the_process_group_do_not_end_the_worker(tmp_path, number):
    async with ClientHarness(tmp_path) as harness:
        pid = await harness.pid()
        os.kill(pid, number)
        harness.client.record_request(request("Hello."))
        await harness.missed(68)
        assert await harness.pid() == pid


def test_the_worker_imports_no_web_framework():
    """What a gateway needs besides, a web framework or tokenizers, would take memory and a second to start."""
    heavy = {"asyncio", "httpx", "prometheus_client", "pydantic", "rich", "starlette", "transformers", "uvicorn", "zmq"}
    code = "import gateway.explain.worker.explain_parts, gateway.explain.worker.process, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gateway.explain.worker.explain_parts" in loaded
    assert not heavy & set(loaded)


def test_settings_have_bounds():
    for wrong in ({"max_waiting_mib": 0}, {"journal_requests": 0}, {"currency": "euro"}, {"gpu_hour_price": -1}):
        with pytest.raises(ValidationError):
            ExplainSettings.model_validate(wrong)


async def test_the_real_worker_explains_and_answers(tmp_path):
    harness = ClientHarness(tmp_path, gpu_hour_price=3.6)
    harness.client = ExplainClient(harness.settings, harness.counts, {"demo": 2})
    async with harness:
        for number in range(4):
            harness.client.record_request(request("Hello." * number, request_id=f"req-{number}", at=time.time()))
        harness.client.record_request(request(None, request_id="req-4", at=time.time()))
        await harness.missed(340)
        shown = await harness.summary(window="15m")
        assert (shown["requests"], shown["skipped"], shown["prompt_tokens"], shown["hits"]) == (5, 1, 500, 160)
        assert sum(each["tokens"] for each in shown["reasons"]) == 340
        detail = json.loads(await harness.client.ask("request", {"id": "req-2"}))
        assert (detail["id"], detail["hits"]) == ("req-2", 32)
        # 68 tokens of 0.1 ms, on two GPUs.
        assert sum(each["gpu_seconds"] for each in detail["missed"]) == pytest.approx(68 * 0.0001 * 2)
        with pytest.raises(BadRequest) as wrong:
            await harness.client.ask("summary", {"window": "3m"})
        assert wrong.value.param == "window"
        with pytest.raises(NotFound):
            await harness.client.ask("request", {"id": "req-9"})


async def test_a_reload_of_bounds_keeps_the_journal(tmp_path):
    harness = ClientHarness(tmp_path)
    harness.client = ExplainClient(harness.settings, harness.counts, {"demo": 2})
    async with harness:
        harness.client.record_request(request("Hello.", request_id="req-0", at=time.time()))
        assert (await harness.summary())["requests"] == 1
        await harness.client.configure(ExplainSettings(reference_mib=16, currency="EUR", gpu_hour_price=1), {"demo": 2})
        harness.client.record_request(request("Hello.", request_id="req-1", at=time.time()))
        shown = await harness.summary()
        assert (shown["requests"], shown["price"]) == (2, {"per_gpu_hour": 1, "currency": "EUR"})
        await harness.client.configure(ExplainSettings(journal_requests=1), {"demo": 2})
        listed = json.loads(await harness.client.ask("requests", {}))["requests"]
        assert [each["id"] for each in listed] == ["req-1"]


async def test_lost_requests_are_sums_in_the_next_worker(tmp_path):
    timeouts = ExplainTimeouts(tick_seconds=0.05, silent_ticks=60, starting_ticks=600, first_pause_seconds=0.05)
    harness = ClientHarness(tmp_path)
    harness.client = ExplainClient(harness.settings, harness.counts, {"demo": 2}, timeouts=timeouts)
    async with harness:
        await harness.client.ask("summary", {})
        supervisor = harness.client._supervisor
        os.kill(supervisor.child._process.pid, signal.SIGSTOP)
        for number in range(3):
            harness.client.record_request(request("Hello.", request_id=f"req-{number}", at=time.time()))
        await eventually(lambda: not harness.client.accepts_text)
        await eventually(lambda: harness.client.accepts_text)
        shown = await harness.summary()
        assert (shown["requests"], shown["skipped"], shown["prompt_tokens"], shown["hits"]) == (3, 3, 300, 96)
        assert [(each["code"], each["tokens"]) for each in shown["reasons"] if each["tokens"]] == [
            ("unclassified", 204)
        ]
        assert [(each["template"], each["requests"]) for each in shown["by_template"]] == [("tpl", 3)]
    assert harness.counts.missed == {"unclassified": 204}
