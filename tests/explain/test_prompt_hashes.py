"""Hashes of prompts for the tables of computed blocks."""

from itertools import pairwise

import msgspec
import numpy as np
from answered_requests import answered as request
from answered_requests import ids
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.explanation import SpaceKey
from gateway.core.ids import ModelId
from gateway.explain.seen import PromptHashes
from gateway.explain.seen.block_table import BlockTable, runs
from gateway.tokenize.block_hashes import ChainHasher

asked = st.tuples(
    st.integers(0, 70), st.integers(0, 40), st.sampled_from([1, 4, 16]), st.sampled_from(["", "text"]), st.booleans()
)


@given(st.lists(asked, max_size=8))
def test_hashes_are_those_of_the_whole_chain(prompts):
    hashes, chains = PromptHashes(ChainHasher()), ChainHasher()
    for length, more, size, variant, other in prompts:
        record = request(block_size=size, where=SpaceKey("m", variant=variant))
        tokens, reply = ids(range(other, length + other)), ids(range(900, 900 + more))
        chain = chains.chain(chains.root(ModelId(""), "", variant), tokens + reply, size)
        assert hashes.of(record, tokens, reply).tolist() == list(chain.hashes)


@given(st.lists(st.integers(0, 2), max_size=20))
def test_runs_repeat_their_values(values):
    found = runs(np.array(values, np.uint64))
    assert [value for value, count in found for _ in range(count)] == values
    assert all(one[0] != other[0] for one, other in pairwise(found))


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=24, unique=True), max_size=20))
def test_blocks_overwrite_the_oldest_of_their_group(chains):
    """Two groups of eight entries: even and odd blocks."""
    table = BlockTable(16)
    groups = [[(-1, 0)] * 8, [(-1, 0)] * 8]
    for at, chain in enumerate(chains):
        table.put(chain, 1, float(at))
        blocks = [[block for _, block in group] for group in groups]
        for block in sorted(chain, key=lambda each: each not in blocks[each % 2]):
            group, before = groups[block % 2], blocks[block % 2]
            way = before.index(block) if block in before else min(range(8), key=lambda each: group[each][0])
            group[way] = (at, block)
    kept = {block for group in groups for _, block in group}
    assert {block for block in range(1, 41) if table.beginning([block])} == kept - {0}


def test_spaces_do_not_share_the_last_prompt():
    hashes = PromptHashes(ChainHasher())
    one = request(where=SpaceKey("m", variant="a"))
    other = msgspec.structs.replace(one, where=SpaceKey("m", variant="b"))
    assert hashes.of(one, ids(range(64))).tolist() != hashes.of(other, ids(range(64))).tolist()
