"""Large batches and long events, decoded in portions."""

import math
import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.kv_events import BlockRemoved, BlockStored, UnknownEvent
from gateway.engines import BatchReader, BatchUnreadable, decode_batch, kv_event_reader
from gateway.engines.msgpack_walk import Walk

STORED = {
    "type": "BlockStored",
    "block_hashes": [1],
    "parent_block_hash": None,
    "token_ids": [5] * 16,
    "block_size": 16,
}
LONG = {
    "block_hashes": [2**63 + number for number in range(6000)],
    "token_ids": [100_000 + number % 7 for number in range(24_000)],
    "block_size": 4,
}
EVENTS = [
    STORED,
    {**STORED, "block_hashes": [b"x" * 32], "parent_block_hash": 7},
    ["BlockRemoved", [1, 2]],
    {"type": "BlockRemoved", "block_hashes": [-1]},
    {"type": "AllBlocksCleared"},
    {"type": "BlockPromised"},
    3,
    {**STORED, **LONG},
    {**STORED, **LONG, "parent_block_hash": 5, "group_idx": 1, "lora_name": "formal"},
    {**STORED, **LONG, "extra_keys": [["salt"], *[None] * 5999]},
    {**STORED, **LONG, "extra_keys": [["salt"]]},
    {**STORED, **LONG, "extra_keys": [[["cat", number]] for number in range(6000)]},
    {**STORED, **LONG, "medium": "CPU", "group_idx": 0},
    {**STORED, **LONG, "token_ids": [[number, 1] for number in range(24_000)]},
    {**STORED, **LONG, "token_ids": [100_000] * 24_016},
    {**STORED, **LONG, "token_ids": [100_000] * 23_999},
    {**STORED, **LONG, "token_ids": [2**40] * 24_000},
    {**STORED, **LONG, "token_ids": None},
    {**STORED, **LONG, "block_hashes": [[1]] * 6000},
    {**STORED, **LONG, "block_hashes": [b"%032d" % number for number in range(6000)]},
    ["BlockStored", LONG["block_hashes"], None, LONG["token_ids"], 4, None, "GPU", {"cache_salt": "s"}],
    ["BlockRemoved", [-number for number in range(9000, 18_000)] * 4, "CPU"],
    {"type": "BlockRemoved", "block_hashes": list(range(2**40, 2**40 + 9000)), "medium": "DISK", "group_idx": 2},
    {"type": "BlockPromised", "token_ids": LONG["token_ids"], "block_hashes": []},
    {"type": "BlockStored", "x": "y" * 50_000},
    ["x" * 50_000],
    "x" * 50_000,
]


def read(payload):
    reader = BatchReader(payload)
    steps = 1
    while (batch := reader.read()) is None:
        steps += 1
    return batch, steps


def joined(events):
    """The events with those that were split put together again."""
    whole = []
    for event in events:
        last = whole[-1] if whole else None
        if isinstance(event, BlockRemoved) and isinstance(last, BlockRemoved) and last[1:] == event[1:]:
            whole[-1] = last._replace(names=[*last.names, *event.names])
        elif isinstance(event, BlockStored) and isinstance(last, BlockStored) and event.parent == last.names[-1]:
            extras = None
            if last.extras or event.extras:
                extras = [*(last.extras or [None] * len(last.names)), *(event.extras or [None] * len(event.names))]
            names, tokens = [*last.names, *event.names], last.tokens + event.tokens
            whole[-1] = last._replace(names=names, tokens=tokens, extras=extras)
        else:
            whole.append(event)
    return whole


@given(st.lists(st.integers(0, len(EVENTS) - 1), max_size=6), st.sampled_from([None, 0, 3]), st.booleans())
@settings(max_examples=60)
def test_a_batch_read_in_portions_is_the_batch(events, rank, walks):
    payload = msgspec.msgpack.encode([1.5, [EVENTS[number] for number in events], rank])
    with pytest.MonkeyPatch.context() as patch:
        if walks:
            patch.setattr(kv_event_reader, "_OPENED_AT_ONCE", 0)
        batch, _ = read(payload)
    whole = decode_batch(payload)
    assert joined(batch.events) == joined(whole.events)
    assert batch[::2] == whole[::2]


@pytest.mark.slow
def test_a_batch_that_is_a_map_may_be_long_too():
    events = [["BlockRemoved", [number]] for number in range(30_000)]
    batch, _ = read(msgspec.msgpack.encode({"attn_dp_rank": 2, "x": [1], "events": events, "ts": 1}))
    assert (batch.timestamp, len(batch.events), batch.rank) == (1.0, 30_000, 2)


@pytest.mark.slow
def test_every_portion_of_a_million_hashes_or_tokens_is_small(monkeypatch):
    stored = {**STORED, "block_hashes": list(range(65_536)), "token_ids": [7] * 2**20}
    removed = {"type": "BlockRemoved", "block_hashes": list(range(2**40, 2**40 + 900_000))}
    passed, portion = [0], Walk._portion

    def counted(walk, pending):
        passed[-1] += min(pending, 4096)
        return portion(walk, pending)

    monkeypatch.setattr(Walk, "_portion", counted)
    reader = BatchReader(msgspec.msgpack.encode([1.0, [stored, removed]]))
    while (batch := reader.read()) is None:
        passed.append(0)
    assert max(passed) <= 5 * 4096
    assert [len(event.names) for event in joined(batch.events)] == [65_536, 900_000]
    assert max(len(event.names) for event in batch.events) <= 4096


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(
            {**STORED, "block_hashes": list(range(70)), "token_ids": [1] * 10_000_000}, marks=pytest.mark.slow
        ),
        {"type": "BlockRemoved", "block_hashes": list(range(1_000_001))},
        {**STORED, "block_hashes": [1], "token_ids": [1] * 200_000},
        {**STORED, "x": ["y" * 1000] * 2000},
        {"type": "BlockStored"} | {str(number): "x" * 1000 for number in range(65)},
    ],
    ids=["tokens", "hashes", "sparse", "field", "fields"],
)
def test_an_event_beyond_the_limits_is_a_loss_and_costs_no_neighbour(event):
    cleared = {"type": "AllBlocksCleared"}
    batch, _ = read(msgspec.msgpack.encode([1.0, [cleared, event, cleared]]))
    assert [type(each).__name__ for each in batch.events] == ["AllBlocksCleared", "UnknownEvent", "AllBlocksCleared"]
    assert batch.events[1] in (UnknownEvent(event["type"]), UnknownEvent("unreadable"))
    assert batch.events[1].is_loss


@pytest.mark.parametrize(
    "payload",
    [
        b"\x92\x01\xdd\xff\xff\xff\xff" + bytes(300_000),
        b"\xdd\xff\xff\xff\xff" + bytes(300_000),
        pytest.param(b"\x92\x01" + b"\x91" * 300_000, marks=pytest.mark.slow),
        b"\x92\x01\x91" + b"\xc6\x7f\xff\xff\xff" + bytes(300_000),
        b"\x92\x01" + b"\xdd\x00\x04\x00\x01" + bytes(300_000),
        b"\x92\x01\x91\xc1" + bytes(300_000),
        msgspec.msgpack.encode([1.0, [["x" * 17_000_000]]]),
        msgspec.msgpack.encode([1.0, [], 0]) + bytes(300_000),
        *(msgspec.msgpack.encode([stamp, ["x" * 300_000]]) for stamp in (math.inf, math.nan, "1", True, None)),
    ],
)
def test_what_is_no_batch_is_refused_without_reading_all_of_it_into_memory(payload):
    tracemalloc.start()
    with pytest.raises(BatchUnreadable):
        read(payload)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < len(payload) + 40_000_000


@pytest.mark.parametrize("payload", [b"", b"\x00", b"text", msgspec.msgpack.encode({"a": 1})])
def test_what_is_no_batch_is_refused(payload):
    with pytest.raises(BatchUnreadable):
        read(payload)


@pytest.mark.parametrize("stamp", [math.inf, -math.inf, math.nan])
def test_a_time_stamp_that_is_no_time_makes_a_batch_unreadable(stamp):
    with pytest.raises(BatchUnreadable):
        decode_batch(b"\x92\xcb" + struct.pack(">d", stamp) + b"\x90")


@given(st.binary(max_size=100), st.integers(0, 2**32))
def test_any_bytes_are_walked_over_or_refused(rest, number):
    values = msgspec.msgpack.encode([number, {"a": [None, True, 1.5, b"x", "y"]}, -number, [[]] * 20])
    for data, good in ((values, True), (values + rest, False), (rest, False)):
        walk = Walk(data)
        try:
            for _ in (steps := walk.skip(1, 10_000)):
                pass
        except ValueError:
            assert not good
        else:
            assert walk.at <= len(data)
            assert walk.at == len(values) or not data.startswith(values)
        del steps
