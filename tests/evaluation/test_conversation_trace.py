"""The made-up trace: what a simulation takes, and the same every time."""

import json
from pathlib import Path

import pytest

from benchmarks.conversation_trace import BLOCK_SIZE, conversations
from gateway.__main__ import main


def test_it_can_be_simulated_and_repeats_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = conversations(minutes=5, per_second=0.5, seed=3)
    assert lines == conversations(minutes=5, per_second=0.5, seed=3) != conversations(5, 0.5, seed=4)
    for line in lines:
        assert len(line["hash_ids"]) == -(-line["input_length"] // BLOCK_SIZE)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["simulate", str(trace), "--replicas", "2", "--policy", "expected_ttft", "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == len(lines) > 300
    assert 0.5 < found["ideal_block_share"] < 0.9
