"""What the index of token ids finds."""

import random
from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.explain.reference.token_index import TokenIndex, beginnings, passages, sampled
from gateway.tokenize.block_hashes import ChainHasher

MIB = 2**20
OWNER = 7


def ids(numbers):
    return array("I", numbers).tobytes()


def chain(prompt, block_size=16):
    return array("Q", ChainHasher().chain(1, prompt, block_size).hashes)


def drawn(seed, count):
    return random.Random(seed).choices(range(150_000), k=count)


@given(st.integers(0, 200), st.integers(0, 60), st.integers(0, 200))
def test_the_longest_common_beginning_is_found_in_steps(common, own, others):
    shared = drawn(0, common)
    kept, asked = ids(shared + drawn(1, others)), ids(shared + drawn(2, own))
    index = TokenIndex(MIB)
    index.add(beginnings(chain(kept), OWNER), 3)
    found = index.find(beginnings(chain(asked), OWNER))
    assert found.tolist() == [3] * (common // 16) + [-1] * ((common + own) // 16 - common // 16)


def test_of_small_blocks_some_are_left_out():
    prompt = ids(drawn(0, 100))
    assert len(beginnings(chain(prompt, 1), OWNER, 16)) == 100 // 16
    shorter, longer = (beginnings(chain(prompt[: 4 * count], 8), OWNER, 2).tolist() for count in (50, 100))
    assert longer[:3] == shorter


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 40))
def test_passages_are_found_wherever_they_stand(in_front, in_front_there, length):
    run = drawn(0, length)
    kept, asked = ids(drawn(1, in_front_there) + run), ids(drawn(2, in_front) + run + drawn(3, 5))
    index = TokenIndex(MIB)
    index.add(passages(kept, OWNER), 5)
    assert np.count_nonzero(index.find(passages(asked, OWNER)) == 5) == max(length - 7, 0)


def test_what_one_owner_wrote_is_not_found_by_another():
    prompt, index = ids(drawn(0, 400)), TokenIndex(MIB)
    index.add(beginnings(chain(prompt), 1), 0)
    index.add(passages(prompt, 1), 0)
    assert set(index.find(beginnings(chain(prompt), 2))) == set(index.find(passages(prompt, 2))) == {-1}


def test_the_latest_request_with_a_passage_is_found():
    prompt, index = ids(drawn(0, 100)), TokenIndex(MIB)
    for number in (4, 9):
        index.add(passages(prompt, OWNER), number)
    assert set(index.find(passages(prompt, OWNER))) == {9}


def test_of_a_long_text_the_same_passages_are_written_and_looked_up():
    long = drawn(0, 5_000)
    runs = sampled(passages(ids(drawn(1, 300) + long), OWNER))
    assert 1_000 < len(runs) < 1_700
    index = TokenIndex(MIB)
    index.add(runs, 2)
    asked = sampled(passages(ids(drawn(2, 77) + long), OWNER))
    assert np.count_nonzero(index.find(asked) == 2) > 0.9 * len(asked)


def test_memory_is_fixed_and_the_oldest_is_lost():
    index = TokenIndex(64 * 1024)
    assert index.nbytes <= 64 * 1024
    for number in range(100):
        index.add(passages(ids(drawn(number, 500)), OWNER), number)
    assert index.nbytes <= 64 * 1024
    assert np.count_nonzero(index.find(passages(ids(drawn(99, 500)), OWNER)) == 99) > 450
    assert np.count_nonzero(index.find(passages(ids(drawn(0, 500)), OWNER)) == 0) < 50
