"""Blocks in events that match nothing that is known are counted, and those that are normal are not."""

import pytest
from index.event_index import HASHER, MODEL, TARGET, WORTH, Blocks, event_index

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Medium, Unmatched
from gateway.index import ReplicaIndex


@pytest.fixture
def blocks():
    return Blocks(event_index())


def counted(blocks):
    return blocks.index.unmatched(TARGET)


def test_nothing_is_counted_while_every_event_matches(blocks):
    assert counted(blocks) == Unmatched()
    blocks.store("abc")
    blocks.store("abcd", start=3)
    blocks.store("abx", start=2)
    blocks.remove("abcd", "ab")
    blocks.store("ab", start=1)
    assert counted(blocks) == Unmatched()


@pytest.mark.parametrize(
    "odd", [{"tokens": bytes(60)}, {"block_size": 7}, {"names": [1, 2, 3]}, {"extras": [None]}, {"block_size": 0}]
)
def test_run_that_cannot_be_blocks_of_the_target_is_unfit(blocks, odd):
    blocks.store("abc")
    event = BlockStored([1, 2], None, bytes(128), 16)._replace(**odd)
    blocks.index.apply(TARGET, event)
    assert counted(blocks) == Unmatched(unfit=len(event.names))


def test_blocks_behind_an_unknown_one_are_unplaced_until_it_comes(blocks):
    blocks.store("xabc", start=1)
    assert counted(blocks) == Unmatched(unplaced=3)
    blocks.store("xabc", start=1)
    assert counted(blocks) == Unmatched(unplaced=3)
    blocks.store("x")
    assert counted(blocks) == Unmatched()
    blocks.store("yab", start=1)
    blocks.remove("yab")
    blocks.store("y")
    assert counted(blocks) == Unmatched(unplaced=1)


def test_removed_blocks_that_are_not_known_are_counted_also_before_any_is(blocks):
    blocks.remove("a", "ab")
    assert counted(blocks) == Unmatched(removed=2)
    blocks.store("abc")
    blocks.remove("abc", "zz")
    assert counted(blocks) == Unmatched(removed=3)
    blocks.remove("abc")
    assert counted(blocks) == Unmatched(removed=4)


def test_counts_outlast_what_is_cleared_and_end_with_the_replica(blocks):
    index = ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
    index.set_capacity(TARGET, 100)
    blocks = Blocks(index)
    blocks.remove("zz")
    blocks.store("abc")
    index.apply(TARGET, AllBlocksCleared())
    blocks.remove("abc")
    index.clear(TARGET)
    assert index.unmatched(TARGET) == Unmatched(removed=2)
    index.forget(TARGET.replica)
    assert index.unmatched(TARGET) == Unmatched()


def test_blocks_without_tokens_count_once_too_many_wait_for_theirs(blocks):
    limit = 65536
    blocks.store("abc")
    names = range(10**6, 10**6 + limit)
    blocks.index.apply(TARGET, BlockStored(names, None, b"", 0, Medium.CPU))
    blocks.index.apply(TARGET, BlockStored(names[:5], None, b"", 0, Medium.CPU))
    assert counted(blocks) == Unmatched()
    blocks.index.apply(TARGET, BlockStored([1, 2, 3], None, b"", 0, Medium.CPU))
    assert counted(blocks) == Unmatched(unplaced=3)
    blocks.index.apply(TARGET, BlockRemoved(names[:2], Medium.CPU))
    assert counted(blocks) == Unmatched(unplaced=3)


def test_other_groups_and_other_media_are_no_mistake(blocks):
    blocks.store("abc")
    blocks.remove("zz", group=1)
    blocks.store("zab", start=1, group=1, sparse=True, window=16)
    blocks.remove("zz", medium=Medium.CPU)
    blocks.index.apply(TARGET, BlockStored([1], None, bytes(256), 64, Medium.CPU))
    assert counted(blocks) == Unmatched()


@pytest.mark.parametrize("size", [1, 16])
def test_one_percent_of_the_capacity_is_what_a_known_cache_can_have(size):
    index = ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
    index.apply(TARGET, BlockStored([1], None, bytes(4 * size), size))
    assert index.is_contradicted(TARGET, 1)
    assert not index.is_contradicted(TARGET, 0)
    index.set_capacity(TARGET, 400)
    most = 4 * 16 // size
    assert not index.is_contradicted(TARGET, most)
    assert index.is_contradicted(TARGET, most + 1)
