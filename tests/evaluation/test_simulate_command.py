"""``prefix-gateway simulate``: reports, documents, and input that cannot be simulated."""

import argparse
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.commands.simulate import add_arguments
from gateway.evaluation.simulation import LIMITS, POLICIES

Write = Callable[..., Path]


def line(at: float, blocks: list[int], **fields: Any) -> dict[str, Any]:
    """A request whose last block has one token."""
    return {
        "timestamp": round(at * 1000),
        "input_length": (len(blocks) - 1) * 512 + 1,
        "output_length": 5,
        "hash_ids": blocks,
        **fields,
    }


# Three blocks of each prompt are shared by all: 30 of 50 blocks but for the first request's.
TRACE = [line(2.0 * number, [1, 2, 3, 100 + number, 200 + number]) for number in range(10)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(lines: list[dict[str, Any]], name: str = "trace.jsonl") -> Path:
        file = tmp_path / name
        text = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
        file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return file

    return write


def simulated(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["simulate", *map(str, arguments), "--jobs", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_document_has_every_rung_of_every_fleet(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(capsys, write(TRACE), "--replicas", "1,2", "--blocks", "10,100")
    assert found["ideal_block_share"] == 27 / 50
    assert (found["requests"], found["block_size"], found["seconds"]) == (10, 512, 18.0)
    shapes = [(fleet["replicas"], fleet["blocks"]) for fleet in found["fleets"]]
    assert shapes == [(1, 10), (1, 100), (2, 10), (2, 100)]
    for fleet in found["fleets"]:
        rungs = {rung["policy"]: rung for rung in fleet["rungs"]}
        assert list(rungs) == [*LIMITS, *POLICIES]
        assert rungs["ideal"]["block_share"] == 27 / 50
        assert set(rungs["ideal"]["ttft_seconds"]) == {"p50", "p90", "p99"}
    one, two = found["fleets"][1], found["fleets"][3]
    assert next(rung["hit_blocks"] for rung in one["rungs"] if rung["policy"] == "round_robin") == 27
    assert next(rung["hit_blocks"] for rung in two["rungs"] if rung["policy"] == "round_robin") == 24


def test_cache_sizes_in_three_units_are_the_same(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(TRACE)
    found = [
        simulated(capsys, file, "--policy", "round_robin", *size)["fleets"][0]["blocks"]
        for size in (["--blocks", 64], ["--tokens", 32768], ["--gib", 2, "--kv-bytes-per-token", 65536])
    ]
    assert found == [64, 64, 64]


def test_speed_and_rate(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(TRACE)
    assert simulated(capsys, file, "--speed", "3")["seconds"] == pytest.approx(6.0)
    assert simulated(capsys, file, "--rate", "5")["seconds"] == pytest.approx(2.0)


def test_the_report(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(write(TRACE)), "--replicas", "2", "--blocks", "1000", "--jobs", "1"]) == 0
    text = capsys.readouterr().out
    assert "10 requests in 18 seconds, 0.556 a second" in text
    assert "2 replicas with 1,000 blocks (512,000 tokens) each, 8,000 prefill tokens/s" in text
    assert [row.split()[0] for row in text.splitlines() if " % " in row and row.endswith("%")] == [*LIMITS, *POLICIES]
    assert "ideal (unbounded)   54.00 %" in text
    assert "The trace names no sessions" in text


def test_prompts_that_no_replica_can_hold_are_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [*TRACE, line(30, list(range(500, 560)))]
    assert main(["simulate", str(write(lines)), "--blocks", "50", "--replicas", "2", "--jobs", "1"]) == 0
    assert "1 requests are longer than the cache of a replica" in " ".join(capsys.readouterr().out.split())


def test_an_overloaded_fleet_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(write(TRACE)), "--prefill-rate", "10", "--policy", "round_robin", "--jobs", "1"]) == 0
    assert "Overloaded: ideal, capacity, perfect, round_robin" in " ".join(capsys.readouterr().out.split())


def test_what_the_queue_rejects_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prefill-rate", "10", "--queue", "--policy", "round_robin", "--jobs", "1"]
    assert main(["simulate", str(write(TRACE)), *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Rejected by the gateway's queue and left out: round_robin" in text


def test_a_compressed_trace(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(capsys, write(TRACE, "trace.jsonl.gz"), "--policy", "round_robin")["requests"] == 10


def test_standard_input(write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BufferedReader(io.BytesIO(write(TRACE).read_bytes()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=content))
    assert simulated(capsys, "-", "--policy", "round_robin")["trace"] == "standard input"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no requests"),
        (b"\n\n", "no requests"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not a request of a trace"),
        (b'{"model": "m", "messages": []}\n', "not a request of a trace"),
        (gzip.compress(json.dumps(TRACE[0]).encode() * 50)[:40], "cannot be read"),
        (b"".join(json.dumps(each).encode() + b"\n" for each in reversed(TRACE)), "sort the file"),
        (json.dumps(TRACE[0] | {"hash_ids": [1]}).encode(), "blocks of 512"),
        (json.dumps(TRACE[0] | {"hash_ids": [], "input_length": 0}).encode(), "every `input_length` is 0"),
    ],
)
def test_what_is_no_trace(content: bytes, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(content)
    check_refused(capsys, problem, str(file))
    assert main(["simulate", str(file), "--json"]) == 2


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, "No such file", str(tmp_path / "gone.jsonl"))
    check_refused(capsys, "Is a directory", str(tmp_path))


def test_an_interrupted_trace(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted = [*TRACE, *(each | {"timestamp": each["timestamp"] + 7_200_000} for each in TRACE)]
    file = write(interrupted)
    check_refused(capsys, "no requests for 120 minutes between lines 10 and 11, where 2 s is usual", str(file))
    assert simulated(capsys, file, "--gaps", "--policy", "round_robin")["requests"] == 20


def test_traffic_that_is_always_slow_is_not_interrupted(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    hourly = [line(3600.0 * number, [1, number + 2]) for number in range(20)]
    assert simulated(capsys, write(hourly), "--policy", "round_robin")["requests"] == 20


def test_a_cache_below_one_block(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, "smaller than one block of 512 tokens", str(write(TRACE)), "--tokens", "511")


def test_a_rate_for_one_moment(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, "--rate", str(write(TRACE[:1])), "--rate", "3")


@pytest.mark.parametrize(
    "options",
    [
        ["--replicas", "0"],
        ["--replicas", "2,,3"],
        ["--blocks", "-1"],
        ["--gib", "nan"],
        ["--policy", "fastest"],
        ["--speed", "0"],
        ["--decode-ms", "inf"],
        ["--blocks", "5", "--tokens", "5"],
        ["--speed", "2", "--rate", "3"],
    ],
)
def test_bad_options(options: list[str], write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", str(write(TRACE)), *options])
    assert ended.value.code == 2
    assert options[-2] in capsys.readouterr().err


def check_refused(capsys: pytest.CaptureFixture[str], problem: str, *arguments: str) -> None:
    """One sentence, exit code 2."""
    assert main(["simulate", *arguments]) == 2
    output = capsys.readouterr()
    assert problem in output.err
    assert output.err.count("\n") == 1
    assert not output.out


@pytest.mark.slow
def test_the_installed_command_in_several_processes(write: Write) -> None:
    lines = [line(2.0 * number, [1, 2, 3, 1000 + number, 9000 + number]) for number in range(6000)]
    command = [sys.executable, "-m", "gateway", "simulate", str(write(lines)), "--json"]
    found = [
        subprocess.run([*command, "--jobs", jobs], capture_output=True, text=True, check=False) for jobs in ("1", "2")
    ]
    assert [(each.returncode, each.stderr) for each in found] == [(0, ""), (0, "")]
    assert found[0].stdout == found[1].stdout


@pytest.mark.slow
def test_a_reader_that_leaves_early(write: Write) -> None:
    command = [sys.executable, "-m", "gateway", "simulate", str(write(TRACE)), "--replicas", "1,2,3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_page_has_every_option_row_and_field(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    assert [option for option in options if f"`{option}" not in page and option != "--help"] == []
    document = simulated(capsys, write(TRACE))
    (fleet,) = document["fleets"]
    names = {*document, *fleet, *fleet["rungs"][0], *LIMITS, *POLICIES}
    assert [name for name in names if f"`{name}`" not in page and name != "fleets"] == []
