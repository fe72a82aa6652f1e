"""The index as requests and events use it: events where they are complete, predictions where not."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index.engine_model import Engine, Prompt
from index.event_index import HASHER, MODEL, WORTH, Blocks, chain_of

from gateway.core.block_chain import BlockChain
from gateway.core.ids import ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared, BlockStored, FeedState, IndexSource, Medium
from gateway.core.ports import Holding
from gateway.index import ReplicaIndex

A, B = Target(ReplicaId("a")), Target(ReplicaId("b"), 1)
SIZE = 16


@pytest.fixture
def index():
    index = new_index()
    for target in (A, B):
        index.set_capacity(target, 100)
    return index


def new_index():
    return ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)


def prompt(*letters, tail=1):
    """A prompt with a block for each letter and ``tail`` tokens more."""
    return Prompt((*(ord(letter) for word in letters for letter in word for _ in range(SIZE)), *([9] * tail)))


def held(index, request, target=A, now=0.0):
    (holding,) = index.holdings([chain_of(request, SIZE)], [target], now)
    return holding.tokens // SIZE


def ask(index, request, target=A, now=0.0):
    return index.begin([chain_of(request, SIZE)], target, now)


def live(index, *targets):
    for target in targets or (A, B):
        index.set_feed(target, FeedState.LIVE)


# Block sizes.


def test_a_change_of_a_block_size_is_reported_at_once():
    found = []
    index = ReplicaIndex(
        HASHER,
        lambda replica: MODEL,
        WORTH,
        default_blocks=1000,
        speculative_ttl_seconds=30.0,
        on_block_size=lambda: found.append(index.block_size(A)),
    )
    assert index.block_size(A) is None
    for size in (16, 32):
        blocks = Blocks(index, A)
        blocks.size = size
        blocks.store("ab")
        blocks.store("xy")
        index.apply(A, AllBlocksCleared())
    index.forget(A.replica)
    assert found == [16, None, 32, None]


# Where the prediction comes from.


def test_events_decide_while_they_are_complete(index):
    index.complete(ask(index, prompt("abc")), None, [], 0.0)
    live(index)
    assert held(index, prompt("abc")) == 0
    Blocks(index, A).store("xy")
    assert held(index, prompt("xy")) == 2
    assert held(index, prompt("xy"), target=B) == 0


@pytest.mark.parametrize("state", [FeedState.OFF, FeedState.CONNECTING, FeedState.SILENT, None])
def test_predictions_decide_while_events_cannot_be_trusted(index, state):
    live(index)
    Blocks(index, A).store("xy")
    index.complete(ask(index, prompt("abc")), None, [], 0.0)
    if state is None:
        index.set_feed(A, FeedState.OFF)
        index.remove(A)
        assert held(index, prompt("abc")) == held(index, prompt("xy")) == 0
        return
    index.set_feed(A, state)
    assert held(index, prompt("abc"), now=100.0) == 3
    assert held(index, prompt("xy")) == 0
    assert index.state(A).source is IndexSource.PREDICTED
    assert index.state(A).digest is None
    live(index)
    assert held(index, prompt("xy")) == 2
    assert held(index, prompt("abc"), now=100.0) == 0


def test_the_better_of_both_counts_while_events_are_incomplete(index):
    index.set_feed(A, FeedState.REBUILDING)
    index.complete(ask(index, prompt("abc")), None, [], 0.0)
    Blocks(index, A).store("xyz")
    Blocks(index, A).store("a")
    assert held(index, prompt("abc"), now=100.0) == 3
    assert held(index, prompt("xyz"), now=100.0) == 3
    state = index.state(A)
    assert (state.source, state.digest is None) == (IndexSource.PREDICTED, False)


def test_predictions_go_on_beside_events_and_take_over_when_they_are_lost(index):
    live(index)
    lease = ask(index, prompt("abc"))
    index.computed(lease)
    index.complete(lease, 0, [chain_of(prompt("abcd"), SIZE)], 0.0)
    assert held(index, prompt("abcd"), now=100.0) == 0
    index.clear(A)
    index.set_feed(A, FeedState.CONNECTING)
    assert held(index, prompt("abcd"), now=100.0) == 4


def test_cleared_cache_is_empty_for_predictions_too(index):
    live(index)
    index.complete(ask(index, prompt("abc")), None, [], 0.0)
    Blocks(index, A).store("abc")
    index.apply(A, AllBlocksCleared())
    assert held(index, prompt("abc")) == 0
    index.set_feed(A, FeedState.SILENT)
    assert held(index, prompt("abc"), now=100.0) == 0


def test_feed_that_forgets_leaves_the_predictions(index):
    live(index)
    index.complete(ask(index, prompt("abc")), None, [], 0.0)
    Blocks(index, A).store("abc")
    index.clear(A)
    assert held(index, prompt("abc")) == 0
    index.set_feed(A, FeedState.REBUILDING)
    assert held(index, prompt("abc"), now=100.0) == 3


@pytest.mark.parametrize("state", list(FeedState))
def test_target_without_prefix_caching_holds_nothing(index, state):
    index.set_feed(A, state)
    Blocks(index, A).store("abc")
    index.complete(ask(index, prompt("abc")), None, [], 0.0)
    index.set_capacity(A, 100, caching=False)
    assert held(index, prompt("abc")) == 0
    assert held(index, prompt("abc"), target=B) == 0
    index.set_capacity(A, 100, caching=True)
    assert held(index, prompt("abc")) == 3


def test_source_and_digest_of_a_target(index):
    assert index.state(A).source is IndexSource.PREDICTED
    assert index.state(A).digest is None
    live(index, A)
    assert index.state(A) == (index.state(A).__class__)(IndexSource.EVENTS, 0, 0)
    Blocks(index, A).store("ab")
    one = index.state(A)
    assert (one.source, one.blocks) == (IndexSource.EVENTS, 2)
    live(index, B)
    Blocks(index, B).store("ab")
    assert index.state(B).digest == one.digest != 0
    Blocks(index, B).store("abc", start=2)
    assert index.state(B).digest != one.digest


def test_holdings_come_in_the_order_of_the_targets_and_unknown_ones_hold_nothing(index):
    live(index)
    Blocks(index, A).store("ab")
    Blocks(index, B).store("a")
    unknown = Target(ReplicaId("c"))
    chain = chain_of(prompt("ab"), SIZE)
    tokens = [holding.tokens for holding in index.holdings([chain], [B, unknown, A], 0.0)]
    assert tokens == [16, 0, 32]
    assert index.holdings([], [A], 0.0) == [Holding(0, 0)]
    assert index.holdings([BlockChain([], SIZE, 0)], [A, B], 0.0) == [Holding(0, 0)] * 2


def test_prompts_of_one_request_are_summed_up_and_slow_blocks_are_worth_less(index):
    live(index)
    Blocks(index, A).store("ab")
    Blocks(index, A).store("xy", medium=Medium.CPU)
    chains = [chain_of(prompt("ab"), SIZE), chain_of(prompt("xy"), SIZE), chain_of(prompt("q"), SIZE)]
    assert index.holdings(chains, [A], 0.0) == [Holding(64, 32 + 32 * WORTH[Medium.CPU])]


def test_blocks_of_another_size_than_the_chain_are_not_compared(index):
    live(index)
    Blocks(index, A).store("abcd")
    (holding,) = index.holdings([chain_of(prompt("abcd"), 32)], [A], 0.0)
    assert holding.tokens == 0


# What is on its way.


def test_burst_of_one_new_prefix_stays_together_before_any_event(index):
    live(index)
    assert held(index, prompt("abcd")) == 0
    leases = [ask(index, prompt("abcd")) for _ in range(3)]
    assert [lease.held_tokens for lease in leases] == [0, 64, 64]
    assert held(index, prompt("abcd")) == 4
    assert held(index, prompt("abcd"), target=B) == 0
    assert held(index, prompt("abx")) == 2


def test_request_that_never_ran_takes_back_only_what_it_brought(index):
    live(index)
    Blocks(index, A).store("a")
    one, other = ask(index, prompt("abc")), ask(index, prompt("abcd"))
    index.abandon(one)
    assert held(index, prompt("abcd")) == 4
    index.abandon(other)
    assert held(index, prompt("abcd")) == 1


def test_answered_request_counts_a_little_longer_and_with_its_answer(index):
    live(index)
    lease = ask(index, prompt("ab"), now=10.0)
    index.complete(lease, 0, [chain_of(prompt("abcd"), SIZE)], 20.0)
    assert held(index, prompt("abcd"), now=21.0) == 4
    assert held(index, prompt("abcd"), now=30.0) == 0


def test_event_makes_it_last(index):
    live(index)
    lease = ask(index, prompt("ab"))
    Blocks(index, A).store("ab")
    index.complete(lease, 0, [], 0.0)
    assert held(index, prompt("ab"), now=100.0) == 2


def test_event_that_takes_a_block_away_ends_what_was_fresh_of_it(index):
    live(index)
    blocks = Blocks(index, A)
    ask(index, prompt("abc"))
    blocks.store("abc")
    blocks.remove("abc", "ab")
    assert held(index, prompt("abc")) == 1


def test_copy_that_goes_leaves_what_is_fresh(index):
    live(index)
    blocks = Blocks(index, A)
    blocks.store("ab")
    blocks.store("ab", start=1)
    ask(index, prompt("abc"))
    blocks.remove("ab")
    assert held(index, prompt("abc")) == 3


def test_all_cleared_is_also_what_was_on_its_way(index):
    live(index)
    lease = ask(index, prompt("ab"))
    index.apply(A, AllBlocksCleared())
    assert held(index, prompt("ab")) == 0
    index.complete(lease, 0, [], 1.0)
    assert held(index, prompt("ab"), now=100.0) == 0


def test_several_prompts_are_each_on_their_way(index):
    live(index)
    chains = [chain_of(prompt("ab"), SIZE), chain_of(prompt("wxyz"), SIZE)]
    lease = index.begin(chains, A, 0.0)
    assert index.holdings(chains, [A], 0.0)[0].tokens == 96
    index.complete(lease, 0, chains, 0.0)
    assert index.holdings(chains, [A], 1.0)[0].tokens == 96
    assert index.holdings(chains, [A], 10.0)[0].tokens == 0


@given(
    order=st.lists(
        st.tuples(
            st.sampled_from(["ask", "event", "complete", "abandon", "wait"]), st.text("ab", min_size=1, max_size=4)
        ),
        max_size=30,
    )
)
def test_nothing_stays_fresh_when_all_requests_are_over(order):
    index = new_index()
    live(index, A)
    blocks, stored, leases, now = Blocks(index, A), set(), [], 0.0
    for what, path in order:
        match what:
            case "ask":
                leases.append(ask(index, prompt(path), now=now))
                assert held(index, prompt(path), now=now) == len(path)
            case "event":
                blocks.store(path)
                stored |= {path[: n + 1] for n in range(len(path))}
            case "complete" if leases:
                index.complete(leases.pop(0), None, [chain_of(prompt(path), SIZE)], now)
            case "abandon" if leases:
                index.abandon(leases.pop(0))
            case "wait":
                now += 1.0
    for lease in leases:
        index.complete(lease, None, [], now)
    for path in [path for _, path in order]:
        known = next((n for n in range(len(path)) if path[: n + 1] not in stored), len(path))
        assert held(index, prompt(path), now=now + 2.0) == known


# Whether all is accounted for.


def fill(index, engine, rounds=30):
    """Requests until the engine's cache is full; the index is updated."""
    for number in range(rounds):
        if engine.begin(Prompt(tuple(range(number * 7, number * 7 + SIZE * 5)))):
            engine.end(engine.running[0])
        for event in engine.take_events():
            index.apply(A, event)


def test_part_is_complete_when_it_accounts_for_the_whole_cache(index):
    engine = Engine(101, SIZE)
    index.set_capacity(A, engine.usable)
    assert not index.is_complete(A)
    fill(index, engine, rounds=5)
    assert not index.is_complete(A)
    fill(index, engine)
    assert index.is_complete(A)
    assert not index.is_complete(B)
    index.clear(A)
    assert not index.is_complete(A)


def test_part_that_missed_the_beginning_is_complete_once_the_engine_has_replaced_everything(index):
    engine = Engine(101, SIZE)
    index.set_capacity(A, engine.usable)
    fill(index, engine, rounds=40)
    index.clear(A)
    index.set_feed(A, FeedState.REBUILDING)
    complete = []
    for number in range(40):
        engine.begin(Prompt(tuple(range(5000 + number * 7, 5000 + number * 7 + SIZE * 5))))
        engine.end(engine.running[0])
        for event in engine.take_events():
            index.apply(A, event)
        if index.is_complete(A):
            complete.append(number)
            copies = sum(engine.copies().values())
            assert index.state(A).blocks >= 0.99 * copies
    assert complete
    assert min(complete) >= 15


def test_part_with_blocks_aside_is_not_complete(index):
    engine = Engine(101, SIZE)
    index.set_capacity(A, 90)
    fill(index, engine)
    assert index.is_complete(A)
    Blocks(index, A).store("xa", start=1)
    assert not index.is_complete(A)


def test_part_without_known_capacity_is_never_complete():
    index = new_index()
    fill(index, Engine(101, SIZE))
    assert not index.is_complete(A)


def test_pages_of_one_token_are_not_taken_for_blocks(index):
    index.set_capacity(A, 4)
    tokens = array("I", range(64)).tobytes()
    index.apply(A, BlockStored(list(range(1, 41)), None, tokens[: 40 * 4], 1))
    assert not index.is_complete(A)
    index.apply(A, BlockStored(list(range(41, 65)), 40, tokens[40 * 4 :], 1))
    assert index.is_complete(A)


def test_more_copies_than_the_cache_can_hold_are_impossible(index):
    index.set_capacity(A, 4)
    tokens = array("I", range(16)).tobytes()
    for copies in range(1, 7):
        index.apply(A, BlockStored([1], None, tokens, 16))
        assert index.is_impossible(A) == (copies > 4)
    index.set_capacity(A, None)
    assert not index.is_impossible(A)
