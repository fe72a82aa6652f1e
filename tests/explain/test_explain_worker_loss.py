"""The process that explains is killed, hangs, is behind or does not start: requests go on, and no token is lost."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from explain_harness import FAKE_WORKER, QUICK, ClientHarness, eventually, runs
from explained_requests import request
from patience import HANG_SECONDS
from structlog.testing import capture_logs

from gateway.core.errors import GatewayError
from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.explain.worker import explain_supervisor
from gateway.explain.worker.explain_supervisor import ExplainTimeouts, waited_seconds

UNHURRIED = ExplainTimeouts(tick_seconds=0.05, silent_ticks=60, starting_ticks=600, first_pause_seconds=3600)
"""One that is lost does not come back."""
IMPATIENT = ExplainTimeouts(tick_seconds=0.05, silent_ticks=60, starting_ticks=600, first_pause_seconds=0.05)
"""A process that is silent for 0.6 seconds hangs."""


def lost(logs):
    return [line for line in logs if line["event"] == "explain_lost"]


@pytest.mark.parametrize("how", ["kill", "itself"])
async def test_a_worker_that_dies_is_restarted_and_its_requests_are_unclassified(tmp_path, how):
    async with ClientHarness(tmp_path) as harness:
        pid = await harness.pid()
        harness.client.record_request(request("one"))
        await harness.missed(68)
        with capture_logs() as logs:
            if how == "kill":
                os.kill(pid, signal.SIGSTOP)
                harness.client.record_request(request("lost", prompt_tokens=200))
                await asyncio.sleep(0.05)
                os.kill(pid, signal.SIGKILL)
            else:
                harness.client.record_request(request("die", prompt_tokens=200))
            await eventually(lambda: lost(logs))
            assert harness.counts.missed == {"new_content": 68, "unclassified": 168}
            await eventually(lambda: harness.client.accepts_text)
            harness.client.record_request(request("two"))
            assert await harness.missed(68 + 168 + 68) == {"new_content": 136, "unclassified": 168}
            shown = await harness.summary()
        assert shown["pid"] != pid
        assert (shown["requests"], shown["skipped"], shown["prompt_tokens"]) == (1, 1, 300)
        assert harness.counts.skipped == 1
    [line] = lost(logs)
    assert line["log_level"] == "error"
    assert ("signal 9" if how == "kill" else "exit code 3") in line["problem"]
    assert "requests go on" in line["instead"]
    assert "explain_recovered" in [each["event"] for each in logs]


async def test_a_worker_that_hangs_with_outstanding_requests_is_replaced(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        pid = await harness.pid()
        with capture_logs() as logs:
            os.kill(pid, signal.SIGSTOP)
            harness.client.record_request(request("lost"))
            await eventually(lambda: lost(logs))
            assert "hangs" in lost(logs)[0]["problem"]
            assert await harness.missed(68) == {"unclassified": 68}
            await eventually(lambda: harness.client.accepts_text)
            assert await harness.pid() != pid
        assert not runs(pid)


async def test_a_worker_that_waits_for_a_core_does_not_count_as_hung(tmp_path, monkeypatch):
    waited, pids, starved = 0.0, set(), True

    def waited_seconds(pid):
        nonlocal waited
        pids.add(pid)
        waited += 0.04 if starved else 0.0
        return waited

    monkeypatch.setattr(explain_supervisor, "waited_seconds", waited_seconds)
    async with ClientHarness(tmp_path, timeouts=IMPATIENT) as harness:
        pid = await harness.pid()
        with capture_logs() as logs:
            os.kill(pid, signal.SIGSTOP)
            harness.client.record_request(request("late"))
            await asyncio.sleep(1.2)
            assert not logs
            starved = False
            await eventually(lambda: lost(logs))
        assert pids >= {pid}


def test_how_long_a_process_has_waited_for_a_core_is_counted():
    assert waited_seconds(0) == 0.0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        core = min(os.sched_getaffinity(0))
        for each in busy:
            os.sched_setaffinity(each.pid, {core})
        until = time.monotonic() + 30
        while not all(waited_seconds(each.pid) > 0.1 for each in busy):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        for each in busy:
            each.kill()
            each.wait()


async def test_an_idle_worker_does_not_count_as_hung(tmp_path):
    async with ClientHarness(tmp_path, timeouts=IMPATIENT) as harness:
        pid = await harness.pid()
        with capture_logs() as logs:
            await asyncio.sleep(0.9)
            assert await harness.pid() == pid
        assert not logs


async def test_a_busy_worker_does_not_count_as_hung(tmp_path):
    async with ClientHarness(tmp_path, timeouts=IMPATIENT) as harness:
        pid = await harness.pid()
        for _ in range(12):
            harness.client.record_request(request("slow"))
        await harness.missed(12 * 68)
        assert await harness.pid() == pid


async def test_questions_are_refused_while_no_worker_runs(tmp_path):
    async with ClientHarness(tmp_path, timeouts=UNHURRIED) as harness:
        pid = await harness.pid()
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.create_task(harness.summary())
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GatewayError) as interrupted:
            await asked
        with pytest.raises(GatewayError) as gone:
            await harness.summary()
        for refused in (interrupted, gone):
            assert (refused.value.status, refused.value.code) == (503, "explain_unavailable")
        assert not harness.client.accepts_text


async def first_answer(harness):
    """The process that answers, on a busy machine not always in time."""
    while True:
        with contextlib.suppress(GatewayError):
            return await harness.pid()


async def test_a_question_to_a_worker_that_does_not_answer_times_out(tmp_path):
    timeouts = ExplainTimeouts(tick_seconds=0.05, silent_ticks=600, starting_ticks=600, answer_seconds=0.3)
    async with ClientHarness(tmp_path, timeouts=timeouts) as harness:
        await asyncio.sleep(0)
        pid = await first_answer(harness)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(GatewayError) as refused:
            await harness.summary()
        assert (refused.value.status, refused.value.code) == (503, "explain_unavailable")
        os.kill(pid, signal.SIGCONT)
        assert await first_answer(harness) == pid


async def test_a_question_overtakes_waiting_requests(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        await harness.pid()
        for _ in range(12):
            harness.client.record_request(request("slow"))
        assert (await harness.summary())["requests"] < 6
        await harness.missed(12 * 68)


async def test_a_new_worker_receives_the_events_that_still_apply(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for what, name in [
            (CacheHistory.LEFT, "r1"),
            (CacheHistory.LEFT, "r2"),
            (CacheHistory.RETURNED, "r2"),
            (CacheHistory.RESTARTED, "r4"),
        ]:
            harness.client.record_event(CacheEvent(what, 1.0, name))
        pid = await harness.pid()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not harness.client.accepts_text)
        harness.client.record_event(CacheEvent(CacheHistory.LEFT, 2.0, "r5"))
        await eventually(lambda: harness.client.accepts_text)
        again = await harness.pid()
        reported = [(each["what"], each["name"]) for each in harness.reported("record_event") if each["pid"] == again]
        assert reported == [("left", "r1"), ("left", "r5")]


async def test_requests_are_buffered_without_text_while_no_worker_runs(tmp_path):
    timeouts = ExplainTimeouts(tick_seconds=0.05, silent_ticks=60, starting_ticks=600, first_pause_seconds=0.3)
    async with ClientHarness(tmp_path, timeouts=timeouts) as harness:
        os.kill(await harness.pid(), signal.SIGKILL)
        await eventually(lambda: not harness.client.accepts_text)
        for _ in range(5):
            harness.client.record_request(request("Hello."))
        await eventually(lambda: harness.client.accepts_text)
        assert await harness.missed(5 * 68) == {"unclassified": 5 * 68}
        assert (await harness.summary())["requests"] == 5
    assert harness.counts.skipped == 5


async def test_with_a_slow_worker_memory_is_bounded_and_every_token_counted(tmp_path):
    """First texts are left out, then requests are only added up; afterwards texts are wanted again."""
    async with ClientHarness(tmp_path, max_waiting_mib=1) as harness:
        pid = await harness.pid()
        os.kill(pid, signal.SIGSTOP)
        sent, wanted = 0, []
        text = "x" * 10_000
        for number in range(3000):
            accepted = harness.client.accepts_text
            wanted.append(accepted)
            harness.client.record_request(request(text if accepted else None, source=f"app-{number % 3}"))
            sent += 1
        waiting = harness.counts.skipped
        assert wanted.index(False) == pytest.approx(512 * 1024 / 11_500, rel=0.2)
        assert not any(wanted[wanted.index(False) :])
        # Those that were not even held count at once.
        assert 0 < harness.counts.missed["unclassified"] < waiting * 68
        os.kill(pid, signal.SIGCONT)
        counted = await harness.missed(sent * 68)
        assert counted == {"new_content": wanted.count(True) * 68, "unclassified": wanted.count(False) * 68}
        assert harness.counts.skipped == wanted.count(False)
        assert harness.client.accepts_text
        shown = await harness.summary()
        assert shown["pid"] == pid
        assert shown["requests"] + shown["skipped"] == sent
        assert shown["skipped"] > 0
        assert shown["prompt_tokens"] == sent * 100


async def test_memory_is_bounded_when_the_worker_stops_reading(tmp_path):
    timeouts = ExplainTimeouts(silent_ticks=600)
    async with ClientHarness(tmp_path, timeouts=timeouts, max_waiting_mib=2) as harness:
        os.kill(await harness.pid(), signal.SIGSTOP)
        tracemalloc.start()
        try:
            one = request("x" * 5000)
            for number in range(3_000):
                each = {"request_id": f"req-{number}", "source": f"app-{number}", "body": one.body + b" "}
                harness.client.record_request(msgspec.structs.replace(one, **each))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 4 * 1024 * 1024


async def test_texts_are_accepted_again_once_a_quarter_of_the_buffer_is_left(tmp_path):
    async with ClientHarness(tmp_path, max_waiting_mib=1) as harness:
        pid = await harness.pid()
        os.kill(pid, signal.SIGSTOP)
        while harness.client.accepts_text:
            harness.client.record_request(request("slow" + "x" * 100_000))
        os.kill(pid, signal.SIGCONT)
        before = harness.counts.missed.total()
        await eventually(lambda: harness.counts.missed.total() > before)
        assert not harness.client.accepts_text
        await eventually(lambda: harness.client.accepts_text)
        assert harness.counts.missed.total() >= 3 * 68


async def test_a_request_larger_than_the_buffer_is_sent_without_its_text(tmp_path):
    async with ClientHarness(tmp_path, max_waiting_mib=1) as harness:
        harness.client.record_request(request("x" * 2_000_000))
        assert await harness.missed(68) == {"unclassified": 68}
        assert harness.client.accepts_text
    assert harness.counts.skipped == 1


async def test_a_worker_that_cannot_be_started_fails_no_request(tmp_path):
    async with ClientHarness(tmp_path, command=["/nonexistent/python"]) as harness:
        with capture_logs() as logs:
            await eventually(lambda: len(lost(logs)) >= 2)
            harness.client.record_request(request("Hello."))
            with pytest.raises(GatewayError) as refused:
                await harness.summary()
        assert refused.value.status == 503
        pauses = [line["again_in_seconds"] for line in lost(logs)]
        assert pauses[1] > pauses[0]
    assert harness.counts.missed == {"unclassified": 68}


async def test_pauses_between_restarts_grow(tmp_path):
    async with ClientHarness(tmp_path, command=[sys.executable, "-c", "import sys; sys.exit(1)"]):
        with capture_logs() as logs:
            await eventually(lambda: len(lost(logs)) >= 4)
        pauses = [line["again_in_seconds"] for line in lost(logs)]
        assert pauses == sorted(pauses)
        assert pauses[-1] > pauses[0]
        assert "exit code 1" in lost(logs)[0]["problem"]


async def test_client_can_be_stopped_while_no_worker_runs(tmp_path):
    async with ClientHarness(tmp_path, timeouts=UNHURRIED) as harness:
        os.kill(await harness.pid(), signal.SIGKILL)
        await eventually(lambda: not harness.client.accepts_text)
        harness.client.record_request(request("Hello."))
    assert harness.counts.missed == {"unclassified": 68}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_worker_that_hangs_at_the_end_is_killed(tmp_path):
    async with ClientHarness(tmp_path, timeouts=QUICK) as harness:
        pid = await harness.pid()
        os.kill(pid, signal.SIGSTOP)
        harness.client.record_request(request("Hello."))
    assert not runs(pid)
    assert harness.counts.missed == {"unclassified": 68}


GATEWAY = """
import asyncio, signal, sys
# A shell that started the tests in the background may have turned it off.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = [{folder!r}, {tests!r}]
from pathlib import Path
from explain_harness import ClientHarness
from explained_requests import request

async def main():
    async with ClientHarness(Path({log!r})) as harness:
        print(await harness.pid(), flush=True)
        for _ in range(200):
            harness.client.record_request(request("slow"))
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_worker_ends_with_the_gateway(tmp_path, number):
    script = textwrap.dedent(GATEWAY).format(
        folder=str(Path(FAKE_WORKER).parent), tests=str(Path(FAKE_WORKER).parents[1]), log=str(tmp_path)
    )
    gateway = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert gateway.stdout is not None
    pid = int(gateway.stdout.readline())
    assert runs(pid)
    gateway.send_signal(number)
    gateway.wait(HANG_SECONDS)
    gateway.stdout.close()
    asyncio.run(eventually(lambda: not runs(pid)))
