"""What another gateway publishes_seen of the prompts that were computed for it, without their text."""

import msgspec
import orjson
import pytest
from answered_requests import answered as request
from answered_requests import ids
from explained_requests import each_block
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.explanation import CacheEvent, CacheHistory, ReplicaPrefix, ReplyChoice, SpaceKey
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause
from gateway.explain.diff import find_difference
from gateway.explain.explainer import Explainer
from gateway.explain.reference import Families, References
from gateway.explain.seen import LossCauses, PromptHashes, SeenPrompts, SeenPublisher
from gateway.explain.seen import seen_prompts as memory
from gateway.explain.seen.seen_messages import decode_seen
from gateway.tokenize.block_hashes import ChainHasher

WHERE = SpaceKey("demo", "tok", "v1", "tenant:acme")


class Gateway:
    """What one gateway remembers."""

    def __init__(self, name):
        self.teller = SeenPublisher(name.encode())
        self.loss_causes = LossCauses()
        self.memory = SeenPrompts(PromptHashes(ChainHasher()), self.loss_causes, 10_000, self.teller)

    def computed(self, tokens, at=0.0, **about):
        self.memory.remember(asked(at, **about), ids(tokens))

    def seen(self, tokens, at=5.0, **about):
        found = self.memory.seen(asked(at, **about), ids(tokens))
        return each_block(found.here), each_block(found.anywhere)

    def receives_seen(self, other, now=1000.0):
        self.memory.add_peer_prompts(other.teller.take(), now)


def asked(at, life="a", replica="r0", where=WHERE, **about):
    return request(at=1000.0 + at, life=life, replica=replica, where=where, **about)


@pytest.fixture
def one():
    return Gateway("one")


@pytest.fixture
def other():
    return Gateway("other")


def test_what_was_computed_for_another_gateway_is_known_as_if_it_had_been_for_this_one(one, other):
    other.computed(range(100))
    one.receives_seen(other)
    for tokens in (range(100), [*range(40), 7777, *range(41, 100)], range(500, 600)):
        assert one.seen(tokens) == other.seen(tokens)
    assert one.seen(range(100)) == ([Reason.EVICTED] * 6, [])


def test_nothing_is_known_before_it_is_received(one, other):
    other.computed(range(100))
    assert one.seen(range(100)) == ([], [])


def test_what_became_of_it_is_known_here(one, other):
    other.computed(range(64))
    other.computed(range(500, 564), replica="r1")
    other.computed(range(700, 764), life="old")
    one.receives_seen(other)
    one.loss_causes.take(CacheEvent(CacheHistory.RESTARTED, 1010.0, "r0"))
    one.loss_causes.take(CacheEvent(CacheHistory.LEFT, 1010.0, "r1"))
    one.loss_causes.take(CacheEvent(CacheHistory.LIFE_ENDED, 1010.0, "old", ResetCause.MANUAL))
    assert one.seen(range(65), at=20) == ([Reason.REPLICA_RESTARTED] * 4, [])
    assert one.seen(range(500, 565), at=20) == ([Reason.REPLICA_LEFT] * 4, [])
    assert one.seen(range(700, 765), at=20) == ([], [Reason.RESET] * 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"owner": "tenant:globex"}, Reason.TENANT_ISOLATED),
        ({"scope": "de"}, Reason.SCOPE_ISOLATED),
        ({"context_limit": 4096}, Reason.MODEL_UPDATED),
        ({"template": "v2"}, Reason.TEMPLATE_CHANGED),
    ],
)
def test_what_was_computed_in_another_space_elsewhere_gives_the_difference(one, other, changes, reason):
    other.computed(range(64), where=msgspec.structs.replace(WHERE, **changes))
    one.receives_seen(other)
    assert one.seen(range(100)) == ([], [reason] * 4)


def test_stand_ins_of_another_gateway_are_never_compared_with_token_ids(one, other):
    other.computed(range(64), where=msgspec.structs.replace(WHERE, variant="text"))
    one.receives_seen(other)
    assert one.seen(range(100)) == ([], [])


def test_what_came_later_here_is_not_replaced_by_what_is_received_late(one, other):
    other.computed(range(64), at=5)
    one.loss_causes.take(CacheEvent(CacheHistory.RESTARTED, 1010.0, "r0"))
    one.computed(range(64), at=20)
    one.receives_seen(other, now=1021.0)
    assert one.seen(range(65), at=30) == ([Reason.EVICTED] * 4, [])


def test_what_came_later_elsewhere_replaces_what_was_known_here(one, other):
    one.computed(range(64), at=5)
    one.loss_causes.take(CacheEvent(CacheHistory.RESTARTED, 1010.0, "r0"))
    other.computed(range(64), at=20)
    one.receives_seen(other, now=1021.0)
    assert one.seen(range(65), at=30) == ([Reason.EVICTED] * 4, [])


def test_a_gateway_whose_clock_is_ahead_computed_nothing_in_the_future(one, other):
    other.computed(range(64), at=500)
    one.receives_seen(other, now=1000.0)
    one.loss_causes.take(CacheEvent(CacheHistory.RESTARTED, 1010.0, "r0"))
    assert one.seen(range(65), at=20) == ([Reason.REPLICA_RESTARTED] * 4, [])


def test_what_one_process_gathers_for_several_gateways_is_not_received_again(one):
    same = Gateway("one")
    same.computed(range(64))
    one.receives_seen(same)
    assert one.seen(range(100)) == ([], [])


def test_what_was_received_is_not_passed_on(one, other):
    other.computed(range(64))
    one.receives_seen(other)
    assert one.teller.take() == b""


def sent_blocks(gateway):
    """When and how many blocks are sent, prompt by prompt."""
    data = gateway.teller.take()
    return [(prompt.at - 1000, len(prompt.blocks())) for prompt in decode_seen(data).prompts] if data else []


def test_each_prompt_is_sent_once_and_only_as_hashes(one):
    text = "A very secret text."
    one.computed(range(64), body=text.encode())
    one.computed(range(500, 564), at=1)
    data = one.teller.take()
    reported = decode_seen(data)
    assert [prompt.at for prompt in reported.prompts] == [1000.0, 1001.0]
    assert reported.wheres == [WHERE]
    assert len(data) < 2 * 4 * 8 + 300
    assert text.encode() not in data
    assert one.teller.take() == b""


def test_of_repeated_states_only_changes_are_sent_but_all_every_minute(one, other):
    for turn in range(1, 6):
        one.computed(range(64 * turn), at=turn)
    assert sent_blocks(one) == [(turn, 4) for turn in range(1, 6)]
    one.computed(range(320), at=30)
    assert sent_blocks(one) == []
    one.computed(range(320), at=31, replica="r1")
    one.computed(range(320), at=32, life="b")
    assert sent_blocks(one) == [(31, 20), (32, 20)]
    one.computed(range(320), at=40, life="b")
    one.computed(range(320), at=70, life="b")
    assert sent_blocks(one) == [(70, 20)]


def test_what_is_sent_in_parts_is_known_as_a_whole(one, other):
    for turn in range(1, 6):
        other.computed(range(64 * turn), at=turn)
        one.receives_seen(other)
    assert one.seen(range(321), at=9) == ([Reason.EVICTED] * 20, [])


@pytest.mark.slow
def test_what_is_not_fetched_does_not_grow(one):
    for number in range(700):
        one.computed(range(number * 1000, number * 1000 + 1600), at=number)
    assert 100_000 < len(one.teller.take()) < 700_000
    one.computed(range(64))
    assert len(decode_seen(one.teller.take()).prompts) == 1


def test_many_places_received_from_others_do_not_grow_without_bound(one, other, monkeypatch):
    monkeypatch.setattr(memory, "_PLACES_KEPT", 500)
    for number in range(9):
        for life in range(70):
            other.computed(range(16), life=f"{number}-{life}")
        one.receives_seen(other)
    assert len(one.memory._places) <= 500
    assert one.seen(range(17), life="8-9") == ([Reason.EXPIRED], [])


@pytest.mark.parametrize(
    "reported", [b"", b"\x93", msgspec.msgpack.encode([b"x", [], [(0, "a", "r0", 1.0, b"12345678")]])]
)
def test_what_makes_no_sense_changes_nothing(one, reported):
    one.computed(range(64))
    with pytest.raises(Exception):  # noqa: B017, PT011 - any error is counted by its caller
        one.memory.add_peer_prompts(reported, 1000.0)
    assert one.seen(range(65)) == ([Reason.EVICTED] * 4, [])


# In the ladder


def explainer(teller=None):
    return Explainer(
        PromptHashes(ChainHasher()), References(10_000_000, 3600), Families(find_difference), 10_000, teller
    )


def chat(text):
    return orjson.dumps({"messages": [{"role": "user", "content": text}]})


def prompt(tokens, text, at=0.0, held=0, **about):
    return request(
        parts=(ids(tokens),),
        body=chat(text),
        at=1000.0 + at,
        cached_tokens=held,
        predicted_tokens=held,
        holders=(ReplicaPrefix("r0", 0, held),),
        **about,
    )


def missed(explanation):
    return {each.reason: each.tokens for each in explanation.missed}


def test_a_token_that_was_computed_elsewhere_was_not_never_seen():
    teller = SeenPublisher(b"other")
    here, there = explainer(), explainer(teller)
    there.explain(prompt(range(60), "Hello"))
    assert missed(here.explain(prompt(range(500, 560), "Other"))) == {Reason.FIRST_SEEN: 60}
    here.add_peer_prompts(teller.take(), 1000.0)
    explanation = here.explain(prompt(range(60), "Hello", at=1))
    # What fills no block is not known: that takes the text.
    assert missed(explanation) == {Reason.EVICTED: 48, Reason.NEW_CONTENT: 12}
    assert explanation.rungs == (0, 0, 0, 48, 48, 48, 48, 60)


def test_what_was_generated_elsewhere_is_known_as_well():
    teller = SeenPublisher(b"other")
    here, there = explainer(), explainer(teller)
    reply = list(range(900, 940))
    there.explain(prompt(range(60), "Hello", replies=(ReplyChoice("Hi", ids(reply), 41),)))
    here.add_peer_prompts(teller.take(), 1000.0)
    explanation = here.explain(prompt([*range(60), *reply, *range(20)], "Next", at=1))
    assert missed(explanation) == {Reason.EVICTED: 96, Reason.NEW_CONTENT: 24}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=8),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 120),
)
def test_the_ladder_only_rises_with_any_messages(received, start, blocks, held):
    teller = SeenPublisher(b"other")
    here, there = explainer(), explainer(teller)
    tokens = [*range(start * 100, start * 100 + 16 * blocks), *range(9000, 9030)]
    for number, (begin, length, is_other) in enumerate(received):
        where = SpaceKey("demo", "tok", "v1", "tenant:other" if is_other else "")
        computed = prompt(range(begin * 100, begin * 100 + 16 * length + 5), f"T{number}", at=number, where=where)
        there.explain(computed)
    if reported := teller.take():
        here.add_peer_prompts(reported, 1100.0)
    explanation = here.explain(prompt(tokens, "Mine", at=200, held=min(held, len(tokens))))
    assert list(explanation.rungs) == sorted(explanation.rungs)
    assert explanation.rungs[-1] == len(tokens)
    assert explanation.hits + sum(missed(explanation).values()) == len(tokens)


def test_replicas_that_left_are_forgotten_in_the_end():
    loss_causes = LossCauses()
    for number in range(12_000):
        loss_causes.take(CacheEvent(CacheHistory.LEFT, float(number), f"pod-{number}"))
        loss_causes.take(CacheEvent(CacheHistory.RESTARTED, float(number), f"pod-{number}"))
    assert len(loss_causes._left) == len(loss_causes._restarted) == 10_000
    assert loss_causes.of_replica("pod-11999", 0.0) is Reason.REPLICA_LEFT
    assert loss_causes.of_replica("pod-0", 0.0) is Reason.EVICTED
