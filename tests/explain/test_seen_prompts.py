"""What was computed before, and what became of it."""

import msgspec
import numpy as np
import pytest
from answered_requests import answered as request
from answered_requests import ids
from explained_requests import each_block

from gateway.core.explanation import CacheEvent, CacheHistory, SpaceKey
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause
from gateway.explain.seen import LossCauses, PromptHashes, SeenPrompts
from gateway.explain.seen.block_table import BlockTable
from gateway.tokenize.block_hashes import ChainHasher

WHERE = SpaceKey("demo", "tok", "v1", "tenant:acme")


@pytest.fixture
def loss_causes():
    return LossCauses()


@pytest.fixture
def memory(loss_causes):
    return SeenPrompts(PromptHashes(ChainHasher()), loss_causes, 10_000)


def asked(at=0.0, life="a", replica="r0", where=WHERE):
    return request(at=1000.0 + at, life=life, replica=replica, where=where)


def seen(memory, tokens, **about):
    found = memory.seen(asked(**about), ids(tokens))
    return each_block(found.here), each_block(found.anywhere)


def test_nothing_is_known_of_a_prompt_that_was_never_computed(memory):
    assert seen(memory, range(100)) == ([], [])


def test_whole_blocks_of_a_prompts_beginning_are_known_and_the_last_token_never_is(memory):
    memory.remember(asked(), ids(range(100)))
    assert seen(memory, range(100), at=5) == ([Reason.EVICTED] * 6, [])
    assert seen(memory, range(96), at=5) == ([Reason.EVICTED] * 5, [])
    assert seen(memory, [*range(40), 7777, *range(41, 100)], at=5) == ([Reason.EVICTED] * 2, [])


def test_what_a_restarted_replica_had_computed_is_lost_by_that(memory, loss_causes):
    memory.remember(asked(), ids(range(64)))
    loss_causes.take(CacheEvent(CacheHistory.RESTARTED, 1010.0, "r0"))
    assert seen(memory, range(100), at=20) == ([Reason.REPLICA_RESTARTED] * 4, [])
    memory.remember(asked(at=40), ids(range(64)))
    assert seen(memory, range(100), at=50) == ([Reason.EVICTED] * 4, [])


def test_what_a_replica_that_is_gone_had_computed_is_lost_by_that_until_it_is_back(memory, loss_causes):
    memory.remember(asked(), ids(range(32)))
    loss_causes.take(CacheEvent(CacheHistory.LEFT, 1010.0, "r0"))
    assert seen(memory, range(100), at=20) == ([Reason.REPLICA_LEFT] * 2, [])
    loss_causes.take(CacheEvent(CacheHistory.RETURNED, 1030.0, "r0"))
    assert seen(memory, range(100), at=40) == ([Reason.EVICTED] * 2, [])


@pytest.mark.parametrize("cause", [ResetCause.IDLE_TTL, ResetCause.MAX_AGE, ResetCause.CROWDED_OUT])
def test_what_was_computed_in_an_epoch_whose_time_is_over_is_expired(memory, loss_causes, cause):
    memory.remember(asked(life="a"), ids(range(32)))
    loss_causes.take(CacheEvent(CacheHistory.LIFE_ENDED, 1010.0, "a", cause))
    assert seen(memory, range(100), life="b") == ([Reason.EXPIRED] * 2, [])


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ResetCause.MANUAL, Reason.RESET),
        (ResetCause.CONFIGURATION, Reason.RESET),
        (ResetCause.MODEL_UPDATE, Reason.MODEL_UPDATED),
        (ResetCause.TEMPLATE_CHANGED, Reason.TEMPLATE_CHANGED),
    ],
)
def test_what_was_computed_before_a_reset_is_seen_but_not_here(memory, loss_causes, cause, reason):
    memory.remember(asked(life="a"), ids(range(48)))
    loss_causes.take(CacheEvent(CacheHistory.LIFE_ENDED, 1010.0, "a", cause))
    assert seen(memory, range(100), life="b") == ([], [reason] * 3)


def test_blocks_behind_those_of_an_earlier_epoch_are_not_counted_as_seen_here(memory, loss_causes):
    memory.remember(asked(life="a"), ids(range(64)))
    memory.remember(asked(life="b"), ids(range(32)))
    loss_causes.take(CacheEvent(CacheHistory.LIFE_ENDED, 1010.0, "a", ResetCause.MANUAL))
    assert seen(memory, range(100), life="b") == ([Reason.EVICTED] * 2, [Reason.RESET] * 2)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"owner": "tenant:globex"}, Reason.TENANT_ISOLATED),
        ({"scope": "de"}, Reason.SCOPE_ISOLATED),
        ({"region": "eu"}, Reason.SCOPE_ISOLATED),
        ({"narrowed": "ab12"}, Reason.SCOPE_ISOLATED),
        ({"adapter": "sql"}, Reason.ADAPTER_CHANGED),
        ({"context_limit": 4096}, Reason.MODEL_UPDATED),
        ({"template": "v2"}, Reason.TEMPLATE_CHANGED),
        ({"tokenizer": "tok2"}, Reason.TOKENIZER_CHANGED),
    ],
)
def test_what_was_computed_in_another_space_gives_the_difference(memory, other, reason):
    memory.remember(asked(life="x", where=msgspec.structs.replace(WHERE, **other)), ids(range(64)))
    assert seen(memory, range(100)) == ([], [reason] * 4)


@pytest.mark.parametrize("other", [{"model": "demo-2"}, {"adapter": "sql", "model": "demo-sql"}])
def test_what_another_model_computed_was_never_computed(memory, other):
    memory.remember(asked(life="x", where=msgspec.structs.replace(WHERE, **other)), ids(range(64)))
    assert seen(memory, range(100)) == ([], [])


def test_owners_own_prompts_are_sent_before_those_of_others(memory):
    memory.remember(asked(life="x", where=msgspec.structs.replace(WHERE, scope="de")), ids(range(32)))
    memory.remember(asked(life="y", where=msgspec.structs.replace(WHERE, owner="tenant:globex")), ids(range(64)))
    assert seen(memory, range(100)) == ([], [Reason.SCOPE_ISOLATED] * 2 + [Reason.TENANT_ISOLATED] * 2)


def test_stand_ins_are_never_compared_with_token_ids(memory):
    memory.remember(asked(where=msgspec.structs.replace(WHERE, variant="text")), ids(range(64)))
    assert seen(memory, range(100)) == ([], [])


def test_table_never_grows_and_forgets_the_oldest_first():
    table = BlockTable(1000)
    before = table.nbytes
    old, new = range(1, 600), range(10_000, 10_600)
    table.put(old, 1, 0.0)
    for second in range(1, 40):
        table.put(range(100_000 * second, 100_000 * second + 500), 2, float(second))
    table.put(new, 3, 50.0)
    assert table.nbytes == before
    assert not table.beginning(old)
    assert [(run.place, run.blocks) for run in table.beginning(new)] == [(3, 600)]
    assert table.beginning(new)[0].at == 50.0


def test_table_takes_as_much_memory_as_its_blocks_need_and_keeps_them_when_it_is_doubled():
    table, chance = BlockTable(200_000), np.random.default_rng(5)
    small = table.nbytes
    chains = [chance.integers(1, 2**64, 500, np.uint64) for _ in range(100)]
    for place, chain in enumerate(chains):
        table.put(chain, place, float(place))
    kept = sum(table.known([block], place, 0.0) for place, chain in enumerate(chains[:10]) for block in chain)
    assert kept >= 4990
    assert small <= 2**16
    assert table.nbytes <= 128 * 50_000
    for number in range(10):
        table.put(chance.integers(1, 2**64, 100_000, np.uint64), number, 1000.0)
    assert table.nbytes == 2 * 16 * 2**17


def test_what_came_first_of_all_is_not_taken_for_an_empty_place():
    table = BlockTable(1000)
    table.put([5], 0, 0.0)
    for more in range(1, 4):
        table.put([5 + 4096 * more], 1, 3.0)
    assert [run.place for run in table.beginning([5])] == [0]


def test_beginning_used_again_later_counts_as_of_then():
    table = BlockTable(1000)
    table.put([1, 2, 3], 1, 0.0)
    table.put([1, 2, 9], 1, 100.0)
    assert [(run.at, run.blocks) for run in table.beginning([1, 2, 3])] == [(100.0, 2), (0.0, 1)]


def hashes(*blocks):
    return np.array(blocks, np.uint64)


def test_a_chain_that_was_looked_up_is_written_where_its_blocks_are_then():
    table = BlockTable(8)
    chain, others = hashes(1, 2, 3), hashes(*range(4, 40))
    table.put(chain, 1, 0.0)
    assert [run.blocks for run in table.beginning(chain)] == [3]
    assert [run.blocks for run in table.beginning(chain, 1, 2)] == [1]
    table.put(others, 2, 5.0)  # overwrites all of them
    assert not table.beginning(chain)
    table.put(chain, 3, 9.0)
    assert [(run.place, run.blocks) for run in table.beginning(chain)] == [(3, 3)]


def test_marks_of_a_block_are_collected():
    table = BlockTable(1000)
    assert table.mark(hashes(1, 2, 3), 0b001, at=10, since=0).tolist() == [0, 0, 0]
    assert table.mark(hashes(2, 3, 4), 0b100, at=20, since=0).tolist() == [0b001, 0b001, 0]
    assert table.mark(hashes(1, 2, 3, 4, 5), 0, at=30, since=0).tolist() == [0b001, 0b101, 0b101, 0b100, 0]


def test_marks_that_are_too_old_do_not_count_and_do_not_come_back():
    table = BlockTable(1000)
    table.mark(hashes(1, 2), 0b001, at=10, since=0)
    assert table.mark(hashes(1), 0b001, at=20, since=10).tolist() == [0b001]
    assert table.mark(hashes(1, 2), 0b010, at=30, since=11).tolist() == [0b001, 0]
    assert table.mark(hashes(1, 2), 0, at=30, since=11).tolist() == [0b011, 0b010]


def test_a_full_table_forgets_the_marks_that_were_not_renewed_for_longest():
    table = BlockTable(8)
    for at in range(1000):
        table.mark(hashes(at), 1, at=at, since=0)
        table.mark(hashes(7), 2, at=at, since=0)
    assert table.mark(hashes(7, 999, 0), 0, at=1000, since=0).tolist() == [0b11, 1, 0]


def test_known_blocks_end_at_another_place_an_older_time_and_a_missing_block():
    table = BlockTable(1000)
    table.put([1, 2, 3], 1, 10.0)
    assert table.known([1, 2, 3], 1, 10.0) == 3
    assert table.known([1, 2, 3], 1, 11.0) == 0
    assert table.known([1, 2, 9, 3], 1, 0.0) == 2
    table.put([2], 2, 12.0)
    assert table.known([1, 2, 3], 1, 0.0) == 1
    assert table.known([], 1, 0.0) == 0
