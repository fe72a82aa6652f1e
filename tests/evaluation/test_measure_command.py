"""``prefix-gateway measure`` against simulated engines and a gateway in processes of their own, and odd servers."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fork_server
import httpx
import pytest
import yaml
from levels import slow_except
from patience import HANG_SECONDS

from gateway.__main__ import main
from gateway.core.explanation import MEASUREMENT
from gateway.evaluation.measurement import measure_run
from gateway.evaluation.workload_trace import TraceRequest, trace_lines

SECRET = "sk-very-secret-value"
DEAD = "http://127.0.0.1:9"


@contextlib.contextmanager
def engine(*options: str) -> Iterator[str]:
    """A simulated engine in a process of its own; its URL."""
    command = [sys.executable, "-m", "gateway", "engine", "--port", "0", "--decode-ms", "1", *options]
    with fork_server.launch(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@contextlib.contextmanager
def gateway(tmp_path, *replicas: str, **sections: Any) -> Iterator[tuple[str, str]]:
    """A gateway in a process of its own; its public and its admin URL."""
    file = tmp_path / "gateway.yaml"
    server = {"port": 0, "admin_port": 0, "drain_seconds": 0, "host": "127.0.0.1"}
    model = {"id": "demo", "tokenizer": "builtin:demo", "replicas": list(replicas)}
    file.write_text(yaml.safe_dump({"server": server, "log": {"format": "json"}, "models": [model], **sections}))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    with fork_server.launch(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if '"gateway_ready"' in line:
                break
        ready = json.loads(line)
        drained = threading.Thread(target=process.stderr.read)
        drained.start()
        yield ready["public"], ready["admin"]
        process.terminate()
        process.wait(HANG_SECONDS)
        drained.join()


class Odd(BaseHTTPRequestHandler):
    """Answers what its server is set to."""

    def do_GET(self) -> None:
        self._answer(*self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((dict(self.headers), body))
        self._answer(*self.server.answer)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


JSON, EVENTS = "application/json", "text/event-stream"
MODELS = (200, JSON, b'{"data":[{"id":"demo"}]}')
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def odd():
    """A server that answers as the test says."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.daemon_threads = True
    server.models, server.answer, server.seen = MODELS, (200, EVENTS, TOKEN + USAGE + DONE), []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def measure(capsys, monkeypatch):
    """Runs the command; returns its exit code, standard output and standard error."""
    monkeypatch.delenv("GATEWAY_API_KEY", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["measure", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def as_json(found: tuple[int, str, str], code: int = 0) -> dict[str, Any]:
    assert found[0] == code, found[2]
    result: dict[str, Any] = json.loads(found[1])
    return result


def groups(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in result["groups"]}


def test_cold_and_warm_differ_by_what_the_planted_prefill_rate_takes(measure):
    rate = 5000
    with engine("--prefill-rate", str(rate)) as url:
        result = as_json(measure(url, "--requests", 14, "--prompt-tokens", 400, "--json"))
    cold, warm = groups(result)["cold"], groups(result)["warm"]
    assert (cold["requests"], warm["requests"], result["failed"]) == (14, 14, 0)
    assert cold["prompt_tokens"] == pytest.approx(400, rel=0.12)
    assert cold["hit_rate"]["value"] < 0.05
    assert warm["hit_rate"]["value"] > 0.9
    (compared,) = result["comparisons"]
    found = compared["ttft_seconds"]["p50"]["difference"]
    planted = -(cold["prefill_tokens"] - warm["prefill_tokens"]) / 14 / rate
    # A busy machine adds some of its own.
    assert found["low"] + 0.2 * planted <= planted <= found["high"] - 0.2 * planted
    assert not compared["ttft_seconds"]["p50"]["is_noise"]
    # No machine is faster than what the engine waits; a busy one is slower.
    assert cold["gpu_seconds"]["value"] > 0.8 * cold["prefill_tokens"] / rate
    assert result["variants"][0]["prefill_tokens_per_second"] < 1.2 * rate


def test_gateway_and_engine_behind_it_are_compared_and_the_gateway_reports_nothing_of_it(measure, tmp_path):
    with engine("--prefill-rate", "20000") as url, gateway(tmp_path, url) as (public, admin):
        code, out, _ = measure(f"direct={url}", f"gateway={public}/v1", "--requests", 10, "--prompt-tokens", 200)
        assert code == 0
        for name in ("direct cold", "direct warm", "gateway cold", "gateway warm", "gateway warm − direct warm"):
            assert name in out
        scraped = httpx.get(f"{admin}/metrics").text
        assert 'gateway_requests_total{endpoint="/v1/chat/completions",model="demo",status="200",' in scraped
        assert httpx.get(f"{admin}/admin/api/summary").json()["requests"] == 0


def test_rule_is_compared_with_its_absence(measure, tmp_path):
    canon = {"rules": {"dynamic-suffix": "apply"}}
    with engine("--prefill-rate", "20000") as url, gateway(tmp_path, url, canon=canon) as (public, _):
        result = as_json(measure(public, "--canonical", "--requests", 10, "--prompt-tokens", 300, "--json"))
    off, on = groups(result)["rules off"], groups(result)["rules on"]
    assert off["hit_rate"]["value"] < 0.3
    assert on["hit_rate"]["value"] > off["hit_rate"]["value"] + 0.3
    assert (result["comparisons"][0]["first"], result["comparisons"][0]["second"]) == ("rules off", "rules on")


def test_models_are_compared_with_the_first_one(measure):
    with engine("--model", "small", "--lora", "large", "--prefill-rate", "inf") as url:
        result = as_json(measure(url, "--models", "small,large", "--requests", 8, "--json", "--output-tokens", 5))
    assert set(groups(result)) == {"small cold", "small warm", "large cold", "large warm"}
    assert {group["output_tokens"] for group in result["groups"]} == {5}
    assert len({round(group["prompt_tokens"], -1) for group in result["groups"]}) == 1
    assert [(each["first"], each["second"]) for each in result["comparisons"]][2:] == [
        ("small cold", "large cold"),
        ("small warm", "large warm"),
    ]


def test_identical_targets_differ_by_noise(measure):
    with engine("--prefill-rate", "800") as one, engine("--prefill-rate", "800") as other:
        result = as_json(measure(f"a={one}", f"b={other}", "--requests", 10, "--prompt-tokens", 100, "--json"))
    for compared in result["comparisons"][2:]:
        for latency in ("ttft_seconds", "total_seconds"):
            found = compared[latency]["p50"]
            # An interval misses in 5 of 100 runs: then the difference is small beside the 125 ms of a prefill.
            assert found["is_noise"] or abs(found["difference"]["value"]) < 0.05
        assert compared["error_rate"]["value"] == 0


def test_broken_engine_is_an_error_rate(measure):
    with engine("--prefill-rate", "inf", "--fault", "500:every=3") as url:
        result = as_json(measure(url, "--requests", 30, "--prompt-tokens", 50, "--warm-up", 0, "--json"), code=1)
    sent = sum(group["requests"] for group in result["groups"])
    assert result["failed"] == sent // 3
    (error,) = groups(result)["cold"]["errors"]
    assert error["message"].startswith("status 500")
    assert [note for note in result["notes"] if "warm requests were not sent" in note]


FAULTS = [
    ("die_before_first_byte", "the replica closed the connection"),
    ("die_mid_stream=2", "the replica closed the connection"),
    ("garbage", "the answer is not HTTP"),
    ("hang", "no complete answer within 2 s"),
    ("hang_mid_stream=2", "no complete answer within 2 s"),
    ("429", "status 429"),
    ("no_done", "the stream ended before its end mark"),
    ("invalid_json", "an event of the stream is not JSON"),
]


@pytest.mark.parametrize(
    ("fault", "message"), slow_except(FAULTS, ["die_mid_stream=2", "hang", "no_done"], key=lambda case: case[0])
)
def test_every_request_fails_and_that_is_the_result(measure, fault, message):
    with engine("--prefill-rate", "inf", "--fault", fault) as url:
        # The command first asks whether the server is there, in the same time.
        seconds = 2 if "hang" in fault else 60
        code, out, err = measure(url, "--requests", 2, "--prompt-tokens", 20, "--timeout", seconds)
    assert (code, err) == (1, "")
    assert "2 (2)" in out
    assert f"cold: 2 failed: {message}" in out


def test_prompts_of_a_file_in_the_open_loop(measure, tmp_path):
    file = tmp_path / "bodies.jsonl"
    bodies = [{"messages": [{"role": "user", "content": f"{number} parcels. " * 40}]} for number in range(3)]
    file.write_text("\n".join(map(json.dumps, [*bodies, {"prompt": "Once upon a time. " * 40}])))
    with engine("--prefill-rate", "20000") as url:
        result = as_json(
            measure(url, "--prompts", file, "--rate", 100, "--requests", 12, "--output-tokens", 2, "--json")
        )
    assert [group["requests"] for group in result["groups"]] == [12, 12]
    assert result["settings"]["load"] == "100 a second (open loop)"
    assert groups(result)["warm"]["hit_rate"]["value"] > 0.8
    assert result["failed"] == 0


def test_latencies_count_from_when_requests_were_due_however_late_they_are_sent(measure, monkeypatch):
    """All are due within some milliseconds, and sent one by one: the last waits for the answers before it."""
    monkeypatch.setattr(measure_run, "_MOST_UNDER_WAY", 1)
    with engine("--prefill-rate", "2000") as url:
        result = as_json(measure(url, "--requests", 6, "--rate", 500, "--prompt-tokens", 200, "--warm-up", 0, "--json"))
    cold = groups(result)["cold"]
    assert cold["ttft_seconds"]["p99"]["value"] > 4 * cold["prompt_tokens"] / 2000
    assert [note for note in result["notes"] if note.startswith("Requests were sent up to ")]


@pytest.mark.parametrize(
    "load",
    [["--speed", "50"], pytest.param(["--concurrency", "4"], marks=pytest.mark.slow)],
    ids=["its own times", "closed loop"],
)
def test_trace_is_warm_where_it_repeats_itself(measure, tmp_path, load):
    file = tmp_path / "trace.jsonl"
    requests = [TraceRequest(number * 0.5, 160, 2, [1, 2, 3, 4, 100 + number]) for number in range(10)]
    file.write_bytes(b"".join(trace_lines(requests, 32)))
    with engine("--prefill-rate", "20000") as url:
        result = as_json(measure(url, "--trace", file, *load, "--json"))
    assert [group["requests"] for group in result["groups"]] == [10, 10]
    assert groups(result)["cold"]["hit_rate"]["value"] < 0.1
    assert groups(result)["warm"]["hit_rate"]["value"] > 0.5


def test_requests_are_marked_streamed_and_carry_the_key(measure, odd, monkeypatch):
    monkeypatch.setenv("GATEWAY_API_KEY", SECRET)
    code, out, err = measure(odd.url, "--requests", 2, "--warm-up", 1, "--unique", "salt", "--plain", "--model", "demo")
    assert code == 0
    assert len(odd.seen) == 5
    for headers, body in odd.seen:
        assert headers["x-client"] == MEASUREMENT
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
        assert "ignore_eos" not in body
    salts = [body["cache_salt"] for _, body in odd.seen]
    assert len(set(salts)) == 3
    assert SECRET not in out + err
    assert "--enable-prompt-tokens-details" in out


def test_rules_are_turned_off_by_header(measure, odd):
    assert measure(odd.url, "--canonical", "--requests", 3, "--warm-up", 0)[0] == 0
    assert [headers.get("x-gateway-canonical", "on") for headers, _ in odd.seen].count("off") == 3
    assert "Current time: " in odd.seen[0][1]["messages"][0]["content"]


def test_key_that_a_server_repeats_is_not_printed(measure, odd, tmp_path):
    file = tmp_path / "key"
    file.write_text(SECRET + "\n")
    odd.answer = (500, JSON, json.dumps({"error": {"message": f"what is {SECRET}?\n\x1b[31m"}}).encode())
    code, out, err = measure(odd.url, "--requests", 2, "--key-file", file)
    assert code == 1
    assert "status 500: what is (key)? [31m" in out
    assert SECRET not in out + err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, JSON, b"{}"), "it answered without a stream"),
        ((200, EVENTS, USAGE + DONE), "the stream ended without a token"),
        ((200, EVENTS, b'data: {"error":{"message":"out of memory"}}\n\n' + DONE), "the stream broke: out of memory"),
        ((200, EVENTS, b"data: [1]\n\n" + DONE), "an event of the stream is no object"),
        ((502, "text/html", b"<html>bad gateway</html>"), "status 502: <html>bad gateway</html>"),
        ((503, JSON, b'{"detail":"loading"}'), "status 503: loading"),
    ],
)
def test_odd_answers_are_errors(measure, odd, answer, message):
    odd.answer = answer
    code, out, _ = measure(odd.url, "--requests", 1)
    assert code == 1
    assert message in out


def test_token_without_text_counts_as_the_first_one(measure, odd):
    odd.answer = (200, EVENTS, TOKEN.replace(b'"a"', b'""').replace(b"\n\n", b"\r\n\r\n") + DONE)
    assert measure(odd.url, "--requests", 1)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([DEAD], f"{DEAD}: cannot be reached ("),
        (["http://"], "http://: not a URL: expected one such as http://127.0.0.1:8080"),
        (["ftp://a"], "ftp://a: not a URL"),
        (["http://u:p@h:99999"], "h:99999: not a URL"),
        (["http://u:p@h"], "http://h: give scheme, host, port and path only"),
        ([DEAD, "--models", "a,b", "--canonical"], "compare one thing at a time"),
        ([DEAD, "--model", "a", "--models", "a,b"], "--model and --models cannot both be given"),
        ([DEAD, "--prompts", "x", "--trace", "y"], "--prompts and --trace cannot both be given"),
        ([DEAD, "--rate", "1", "--concurrency", "2"], "give one of --concurrency, --rate and --speed"),
        ([DEAD, "--speed", "1"], "--speed needs a trace"),
        ([DEAD, "--trace", "x", "--canonical"], "--canonical needs prompts with text"),
        ([DEAD, "--prompts", "/nowhere"], "/nowhere: cannot be read: No such file or directory"),
        ([DEAD, "--key-file", "/nowhere"], "--key-file /nowhere: cannot be read: No such file or directory"),
    ],
)
def test_bad_input_is_one_sentence(measure, arguments, sentence):
    code, out, err = measure(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"prefix-gateway measure: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("models", "arguments", "sentence"),
    [
        ((401, JSON, b"{}"), [], "asks for an API key (status 401): give it with --key-file or GATEWAY_API_KEY"),
        ((200, JSON, b'{"data":[]}'), [], "serves no model"),
        (
            (200, JSON, b'{"data":[{"id":"a"},{"id":"b"}]}'),
            [],
            "serves several models: choose with --model one of a, b",
        ),
        (MODELS, ["--model", "x"], "serves no model 'x': choose with --model one of demo"),
        (MODELS, ["--models", "demo,y"], "serves no model 'y': choose with --model one of demo"),
        ((404, JSON, b"{}"), [], "does not list its models (GET /v1/models): name one with --model"),
        ((200, "text/html", b"<html>"), [], "answered GET /v1/models with something else than a list of models"),
    ],
)
def test_model_that_cannot_be_measured_is_one_sentence(measure, odd, models, arguments, sentence):
    odd.models = models
    code, out, err = measure(odd.url, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"prefix-gateway measure: {odd.url}: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, JSON, b"{}"), "asks for an API key (status 401)"),
        ((400, JSON, b'{"error":{"message":"too long"}}'), "refuses the requests (status 400: too long): --plain"),
        ((404, JSON, b'{"error":{"message":"no such model"}}'), "refuses the requests (status 404: no such model)"),
    ],
)
def test_requests_that_are_refused_for_good_are_one_sentence(measure, odd, answer, sentence):
    odd.answer = answer
    code, out, err = measure(odd.url)
    assert (code, out) == (2, "")
    assert err.startswith(f"prefix-gateway measure: {odd.url}: {sentence}")
    assert len(odd.seen) == 1


def test_refused_key_is_said_without_the_key(measure, odd, monkeypatch):
    monkeypatch.setenv("GATEWAY_API_KEY", SECRET)
    odd.models = (401, JSON, b"{}")
    code, out, err = measure(odd.url)
    assert code == 2
    assert "refuses the API key (status 401)" in err
    assert SECRET not in out + err


def test_time_limit_ends_a_measurement(measure):
    with engine("--prefill-rate", "500") as url:
        result = as_json(
            measure(url, "--requests", 500, "--prompt-tokens", 100, "--seconds", 0.8, "--warm-up", 0, "--json")
        )
    assert 1 <= sum(group["requests"] for group in result["groups"]) < 100
    assert [note for note in result["notes"] if note.startswith("The time was over before ")]


def test_markdown_is_a_table(measure, odd):
    code, out, _ = measure(odd.url, "--requests", 7, "--markdown")
    assert code == 0
    assert "|  | cold | warm |\n| --- | --- | --- |\n| requests (failed) | 7 (0) | 7 (0) |" in out


@pytest.mark.parametrize("option", [["--requests", "0"], ["--rate", "-1"], ["--models", "a"], ["--timeout", "x"]])
def test_impossible_numbers_are_refused(measure, capsys, option):
    with pytest.raises(SystemExit) as refused:
        measure(DEAD, *option)
    assert refused.value.code == 2
    assert "expected " in capsys.readouterr().err
