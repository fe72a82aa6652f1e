import tracemalloc
from array import array

import pytest

from gateway.core.block_chain import BlockChain
from gateway.core.ids import ReplicaId, Target
from gateway.index.predicted import PredictedIndex
from gateway.tokenize.block_hashes import ChainHasher

A, B = Target(ReplicaId("a")), Target(ReplicaId("b"))
HASHER = ChainHasher()


def prompt(*parts):
    """Chain of a prompt made of runs of equal tokens: ("s", 64) is 64 tokens of one kind."""
    ids = [ord(name[0]) * 1000 + n for name, length in parts for n in range(length)]
    return [HASHER.chain(1, array("I", ids).tobytes(), 16)]


def run(index, chains, target=A, cached=None, replies=()):
    lease = index.begin(chains, target, 0.0)
    index.complete(lease, cached, replies or chains)
    return lease.held_tokens


def held(index, chains, target, now):
    tree = index.trees.get(target)
    if tree is None:
        return 0
    return sum(tree.find(chain.hashes, chain.reusable_blocks, now)[0] * chain.block_size for chain in chains)


@pytest.fixture
def index():
    index = PredictedIndex(default_blocks=1000, speculative_ttl_seconds=30.0)
    index.set_capacity(A, 20)
    index.set_capacity(B, 20)
    return index


def test_prompt_is_held_where_it_ran_and_nowhere_else(index):
    run(index, prompt(("s", 64)))
    assert held(index, prompt(("s", 64), ("q", 5)), A, 1.0) == 64
    assert held(index, prompt(("s", 64)), A, 1.0) == 48
    assert held(index, prompt(("s", 64)), B, 1.0) == 0
    assert held(index, prompt(("s", 64)), Target(ReplicaId("a"), rank=1), 1.0) == 0


def test_burst_sees_the_prompt_right_after_dispatch(index):
    lease = index.begin(prompt(("s", 65)), A, 0.0)
    assert held(index, prompt(("s", 65)), A, 0.1) == 64
    index.abandon(lease)
    assert held(index, prompt(("s", 65)), A, 0.2) == 0


def test_reply_extends_the_prediction(index):
    run(index, prompt(("s", 64)), replies=prompt(("s", 64), ("r", 40)))
    assert held(index, prompt(("s", 64), ("r", 40), ("q", 20)), A, 1.0) == 96


def test_more_generated_tokens_than_an_engine_can_hold_cost_no_more_memory_than_its_blocks(index):
    run(index, prompt(("s", 64)))
    chains = prompt(("s", 64))
    lease = index.begin(chains, A, 0.0)
    tracemalloc.start()
    index.complete(lease, None, [BlockChain(chains[0].hashes, 16, 2**24)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index.blocks(A) == 20
    assert peak < 100_000


def test_report_below_the_prediction_forgets_what_is_older_than_the_loss(index):
    run(index, prompt(("o", 65)))
    run(index, prompt(("s", 65)))
    run(index, prompt(("y", 65)))
    assert run(index, prompt(("s", 65)), cached=16) == 64
    assert held(index, prompt(("o", 65)), A, 1.0) == 0
    assert held(index, prompt(("y", 65)), A, 1.0) == 64
    assert held(index, prompt(("s", 65)), A, 1.0) == 64


def test_report_of_nothing_changes_nothing(index):
    run(index, prompt(("o", 65)))
    run(index, prompt(("s", 65)))
    run(index, prompt(("s", 65)), cached=None)
    assert held(index, prompt(("o", 65)), A, 1.0) == 64


def test_loss_of_blocks_that_never_were_computed_says_nothing_about_others(index):
    run(index, prompt(("o", 65)))
    first = index.begin(prompt(("s", 65)), A, 0.0)
    second = index.begin(prompt(("s", 65)), A, 0.0)
    index.complete(second, 0, ())
    index.complete(first, 0, ())
    assert held(index, prompt(("o", 65)), A, 1.0) == 64


def test_removed_replica_is_empty_and_running_requests_end_harmlessly(index):
    run(index, prompt(("s", 65)))
    lease = index.begin(prompt(("t", 65)), A, 0.0)
    index.remove(A)
    assert index.blocks(A) == 0
    index.complete(lease, 0, ())
    assert index.blocks(A) == 0
    for letter in "abcdefgh":
        run(index, prompt((letter, 65)))
    # Not 20: the last prompt ran with an unfinished block, which left its place free.
    assert index.blocks(A) == 19


def test_several_prompts_of_one_request_are_summed_up(index):
    both = prompt(("s", 65)) + prompt(("t", 65))
    run(index, both)
    assert held(index, both, A, 1.0) == 128


def test_several_prompts_of_different_lengths_take_only_their_own_tokens(index):
    both = prompt(("s", 33)) + prompt(("t", 129))
    run(index, both)
    assert index.blocks(A) == 2 + 8
