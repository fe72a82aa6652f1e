"""KV-event batches as an engine may send them, whole, odd and damaged, and the order in which they come."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from benchmarks.fuzz.target import Target
from gateway.core.kv_events import EventBatch
from gateway.engines import BatchReader, BatchUnreadable
from gateway.kv_events.order import BatchOrder
from gateway.kv_events.order_actions import Apply

_MOST_STEPS = 2000
"""Portions that a batch of some kilobytes may take."""
_MOST_ACTIONS = 64
"""Actions besides ``Apply`` that one batch may cause."""

_numbers = st.integers(-(2**63), 2**64 - 1)
_hashes = st.lists(_numbers | st.binary(max_size=40), max_size=6)
_odd = (
    st.none() | st.booleans() | _numbers | st.floats() | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3)
)
_stored = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": _hashes,
        "parent_block_hash": st.none() | _numbers | _odd,
        "token_ids": st.lists(st.integers(-1, 2**33), max_size=40) | _odd,
        "block_size": st.integers(-1, 20) | _odd,
    },
    optional={"lora_id": _odd, "medium": _odd, "extra_keys": _odd, "group_idx": _odd, "lora_name": _odd},
)
_removed = st.fixed_dictionaries({"type": st.just("BlockRemoved"), "block_hashes": _hashes | _odd})
_cleared = st.just({"type": "AllBlocksCleared"})
_events = st.one_of(_stored, _removed, _cleared, st.dictionaries(st.text(max_size=8), _odd, max_size=3), _odd)
_payloads = st.tuples(st.floats(allow_nan=False) | _odd, st.lists(_events, max_size=6), _odd).map(
    msgspec.msgpack.encode
)
_damage = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)
_frames = st.tuples(_payloads | st.binary(max_size=200), _damage, st.integers(0, 12) | st.integers(0, 2**64 - 1))
_examples = st.lists(_frames, max_size=12)


def read(payload: bytes) -> EventBatch | None:
    """The batch, read to its end in portions; None if it is none."""
    reader = BatchReader(payload)
    try:
        for _ in range(_MOST_STEPS):
            if (batch := reader.read()) is not None:
                return batch
    except BatchUnreadable:
        return None
    raise AssertionError(f"{payload!r} takes more than {_MOST_STEPS} portions")


def _damaged(payload: bytes, damage: Sequence[tuple[int, int]]) -> bytes:
    changed = bytearray(payload)
    for place, value in damage:
        if place < len(changed):
            changed[place] = value
    return bytes(changed)


def _check(frames: Sequence[tuple[bytes, Sequence[tuple[int, int]], int]]) -> None:
    order = BatchOrder(replays=True)
    list(order.connected())
    now, taken, applied = 0.0, 0, 0
    for payload, damage, sequence in frames:
        now += 0.5
        batch = read(_damaged(payload, damage))
        actions: list[Any] = list(order.failed()) if batch is None else list(order.live(sequence, batch, now))
        actions += order.tick(now)
        taken += batch is not None
        applied += sum(isinstance(action, Apply) for action in actions)
        others = sum(not isinstance(action, Apply) for action in actions)
        assert others <= _MOST_ACTIONS, f"{others} actions for one batch"
    assert applied <= taken, "a batch is applied more often than it came"


TARGET = Target("events", _examples, _check)
