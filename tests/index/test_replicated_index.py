"""What one gateway's requests do to its index, they do to those of others, as soon as these receive it."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import FeedState, Medium
from gateway.index import ReplicaIndex, ReplicatedIndex
from gateway.index import replicated_index as shared_module
from gateway.tokenize.block_hashes import ChainHasher

TARGETS = [Target(ReplicaId("a")), Target(ReplicaId("b"), 1)]
A = TARGETS[0]
HASHER = ChainHasher()
SIZE = 16


def prompt(letters, tail=1):
    """A chain with a block for each letter, and ``tail`` tokens behind."""
    ids = [ord(letter) for letter in letters for _ in range(SIZE)] + [9] * tail
    return HASHER.chain(1, array("I", ids).tobytes(), SIZE)


class Side:
    """One gateway's index."""

    def __init__(self, feed=None):
        self.inner = ReplicaIndex(
            HASHER, lambda _: ModelId("m"), {Medium.GPU: 1.0}, default_blocks=60, speculative_ttl_seconds=30.0
        )
        self.index = ReplicatedIndex(self.inner, lambda target: target in TARGETS)
        if feed is not None:
            for target in TARGETS:
                self.inner.set_feed(target, feed)

    def receive_from(self, other, now=0.0):
        reported = other.index.changes(now, everything=False)
        if reported is not None:
            self.index.receive("peer", reported, now)

    def held(self, letters, target=A, now=0.0):
        (holding,) = self.index.holdings([prompt(letters)], [target], now)
        return holding.tokens // SIZE


@pytest.mark.parametrize("feed", [None, FeedState.LIVE, FeedState.REBUILDING])
def test_a_prompt_is_expected_from_when_it_is_sent_until_it_fails(feed):
    ours, theirs = Side(feed), Side(feed)
    lease = ours.index.begin([prompt("abc")], A, 0.0)
    assert theirs.held("abc") == 0
    theirs.receive_from(ours)
    assert theirs.held("abc") == ours.held("abc") == 3
    ours.index.abandon(lease)
    theirs.receive_from(ours)
    assert theirs.held("abc") == ours.held("abc") == 0


def test_an_answer_is_expected_with_its_prompt_and_only_what_is_new_of_it_travels():
    ours, theirs = Side(), Side()
    question, answer = prompt("abcdefghij" * 10), prompt("abcdefghij" * 10 + "xy")
    lease = ours.index.begin([question], A, 0.0)
    first = ours.index.changes(0.0, everything=False)
    ours.index.computed(lease)
    ours.index.complete(lease, 0, [answer], 0.0)
    second = ours.index.changes(0.0, everything=False)
    theirs.index.receive("peer", first, 0.0)
    theirs.index.receive("peer", second, 0.0)
    assert theirs.held("abcdefghij" * 10 + "xy") == 102 - 42 == 60  # all that a target can hold
    assert len(msgspec.msgpack.encode(first)) > 8 * 100
    assert len(msgspec.msgpack.encode(second)) < 60


def test_what_an_engine_did_not_have_after_all_is_forgotten_by_all():
    ours, theirs = Side(), Side()
    for cached in (0, SIZE):
        lease = ours.index.begin([prompt("abc")], A, 0.0)
        ours.index.complete(lease, 0, [prompt("abc")], 0.0)
        lease = ours.index.begin([prompt("xyz")], A, 0.0)
        ours.index.complete(lease, 0, [prompt("xyz")], 0.0)
        lease = ours.index.begin([prompt("xyz")], A, 0.0)
        ours.index.complete(lease, cached, [prompt("xyz")], 0.0)
        theirs.receive_from(ours)
        assert theirs.held("abc") == ours.held("abc") == 0
        assert theirs.held("xyz") == ours.held("xyz") == 3


def test_what_is_not_computed_in_time_counts_no_more():
    ours, theirs = Side(), Side()
    ours.index.begin([prompt("abc")], A, 0.0)
    theirs.receive_from(ours)
    assert theirs.held("abc", now=29.0) == 3
    assert theirs.held("abc", now=31.0) == 0


@pytest.mark.parametrize(("computed", "expected"), [(True, 3), (False, 0)])
def test_of_a_gateway_that_is_lost_only_what_was_computed_stays(computed, expected):
    ours, theirs = Side(FeedState.OFF), Side(FeedState.OFF)
    lease = ours.index.begin([prompt("abc")], A, 0.0)
    if computed:
        ours.index.computed(lease)
    theirs.receive_from(ours)
    theirs.index.missed("peer", 1.0)
    theirs.index.gone("peer", 1.0)
    assert theirs.held("abc", now=100.0) == expected
    # Later messages about its requests match none that is known.
    ours.index.complete(lease, 0, [prompt("abc")], 2.0)
    theirs.receive_from(ours)


def test_targets_that_are_not_known_here_are_passed_over():
    ours, theirs = Side(), Side()
    lease = ours.index.begin([prompt("abc")], Target(ReplicaId("elsewhere")), 0.0)
    theirs.receive_from(ours)
    ours.index.complete(lease, 0, [prompt("abc")], 0.0)
    theirs.receive_from(ours)
    assert theirs.inner.state(Target(ReplicaId("elsewhere"))).blocks == 0


def test_what_is_not_taken_is_bounded(monkeypatch):
    monkeypatch.setattr(shared_module, "_MAX_BLOCKS", 50)
    ours, theirs = Side(), Side()
    leases = [ours.index.begin([prompt("abcd")], A, 0.0) for _ in range(30)]
    for lease in leases:
        ours.index.computed(lease)
        ours.index.complete(lease, 0, [prompt("abcd")], 0.0)
    reported = ours.index.changes(0.0, everything=False)
    assert len(reported.steps) == 3 * 10
    theirs.index.receive("peer", reported, 0.0)
    ours.index.begin([prompt("abcd")], A, 0.0)  # and now there is space again
    assert ours.index.changes(0.0, everything=False) is not None


LETTERS = st.text(alphabet="abc", min_size=0, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), LETTERS, st.integers(0, 1)),
        st.tuples(st.just("computed"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("complete"), st.integers(0, 5), st.integers(0, 40)),
        st.tuples(st.just("abandon"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("hear"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([None, FeedState.LIVE]))
def test_both_expect_the_same_once_all_is_received(steps, feed):
    ours, theirs = Side(feed), Side(feed)
    leases = []
    for what, first, second in steps:
        if what == "begin":
            chain = prompt(first)
            leases.append((ours.index.begin([chain], TARGETS[second], 0.0), first))
        elif what == "hear":
            theirs.receive_from(ours)
        elif leases and what == "computed":
            ours.index.computed(leases[first % len(leases)][0])
        elif leases:
            lease, letters = leases.pop(first % len(leases))
            if what == "complete":
                ours.index.complete(
                    lease, None if second % 3 == 0 else second, [prompt(letters + "xy"[: second % 3])], 0.0
                )
            else:
                ours.index.abandon(lease)
    theirs.receive_from(ours)
    for target in TARGETS:
        for letters in ("a", "b", "c", "ab", "abc", "aabc", "cab", "bax", "cxy"):
            assert theirs.held(letters, target) == ours.held(letters, target)
        assert theirs.inner.state(target).blocks == ours.inner.state(target).blocks
