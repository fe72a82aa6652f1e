"""The ladder: for any input, no token is lost and none is counted twice."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reasons import REASONS, Reason
from gateway.explain.ladder import RUNGS, Ladder

LENGTHS = st.integers(-50, 5000)


def test_tokens_between_two_rungs_are_missed_for_the_upper_ones_reason():
    ladder = Ladder(100, 32)
    ladder.climb(48, Reason.STALE_INDEX)
    ladder.climb(48, Reason.LOAD_BALANCED)
    ladder.climb(64, Reason.EVICTED)
    ladder.climb(100, Reason.NEW_CONTENT)
    assert ladder.rungs == (32, 48, 48, 64, 100)
    assert ladder.missed == {Reason.STALE_INDEX: 16, Reason.EVICTED: 16, Reason.NEW_CONTENT: 36}


def test_rung_that_is_lower_than_the_one_before_takes_nothing_back():
    ladder = Ladder(100, 64)
    assert ladder.climb(16, Reason.STALE_INDEX) == 0
    assert ladder.climb(500, Reason.NEW_CONTENT) == 36
    assert ladder.rungs == (64, 64, 100)


def test_what_is_between_two_rungs_is_divided_by_where_each_reason_ends():
    ladder = Ladder(100, 16)
    ladder.climb_by(64, [(32, Reason.EVICTED), (48, Reason.REPLICA_RESTARTED), (64, Reason.EVICTED)])
    assert ladder.missed == {Reason.EVICTED: 32, Reason.REPLICA_RESTARTED: 16}


def test_last_reason_goes_to_the_rung():
    ladder = Ladder(100, 0)
    ladder.climb_by(64, [(16, Reason.EVICTED), (32, Reason.RESET)])
    assert ladder.missed == {Reason.EVICTED: 16, Reason.RESET: 48}


def test_engine_that_reports_more_than_the_prompt_has_gets_no_more():
    ladder = Ladder(100, 160)
    ladder.climb(100, Reason.NEW_CONTENT)
    assert ladder.hits == 100
    assert ladder.missed == {}


@given(
    LENGTHS,
    LENGTHS,
    st.lists(st.tuples(LENGTHS, st.lists(st.tuples(LENGTHS, st.sampled_from(Reason)), max_size=6)), max_size=8),
)
def test_hits_and_reasons_add_up_to_the_prompt(prompt, hits, climbs):
    ladder = Ladder(prompt, hits)
    for length, ends in climbs:
        ladder.climb_by(length, ends)
    ladder.climb(prompt, Reason.NEW_CONTENT)
    assert ladder.hits + sum(ladder.missed.values()) == max(prompt, 0) == ladder.rungs[-1]
    assert all(tokens > 0 for tokens in ladder.missed.values())
    assert list(ladder.rungs) == sorted(ladder.rungs)


def test_every_reason_stands_below_a_rung_in_the_order_of_the_table():
    assert list(REASONS) == list(Reason)
    places = [RUNGS.index(text.rung) for text in REASONS.values()]
    assert places == sorted(places)
    assert set(places) == set(range(1, len(RUNGS)))
