"""Traces are read and written without loss, and a bad line is named."""

import io

import pytest

from gateway.evaluation import workload_trace
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.workload_trace import TraceReader, TraceRequest, trace_lines

REQUESTS = [
    TraceRequest(0.0, 700, 3, [0, 1]),
    TraceRequest(0.5, 1024, 8, [0, 2], "alice"),
    TraceRequest(0.5, 0, 0, []),
]


def read(text: bytes) -> list[TraceRequest]:
    return list(TraceReader(io.BytesIO(text), "t.jsonl"))


@pytest.mark.parametrize("block_size", [512, 256])
def test_what_was_written_is_read(block_size: int) -> None:
    blocks = {700: [0, 1], 1024: [0, 2]} if block_size == 512 else {700: [0, 1, 2], 1024: [0, 1, 3, 4]}
    requests = [
        TraceRequest(each.at, each.prompt_tokens, each.output_tokens, blocks.get(each.prompt_tokens, []), each.session)
        for each in REQUESTS
    ]
    reader = TraceReader(io.BytesIO(b"".join(trace_lines(requests, block_size))), "t.jsonl")

    assert list(reader) == requests
    assert reader.block_size == block_size


def test_the_published_format_is_read() -> None:
    text = b'{"timestamp": 1500, "input_length": 513, "output_length": 7, "hash_ids": [4, 9]}\n\n'

    assert read(text) == [TraceRequest(1.5, 513, 7, [4, 9])]


def test_a_file_without_line_ends_is_refused_before_all_of_it_is_read(monkeypatch) -> None:
    monkeypatch.setattr(workload_trace, "_MAX_LINE_BYTES", 1000)
    source = io.BytesIO(b"x" * 1_000_000)

    with pytest.raises(BadInput, match=r"t\.jsonl:1: longer than 1,000 bytes"):
        list(TraceReader(source, "t.jsonl"))
    assert source.tell() < 2000


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not a request of a trace"),
        (b'{"messages": []}', "expected JSON lines with `timestamp`"),
        (b'{"timestamp": 5, "input_length": 513, "output_length": 7, "hash_ids": [4]}', "1 ids, but 513 tokens are 2"),
        (b'{"timestamp": -5, "input_length": 0, "output_length": 7, "hash_ids": []}', "`timestamp` must be"),
        (b'{"timestamp": 5, "input_length": -1, "output_length": 7, "hash_ids": []}', "must not be negative"),
        (b'{"timestamp": 5, "input_length": 1, "output_length": 7, "hash_ids": [1], "block_size": 16}', "`block_size`"),
        (b'{"timestamp": 0.5, "input_length": 1, "output_length": 7, "hash_ids": [1]}', "sort the file"),
        (b'{"timestamp": 5, "input_length": "\xff", "output_length": 7, "hash_ids": []}', "not a request"),
    ],
)
def test_a_bad_line_is_named(line: bytes, problem: str) -> None:
    good = b'{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n'

    with pytest.raises(BadInput) as refused:
        read(good + line + b"\n")

    assert "t.jsonl:2: " in str(refused.value)
    assert problem in str(refused.value)
