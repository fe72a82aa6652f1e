import json
import os
import signal
import socket
import time

import httpx
import pytest

ROW = {"requests", "errors", "hit_rate", "ttft_ms", "saved_prefill_tokens"}


@pytest.mark.slow
def test_json_shows_that_the_gateway_finds_more_and_answers_sooner(demo):
    run = demo("--seconds", "8", "--json")
    assert run.end() == 0, run.err
    report = json.loads(run.out)
    assert run.out.count("\n") == 1
    assert report.keys() == {"gateway", "round_robin"}
    assert sum(report["gateway"].pop("missed_tokens").values()) > 0
    for row in report.values():
        assert row.keys() == ROW
        assert row["ttft_ms"].keys() == {"p50", "p90", "p99"}
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p90"] <= row["ttft_ms"]["p99"]
        assert row["errors"] == 0
        assert row["requests"] > 30
        assert row["saved_prefill_tokens"] > 1000
    gateway, other = report["gateway"], report["round_robin"]
    assert 1 > gateway["hit_rate"] > other["hit_rate"] + 0.05
    assert gateway["ttft_ms"]["p50"] < other["ttft_ms"]["p50"]
    assert "round robin: " in run.err
    assert "Traceback" not in run.err


def test_ctrl_c_ends_it_with_a_summary_and_leaves_no_process(demo, left_behind):
    run = demo()
    public = run.wait_for(r"gateway +(http://\S+)")[1]
    admin = run.wait_for(r"admin +(http://\S+)/metrics")[1]
    assert run.wait_for(r"Dashboard: (\S+)\n")[1] == f"{admin}/dashboard"
    assert "<main>" in httpx.get(f"{admin}/dashboard").text
    run.wait_for(r" [1-9]\d* requests, 0 errors, hit rate")

    # It is a gateway that one can use while it runs.
    question = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = httpx.post(f"{public}/v1/chat/completions", json=question, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-replica"].startswith("replica-")
    assert "gateway_requests_total" in httpx.get(f"{admin}/metrics", trust_env=False).text
    assert len(httpx.get(f"{admin}/admin/api/replicas", trust_env=False).json()["replicas"]) == 3

    children = run.children()
    assert len(children) == 4
    # The terminal sends it to the whole group.
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() == 0
    assert left_behind(children) == []
    assert "Summary of" in run.out
    for shown in ("hit rate", "prefill tokens saved", "warm p50", "cold p50", "TTFT: ", "share of each replica"):
        assert shown in run.out
    for application in ("support chat", "RAG", "agent with tools", "briefing: has the current time"):
        assert application in run.out
    assert run.err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_ends_it_cleanly(demo, left_behind, number):
    run = demo("--json")
    while len(children := run.children()) < 2:
        assert run.process.poll() is None
        time.sleep(0.01)
    os.killpg(run.process.pid, number)
    assert run.end() == 0
    assert left_behind(children) == []
    report = json.loads(run.out)
    assert report["gateway"]["requests"] == 0
    assert report["gateway"]["ttft_ms"] == {"p50": None, "p90": None, "p99": None}
    assert "Traceback" not in run.err


@pytest.mark.slow
def test_a_killed_demo_leaves_no_process(demo, left_behind):
    run = demo()
    run.wait_for(r"requests, 0 errors")
    children = run.children()
    assert len(children) == 4
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    assert left_behind(children) == []


def test_ports_that_are_taken_are_named_with_the_option_that_changes_them(demo):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (str(taken.getsockname()[1]) for taken in (one, two))
        run = demo("--port", first, "--admin-port", second, "--json")
        assert run.end() == 2
    assert run.out == ""
    public, admin = run.err.splitlines()
    assert f"port {first} " in public
    assert "Address already in use" in public
    assert "--port" in public
    assert f"admin port {second} " in admin
    assert "--admin-port" in admin


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--port", "9000", "--admin-port", "9000"), "--port and --admin-port are both 9000"),
        (("--port", "65536"), "expected a port between 0 and 65535, not '65536'"),
        (("--seconds", "0"), "expected a number of seconds above 0, not '0'"),
        (("--seconds", "nan"), "expected a number of seconds above 0, not 'nan'"),
    ],
)
def test_options_that_cannot_be_used_are_reported_before_anything_starts(demo, options, problem):
    run = demo(*options)
    assert run.end() == 2
    assert problem in run.err
    assert run.out == ""


def test_help_shows_an_example(demo):
    run = demo("--help")
    assert run.end() == 0
    assert "prefix-gateway demo --seconds 30 --json" in run.out


@pytest.mark.slow
def test_failed_requests_are_counted_and_make_the_exit_code_1(demo):
    run = demo("--seconds", "4")
    admin = run.wait_for(r"admin +(http://\S+)/metrics")[1]
    for replica in httpx.get(f"{admin}/admin/api/replicas", trust_env=False).json()["replicas"]:
        fault = httpx.post(f"{replica['url']}/simulator/fault", json={"spec": "500:path=/v1/chat/completions"})
        assert fault.is_success
    assert run.end() == 1
    assert "first error of the gateway side: status 500" in run.out
    assert "first error of the round robin side" not in run.out


@pytest.mark.slow
def test_a_process_that_ends_by_itself_is_reported(demo, left_behind):
    run = demo()
    run.wait_for(r"requests, 0 errors")
    children = run.children()
    os.kill(min(children), signal.SIGKILL)
    assert run.end() == 1
    assert "ended by itself" in run.err
    assert "Traceback" not in run.err
    assert "Summary of" in run.out
    assert left_behind(children) == []
