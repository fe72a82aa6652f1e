"""What was computed before, and what became of it."""

import msgspec
import pytest
from answered_requests import answered as request
from answered_requests import ids
from explained_requests import each_block

from gateway.core.explanation import CacheEvent, CacheHistory, SpaceKey
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause
from gateway.explain.seen import LossCauses, PromptHashes, SeenPrompts
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
