import argparse
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from gateway.simulator import cli
from gateway.simulator.config import EngineConfig
from gateway.simulator.faults import Fault

PROGRAM = """
import argparse, sys
from gateway.simulator import cli
parser = argparse.ArgumentParser(prog="prefix-gateway engine")
cli.add_arguments(parser)
sys.exit(cli.run(parser.parse_args()))
"""


def launch(*options: str) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_serves_and_ends_cleanly(number):
    process = launch("--port", "0", "--model", "m", "--block-size", "8", "--blocks", "50", "--prefill-rate", "1e6")
    try:
        line = process.stdout.readline()
        url = line.split()[-1]
        assert line.startswith("simulated engine m on http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
            assert json.load(response)["data"][0]["max_model_len"] == 49 * 8
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_several_engines_share_a_process_but_no_cache():
    program = """
import asyncio
from gateway.simulator.config import EngineConfig
from gateway.simulator.faults import Fault
from gateway.simulator.simulated_engine import serve_engines
configs = [EngineConfig(model=name, prefill_rate=1e6, decode_ms=0) for name in ("a", "b")]
asyncio.run(serve_engines(configs, lambda engines: print(*(engine.url for engine in engines), flush=True)))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        first, second = process.stdout.readline().split()

        def cached(url: str, model: str) -> int:
            body = json.dumps({"model": model, "prompt": list(range(100, 140))}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [cached(first, "a"), cached(first, "a"), cached(second, "b")] == [0, 32, 0]
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_a_taken_port_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = launch("--port", str(port))
        out, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert out == ""
    assert err == (
        f"prefix-gateway engine: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another one with --port\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "explode"], "unknown fault 'explode'"),
        (["--blocks", "1"], "blocks must be at least 2"),
        (["--prefill-rate", "0"], "prefill_rate must be above 0"),
        (["--prefill-rate", "nan"], "prefill_rate must be above 0"),
        (["--decode-ms", "-1"], "decode_ms must not be negative"),
        (["--blocks", "10", "--max-model-len", "1000"], "max_model_len must be between 1 and the 144 tokens"),
        (["--events", "5557"], "must look like tcp://*:5557"),
        (["--replay", "tcp://*:5558"], "replay needs events"),
        (["--fault", "events_drop"], "publishes events"),
        (["--lora", "demo"], "different names"),
        (["--data-parallel-size", "0"], "data_parallel_size must be above 0"),
        (["--host", "256.0.0.1"], "cannot listen on 256.0.0.1"),
    ],
)
def test_options_that_cannot_be_used_are_one_clear_line(capsys, options, said):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    assert cli.run(parser.parse_args(["--port", "0", *options])) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_help_has_an_example_and_every_default():
    parser = argparse.ArgumentParser(prog="prefix-gateway engine")
    cli.add_arguments(parser)
    text = parser.format_help()
    assert "prefix-gateway engine --port 8100" in text
    assert str(EngineConfig().blocks) in text
    for fault in Fault:
        assert fault in text


def test_every_option_reaches_the_engine():
    options = """--port 0 --flavor sglang --lora law --lora poems --page-size 8 --blocks 60 --no-prefix-caching
        --data-parallel-size 2 --enable-cache-report --no-render --events tcp://*:0 --replay tcp://*:0 --replay-buffer 7
        --event-topic kv --event-encoding positional --event-hashes bytes --model m --fault events_delay=3
        --root /models/m --engine-version 9.1"""
    process = launch(*options.split())
    try:
        line = process.stdout.readline()
        url = line.split(" on ")[1].split(",")[0]
        with urllib.request.urlopen(f"{url}/server_info", timeout=60) as response:
            info = json.load(response)
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
            models = [card["id"] for card in json.load(response)["data"]]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    assert models == ["m", "law", "poems"]
    assert (info["model_path"], info["version"]) == ("/models/m", "9.1")
    assert (info["page_size"], info["dp_size"], info["max_total_num_tokens"]) == (8, 2, 59 * 8)
    assert (info["disable_radix_cache"], info["enable_cache_report"]) == (True, True)
    assert info["kv_events"]["topic"] == "kv"
    assert f"events on tcp://*:{info['kv_events']['endpoint_port_base']}, tcp://*:" in line
    assert f"replay on tcp://*:{info['kv_events']['replay_endpoint_port_base']}, tcp://*:" in line


def test_vllms_switches_reach_the_engine():
    process = launch("--port", "0", "--no-prompt-tokens-details", "--no-render")
    try:
        url = process.stdout.readline().split()[-1]
        body = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()

        def post(path: str) -> dict:
            request = urllib.request.Request(f"{url}{path}", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)

        assert post("/v1/completions")["usage"]["prompt_tokens_details"] is None
        with pytest.raises(urllib.error.HTTPError, match="403"):
            post("/v1/completions/render")
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
