import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.vendors import BatchReader, BatchUnreadable, decode_batch

STORED = {
    "type": "BlockStored",
    "block_hashes": [1],
    "parent_block_hash": None,
    "token_ids": [5] * 16,
    "block_size": 16,
}
EVENTS = st.sampled_from(
    [
        STORED,
        {**STORED, "block_hashes": [b"x" * 32], "parent_block_hash": 7},
        ["BlockRemoved", [1, 2]],
        {"type": "BlockRemoved", "block_hashes": [-1]},
        {"type": "AllBlocksCleared"},
        {"type": "BlockPromised"},
        3,
    ]
)


@given(st.lists(EVENTS, max_size=20), st.integers(1, 7), st.sampled_from([None, 0, 3]))
def test_a_batch_read_in_portions_is_the_batch(events, portion, rank):
    payload = msgspec.msgpack.encode([1.5, events, rank])
    reader = BatchReader(payload)
    steps = 1
    while (batch := reader.read(portion)) is None:
        steps += 1
    assert batch == decode_batch(payload)
    assert steps == max(1, -(-len(events) // portion))


@pytest.mark.parametrize("payload", [b"", b"\x00", b"text", msgspec.msgpack.encode({"a": 1})])
def test_what_is_no_batch_is_refused_at_once(payload):
    with pytest.raises(BatchUnreadable):
        BatchReader(payload)
