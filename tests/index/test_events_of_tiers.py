"""Blocks on slower media: GPU, CPU and disk."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index.event_index import TARGET, WORTH, Blocks, chain_of, event_index, gpu_copies

from gateway.core.kv_events import BlockStored, Medium

PATHS = ["a", "ab", "abc", "abd", "b", "ba"]


def by_name(blocks, *paths, medium):
    """What vLLM's offloading connectors say: names alone, and no parent, with or without blocks before."""
    blocks.index.apply(TARGET, BlockStored([blocks.name(path) for path in paths], None, b"", 0, medium))


def worth(blocks, path):
    """What the held part of a path is worth, in blocks."""
    chain = chain_of(blocks.prompt(path), blocks.size)
    holding = blocks.index.holding(chain, blocks.depth(path), TARGET)
    assert holding.tokens == blocks.depth(path) * blocks.size
    return holding.worth / blocks.size


def tiered():
    """Blocks of an engine that has reported the size of its GPU's blocks; other media may be cut into larger ones."""
    blocks = Blocks(event_index())
    blocks.store("z")
    blocks.remove("z")
    return blocks


@pytest.fixture
def blocks():
    return tiered()


def test_block_evicted_from_the_gpu_is_held_while_its_copy_on_the_cpu_stays(blocks):
    blocks.store("abc")
    by_name(blocks, "a", "ab", "abc", medium=Medium.CPU)
    assert (blocks.depth("abc"), worth(blocks, "abc")) == (3, 3)
    blocks.remove("abc", "ab")
    assert (blocks.depth("abc"), worth(blocks, "abc")) == (3, 1 + 2 * WORTH[Medium.CPU])
    blocks.remove("abc", "ab", medium=Medium.CPU)
    assert (blocks.depth("abc"), worth(blocks, "abc")) == (1, 1)
    blocks.remove("a", medium=Medium.CPU)
    assert (blocks.depth("abc"), worth(blocks, "abc")) == (1, 1)
    blocks.remove("a")
    assert blocks.depth("abc") == 0


def test_block_back_on_the_gpu_is_worth_all_again(blocks):
    blocks.store("ab")
    by_name(blocks, "a", "ab", medium=Medium.DISK)
    blocks.remove("ab")
    assert worth(blocks, "ab") == 1 + WORTH[Medium.DISK]
    by_name(blocks, "ab", medium=Medium.CPU)
    assert worth(blocks, "ab") == 1 + WORTH[Medium.CPU]
    blocks.store("ab", start=1)
    assert worth(blocks, "ab") == 2
    blocks.remove("ab")
    assert worth(blocks, "ab") == 1 + WORTH[Medium.CPU]


def test_names_without_tokens_are_never_the_beginning_of_a_prompt(blocks):
    by_name(blocks, "ab", medium=Medium.CPU)
    assert blocks.depth("b") == blocks.depth("ab") == 0
    assert blocks.part.waiting == 0
    blocks.store("ab")
    blocks.remove("ab")
    # Known by name before it was described, so the CPU's copy is still there.
    assert (blocks.depth("ab"), worth(blocks, "ab")) == (2, 1 + WORTH[Medium.CPU])
    blocks.remove("ab", medium=Medium.CPU)
    assert blocks.depth("ab") == 1


def test_name_removed_before_it_was_described_is_forgotten(blocks):
    by_name(blocks, "ab", medium=Medium.CPU)
    blocks.remove("ab", medium=Medium.CPU)
    blocks.store("ab")
    blocks.remove("ab")
    assert blocks.depth("ab") == 1


def test_orphan_known_by_name_on_the_cpu_keeps_that_copy_when_adopted(blocks):
    blocks.store("xab", start=1)
    by_name(blocks, "xa", "xab", medium=Medium.CPU)
    blocks.remove("xab")
    blocks.store("x")
    assert (blocks.depth("xab"), worth(blocks, "xab")) == (3, 2 + WORTH[Medium.CPU])


def test_orphan_that_was_known_by_name_before_it_was_described_keeps_that_copy(blocks):
    by_name(blocks, "xab", medium=Medium.CPU)
    blocks.store("xab", start=1)
    blocks.store("x")
    blocks.remove("xab")
    assert (blocks.depth("xab"), worth(blocks, "xab")) == (3, 2 + WORTH[Medium.CPU])


def test_blocks_stored_with_tokens_on_a_slow_medium_are_held_there(blocks):
    blocks.store("ab", medium=Medium.DISK)
    assert (blocks.depth("ab"), worth(blocks, "ab")) == (2, 2 * WORTH[Medium.DISK])
    assert gpu_copies(blocks.part) == {}
    assert blocks.part.blocks.gpu_copies == 0


def test_other_target_of_the_same_holder_set_counts_with_what_it_holds_itself(blocks):
    other = Blocks(blocks.index, TARGET._replace(rank=1))
    blocks.store("ab", medium=Medium.CPU)
    other.store("ab")
    chain = chain_of(blocks.prompt("ab"), 16)
    assert blocks.index.holding(chain, 2, other.target).worth == 32
    assert blocks.index.holding(chain, 2, TARGET).worth == 32 * WORTH[Medium.CPU]


def test_larger_blocks_of_a_slow_medium_received_first_do_not_shut_out_the_gpu():
    blocks = Blocks(event_index())
    blocks.index.apply(TARGET, BlockStored([77], None, bytes(4 * 64), 64, Medium.CPU))
    blocks.store("abc")
    assert blocks.depth("abc") == 3


operations = st.tuples(
    st.sampled_from(["store", "name", "remove", "remove"]), st.sampled_from(PATHS), st.sampled_from(list(Medium))
)


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(operations, max_size=40))
def test_depth_and_worth_equal_a_count_of_copies_per_medium(order):
    blocks, model = tiered(), Counter()
    described = set()
    for what, path, medium in order:
        if what == "store":
            blocks.store(path, medium=medium)
            described |= {path[: n + 1] for n in range(len(path))}
            model.update((path[: n + 1], medium) for n in range(len(path)))
        elif what == "name" and path in described and any(model[path, m] for m in Medium):
            by_name(blocks, path, medium=medium)
            model[path, medium] += 1
        elif what == "remove":
            blocks.remove(path, medium=medium)
            model[path, medium] = max(model[path, medium] - 1, 0)
        for asked in PATHS:
            fastest = []
            for end in range(1, len(asked) + 1):
                there = [m for m in Medium if model[asked[:end], m]]
                if not there:
                    break
                fastest.append(there[0])
            assert blocks.depth(asked) == len(fastest)
            assert worth(blocks, asked) == sum(WORTH[m] for m in fastest) if fastest else True
        if blocks.part is not None:
            gpu = {blocks.name(p): n for (p, m), n in model.items() if n and m is Medium.GPU}
            assert gpu_copies(blocks.part) == gpu
            assert blocks.part.blocks.gpu_copies == sum(gpu.values())
