"""Hashes of prompts for the memories of computed blocks."""

import msgspec
from answered_requests import answered as request
from answered_requests import ids
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.explanation import SpaceKey
from gateway.core.ids import ModelId
from gateway.explain.seen import PromptHashes
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


def test_spaces_do_not_share_the_last_prompt():
    hashes = PromptHashes(ChainHasher())
    one = request(where=SpaceKey("m", variant="a"))
    other = msgspec.structs.replace(one, where=SpaceKey("m", variant="b"))
    assert hashes.of(one, ids(range(64))).tolist() != hashes.of(other, ids(range(64))).tolist()
