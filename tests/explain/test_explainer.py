"""Where every prompt token of a request went."""

import tracemalloc
import zlib
from array import array

import orjson
import pytest
from answered_requests import answered as request
from answered_requests import ids
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import Canonicalized
from gateway.core.explanation import CacheEvent, CacheHistory, ReplicaPrefix, ReplyChoice, SpaceKey
from gateway.core.reasons import Reason, Rung
from gateway.core.request import RequestIdentity
from gateway.explain.diff import find_difference
from gateway.explain.explainer import Explainer
from gateway.explain.reference import Families, References
from gateway.explain.seen import PromptHashes
from gateway.tokenize.block_hashes import ChainHasher

SYSTEM = list(range(1000, 1040))
QUESTION = list(range(2000, 2020))


@pytest.fixture
def explainer():
    return made()


def made():
    references = References(max_bytes=10_000_000, ttl_seconds=3600)
    return Explainer(PromptHashes(ChainHasher()), references, Families(find_difference), 10_000)


def chat(*texts, roles=("system", "user", "assistant", "user"), **fields):
    """A chat body with these messages."""
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return orjson.dumps({"model": "demo", "messages": messages} | fields)


def asked(tokens, body=b"", at=0.0, cached=0, held=0, **about):
    tokens = list(tokens)
    about.setdefault("holders", (ReplicaPrefix("r0", 0, held),))
    return request(
        parts=(ids(tokens),),
        body=body or chat("Be brief.", "Hello"),
        at=1000.0 + at,
        cached_tokens=cached,
        predicted_tokens=held,
        **about,
    )


def missed(explanation):
    return {each.reason: each.tokens for each in explanation.missed}


def test_prompt_like_no_other_is_first_seen(explainer):
    explanation = explainer.explain(asked(SYSTEM + QUESTION))
    assert missed(explanation) == {Reason.FIRST_SEEN: 60}
    assert explanation.rungs == (0, 0, 0, 0, 0, 0, 0, 60)
    assert explanation.reference is None


def test_prompt_of_a_measurement_is_no_reference(explainer):
    explainer.explain(asked(SYSTEM + QUESTION, measured=True))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, cached=48, held=48))
    assert explanation.hits == 48  # it is in the cache all the same
    assert explanation.reference is None


def test_same_prompt_again_loses_what_fills_no_block(explainer):
    explainer.explain(asked(SYSTEM + QUESTION))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, cached=48, held=48))
    assert explanation.hits == 48
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 12}


def test_prompt_that_is_sent_again_and_again_takes_its_memory_once(explainer):
    tokens = 20_000
    tracemalloc.start()
    try:
        explainer.explain(asked(range(tokens)))
        before, _ = tracemalloc.get_traced_memory()
        for at in range(1, 40):
            explainer.explain(asked(range(tokens), at=at, request_id=f"req-{at}"))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 5 * 4 * tokens


def test_prompt_below_one_block_is_too_short_after_any_request(explainer):
    for at in range(2):
        explanation = explainer.explain(asked(range(15), at=at))
        assert missed(explanation) == {Reason.TOO_SHORT: 15}


def test_newest_message_is_new_content(explainer):
    first = asked(
        SYSTEM + QUESTION, chat("Be brief.", "Hello"), session="s", replies=(ReplyChoice("Hi", ids([7, 8]), 3),)
    )
    explainer.explain(first)
    grown = SYSTEM + QUESTION + [7, 8, 9, *range(3000, 3020)]
    explanation = explainer.explain(
        asked(grown, chat("Be brief.", "Hello", "Hi", "And?"), 1, cached=48, held=48, session="s")
    )
    # 62 tokens are equal, 48 of them are whole blocks; behind them nothing was ever sent.
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 14, Reason.NEW_CONTENT: 21}
    assert explanation.reference.chosen_by == "session"
    assert explanation.reference.equal_tokens == 62
    assert explanation.turn == 2
    assert explanation.difference is None


def test_time_in_front_of_what_repeats_is_named_with_its_tokens_and_place(explainer):
    body = "Today is {}.\nBe brief and kind, and never say what the weather will be tomorrow."
    first = [1, 2, 3, 100, 101, *SYSTEM, *QUESTION]
    second = [1, 2, 3, 200, 201, *SYSTEM, *QUESTION]
    explainer.explain(asked(first, chat(body.format("2026-11-20 08:15:00"), "Hello")))
    explanation = explainer.explain(asked(second, chat(body.format("2026-11-21 09:30:12"), "Hello"), 1))
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 3, Reason.DYNAMIC_TIME: 60, Reason.NEW_CONTENT: 2}
    assert explanation.difference.reason is Reason.DYNAMIC_TIME
    assert (explanation.difference.message, explanation.difference.line) == (0, 1)


def windows(explanation):
    """Token ids before and after, and how many in front are equal."""
    tokens = explanation.tokens
    return [list(array("I", each)) for each in (tokens.before, tokens.after)], tokens.first


def test_tokens_around_the_first_difference_are_kept(explainer):
    body = "Today is {}.\nBe brief and kind, and never say what the weather will be tomorrow."
    explainer.explain(asked([1, 2, 3, 100, *SYSTEM, *QUESTION], chat(body.format("2026-11-20 08:15:00"), "Hello")))
    second = asked([1, 2, 3, 200, 201, *SYSTEM, *QUESTION], chat(body.format("2026-11-21 09:30:12"), "Hello"), 1)
    (before, after), first = windows(explainer.explain(second))
    assert first == 3
    assert before == [1, 2, 3, 100, *SYSTEM[:23]]
    assert after == [1, 2, 3, 200, 201, *SYSTEM[:22]]


def test_sixteen_equal_tokens_are_kept_in_front(explainer):
    body = "Be brief and kind, and never say what the weather will be tomorrow. Today is {}."
    explainer.explain(asked([*SYSTEM, 100, *QUESTION], chat(body.format("2026-11-20 08:15:00"), "Hello")))
    second = asked([*SYSTEM, 200, *QUESTION], chat(body.format("2026-11-21 09:30:12"), "Hello"), 1)
    (before, after), first = windows(explainer.explain(second))
    assert first == 16
    assert before == [*SYSTEM[-16:], 100, *QUESTION]
    assert after == [*SYSTEM[-16:], 200, *QUESTION]


def test_where_nothing_differs_or_ids_cannot_be_compared_no_tokens_are_kept(explainer):
    first = explainer.explain(asked(SYSTEM + QUESTION))
    again = explainer.explain(asked(SYSTEM + QUESTION, at=1))
    other = SpaceKey("demo", "another tokenizer", "v1")
    retokenized = explainer.explain(asked(range(7000, 7060), at=2, where=other))
    assert retokenized.difference.reason is Reason.TOKENIZER_CHANGED
    assert [first.tokens, again.tokens, retokenized.tokens] == [None, None, None]


def in_system(name, *texts):
    return chat(f"You help people.\nCustomer: {name}\nBe brief, and promise nothing that you cannot keep.", *texts)


def test_a_place_that_varies_is_reported_with_what_finds_it(explainer):
    assert explainer.explain(asked([1, 1, *SYSTEM], in_system("Anna Smith", "Hi"))).slot is None
    slot = explainer.explain(asked([1, 2, *SYSTEM], in_system("Bob Kent", "Hi"), at=1)).slot
    assert (slot.regex, slot.reason, slot.is_kept) == ("^Customer: (.+)$", Reason.USER_DATA, False)


def test_a_value_that_stays_in_a_conversation_is_recognized_by_the_next_turn(explainer):
    explainer.explain(asked([1, 1, *SYSTEM], in_system("Anna Smith", "Hi"), session="a"))
    first = [1, 2, *SYSTEM]
    one = explainer.explain(asked(first, in_system("Bob Kent", "Hi"), at=1, session="b", request_id="b1")).slot
    turn = in_system("Bob Kent", "Hi", "Hello.", "And now?")
    slot = explainer.explain(asked([*first, *QUESTION], turn, at=2, session="b", request_id="b2")).slot
    assert (slot.regex, slot.reason, slot.is_kept) == (one.regex, one.reason, True)
    # It is reported once.
    turn = in_system("Bob Kent", "Hi", "Hello.", "And now?", "Ok.", "Then?")
    assert explainer.explain(asked([*first, *QUESTION, 5], turn, at=3, session="b", request_id="b3")).slot is None


def test_a_value_that_stays_is_that_of_the_same_tenants_turn(explainer):
    first, turn = [1, 2, *SYSTEM], in_system("Bob Kent", "Hi", "Hello.", "And now?")
    for name, tenant in (("Anna Smith", "one"), ("Carl Webb", "other")):
        explainer.explain(asked([1, 1, *SYSTEM], in_system(name, "Hi"), tenant=tenant, request_id="a1", session="a"))
    about = {"session": "b", "request_id": "b1"}
    own = explainer.explain(asked(first, in_system("Bob Kent", "Hi"), at=1, tenant="one", **about)).slot
    assert own.regex == "^Customer: (.+)$"
    # The other tenant's conversation has the same ids, and its value never differed.
    explainer.explain(asked([1, 1, *SYSTEM], in_system("Carl Webb", "Hi"), at=2, tenant="other", **about))
    about["request_id"] = "b2"
    theirs = in_system("Carl Webb", "Hi", "Hello.", "And now?")
    assert explainer.explain(asked([1, 1, *SYSTEM, *QUESTION], theirs, at=3, tenant="other", **about)).slot is None
    slot = explainer.explain(asked([*first, *QUESTION], turn, at=4, tenant="one", **about)).slot
    assert (slot.regex, slot.is_kept) == (own.regex, True)


def test_context_that_was_not_stored_is_reported_as_the_cause(explainer):
    block = "\n\n[Current context]\n[context 1] 10:02\n[End]"
    sent = chat("Be brief.", "Hello" + block, "Hi.", "And now?")
    explainer.explain(asked([*SYSTEM, 7, 8, *QUESTION], sent, session="s"))
    lost = chat("Be brief.", "Hello", "Hi.", "And now?", "Ok.", "Then?", roles=("system", *("user", "assistant") * 3))
    about = {"at": 1, "session": "s"}
    canonical = Canonicalized(context_lost=True)
    explanation = explainer.explain(asked([*SYSTEM, *QUESTION, 9], lost, canonical=canonical, **about))
    difference = explanation.difference
    assert (difference.reason, difference.detail) == (Reason.CONTEXT_LOST, "forgotten")
    assert difference.said.startswith("The gateway no longer held context blocks of earlier turns")
    assert missed(explanation)[Reason.CONTEXT_LOST] == len(QUESTION)


def test_context_that_is_lost_is_no_cause_of_what_differs_in_front_of_it(explainer):
    explainer.explain(asked([1, 1, *SYSTEM], in_system("Anna Smith", "Hi"), session="s"))
    canonical = Canonicalized(context_lost=True)
    again = asked([1, 2, *SYSTEM], in_system("Bob Kent", "Hi"), at=1, session="s", canonical=canonical)
    assert explainer.explain(again).difference.reason is Reason.USER_DATA


def test_engine_that_has_lost_what_it_was_believed_to_hold_makes_the_index_stale(explainer):
    explainer.explain(asked(SYSTEM + QUESTION))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, cached=16, held=48))
    assert missed(explanation) == {Reason.STALE_INDEX: 32, Reason.BLOCK_BOUNDARY: 12}


@pytest.mark.parametrize(
    ("barred", "reason"),
    [
        ("", Reason.LOAD_BALANCED),
        ("failed", Reason.FAILOVER),
        ("unavailable", Reason.REPLICA_UNAVAILABLE),
        ("pinned", Reason.PINNED),
    ],
)
def test_another_replica_that_held_it_and_was_not_chosen_says_why(explainer, barred, reason):
    explainer.explain(asked(SYSTEM + QUESTION))
    holders = (ReplicaPrefix("r0", 0, 0), ReplicaPrefix("r1", 0, 48, barred=barred))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, holders=holders))
    assert missed(explanation) == {reason: 48, Reason.BLOCK_BOUNDARY: 12}
    assert "r1" in explanation.missed[0].note


def test_what_was_computed_and_is_held_by_no_replica_was_evicted_or_lost_with_its_replica(explainer):
    explainer.explain(asked(SYSTEM + QUESTION))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1))
    assert missed(explanation) == {Reason.EVICTED: 48, Reason.BLOCK_BOUNDARY: 12}
    explainer.record_event(CacheEvent(CacheHistory.RESTARTED, 1005.0, "r0"))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=10))
    assert missed(explanation) == {Reason.REPLICA_RESTARTED: 48, Reason.BLOCK_BOUNDARY: 12}


def test_what_another_tenant_computed_is_kept_apart(explainer):
    explainer.explain(asked(SYSTEM + QUESTION, tenant="globex", where=SpaceKey("demo", "t", "v", "tenant:globex")))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, where=SpaceKey("demo", "t", "v", "tenant:acme")))
    assert missed(explanation) == {Reason.TENANT_ISOLATED: 48, Reason.NEW_CONTENT: 12}
    assert explanation.reference is None


def test_request_that_bypasses_the_cache_loses_all_that_could_have_been_reused(explainer):
    explainer.explain(asked(SYSTEM + QUESTION))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, held=48, bypasses_cache=True))
    assert missed(explanation) == {Reason.CACHE_BYPASSED: 48, Reason.BLOCK_BOUNDARY: 12}
    # An engine without prefix caching holds nothing, and none is predicted.
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=2, cached=None, bypasses_cache=True))
    assert missed(explanation) == {Reason.CACHE_BYPASSED: 48, Reason.BLOCK_BOUNDARY: 12}


def test_without_a_report_the_prediction_counts_and_is_called_that(explainer):
    explainer.explain(asked(SYSTEM + QUESTION))
    explanation = explainer.explain(asked(SYSTEM + QUESTION, at=1, cached=None, held=48))
    assert (explanation.hits, explanation.hits_confirmed) == (48, False)
    assert not any(each.is_confirmed for each in explanation.missed)


def test_engines_count_is_explained_where_it_is_another(explainer):
    explainer.explain(asked(SYSTEM + QUESTION))
    explanation = explainer.explain(
        asked(SYSTEM + QUESTION, at=1, cached=32, held=48, prompt_tokens=120, own_tokens=60)
    )
    assert explanation.prompt_tokens == 120
    assert missed(explanation) == {Reason.STALE_INDEX: 64, Reason.BLOCK_BOUNDARY: 24}


def test_several_prompts_are_explained_each_and_added_up(explainer):
    parts = (ids(range(40)), ids(range(500, 570)))
    body = orjson.dumps({"model": "demo", "prompt": ["one", "two"]})
    about = {"parts": parts, "body": body, "endpoint": "/v1/completions", "cached_tokens": None, "prompt_tokens": 110}
    explainer.explain(request(**about))
    explanation = explainer.explain(request(**about | {"at": 1001.0}))
    assert missed(explanation) == {Reason.EVICTED: 32 + 64, Reason.BLOCK_BOUNDARY: 8 + 6}


def test_prompts_in_another_order_lose_only_their_rounding():
    parts = (ids(range(40)), ids(range(500, 570)))
    about = {"endpoint": "/v1/completions", "cached_tokens": None, "prompt_tokens": 110}
    rules = "Describe the parcel, where it is at present, who has it, and when the one who sent it will see it. "
    texts = [rules * 3 + "One.", rules * 3 + "Two, and more."]
    explainer = made()
    explainer.explain(request(**about, parts=parts, body=orjson.dumps({"prompt": texts})))
    body = orjson.dumps({"prompt": texts[::-1]})
    explanation = explainer.explain(request(**about, parts=parts[::-1], body=body, at=1001.0))
    assert missed(explanation) == {Reason.EVICTED: 96, Reason.BLOCK_BOUNDARY: 14}


def test_time_in_one_of_several_prompts_is_named():
    rest = list(range(500, 700))
    explainer = made()
    for at, day in enumerate(("2026-03-12", "2026-03-13")):
        texts = [f"Date {day}\n" + "Describe the parcel and where it is. " * 9, "x"]
        body = orjson.dumps({"prompt": texts})
        about = {"endpoint": "/v1/completions", "cached_tokens": None, "prompt_tokens": 241}
        parts = (ids([1, 2, 100 + at, *rest]), ids(range(900, 938)))
        explanation = explainer.explain(request(**about, parts=parts, body=body, at=1000.0 + at))
    assert missed(explanation)[Reason.DYNAMIC_TIME] == 202
    assert explanation.difference.path == "prompt[0]"


def test_of_several_prompts_tokens_of_the_one_that_differs_are_kept():
    head, tail = list(range(40, 50)), list(range(500, 515))
    explainer = made()
    for at, day in enumerate(("2026-03-12", "2026-03-13")):
        texts = ["x", f"Date {day}\n" + "Describe the parcel and where it is. " * 9]
        body = orjson.dumps({"prompt": texts})
        parts = (ids(head), ids([1, 2, 100 + at, *tail]), ids([9] * 5))
        about = {"endpoint": "/v1/completions", "cached_tokens": None, "prompt_tokens": 33}
        explanation = explainer.explain(request(**about, parts=parts, body=body, at=1000.0 + at))
    (_, after), first = windows(explanation)
    assert first == 2
    assert after == [1, 2, 101, *tail]


def test_prompt_given_as_token_ids_is_compared_and_not_classified():
    tokens = list(range(3000, 3500))
    explainer = made()
    body = orjson.dumps({"prompt": tokens})
    explainer.explain(asked(tokens, body, endpoint="/v1/completions"))
    explanation = explainer.explain(asked(tokens, body, at=1, cached=496, held=496, endpoint="/v1/completions"))
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 4}
    changed = [7, *tokens[1:]]
    explanation = explainer.explain(asked(changed, orjson.dumps({"prompt": changed}), at=2, endpoint="/v1/completions"))
    assert missed(explanation) == {Reason.UNCLASSIFIED: 499, Reason.NEW_CONTENT: 1}
    assert explanation.difference.detail == "token_ids"


def test_request_without_text_is_counted_as_far_as_it_is_known(explainer):
    light = request(prompt_tokens=200, cached_tokens=48, predicted_tokens=64, holders=(ReplicaPrefix("r0", 0, 64),))
    explanation = explainer.explain(light)
    assert explanation.was_skipped
    assert missed(explanation) == {Reason.STALE_INDEX: 16, Reason.UNCLASSIFIED: 136}
    assert len(explanation.rungs) == len(Rung)


def test_reply_that_was_taken_apart_costs_what_was_generated(explainer):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    messages = [{"role": "user", "content": "Look"}]
    body = orjson.dumps({"model": "demo", "messages": messages})
    explainer.explain(
        asked(SYSTEM, body, session="s", replies=(ReplyChoice(None, None, 13, has_calls=True),), completion_tokens=13)
    )
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
    ]
    body = orjson.dumps({"model": "demo", "messages": messages})
    explanation = explainer.explain(asked([*SYSTEM, *range(5000, 5040)], body, 1, cached=32, held=32, session="s"))
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 8, Reason.REPLY_RERENDERED: 12, Reason.NEW_CONTENT: 28}


def test_template_that_prints_the_time_is_named_where_the_texts_are_equal(explainer):
    body = chat("Be brief.", "Hello")
    explainer.explain(asked([1, 2, 3, *SYSTEM, *QUESTION], body, template_tells_time=True))
    explanation = explainer.explain(asked([1, 2, 4, *SYSTEM, *QUESTION], body, 1, template_tells_time=True))
    assert missed(explanation)[Reason.DYNAMIC_TIME] == 60
    assert explanation.difference.detail == "template_clock"


def turns(fields=None, **about):
    """A turn, and the next one: the same messages, whose template ends the first prompt in other tokens."""
    first = asked([*SYSTEM, *QUESTION, 1, 2, 3], chat("Be brief." * 9, "Hello"), session="s", **about)
    grown = [*SYSTEM, *QUESTION, 1, *range(5000, 5020), *range(6000, 6010)]
    body = chat("Be brief." * 9, "Hello", "Hi, what can I do?", "And?", **fields or {})
    return first, asked(grown, body, 1, cached=48, held=48, session="s", **about)


def reply(text, ids_known=True, **has):
    return (ReplyChoice(text, ids(range(5000, 5020)) if ids_known else None, 20, **has),)


@pytest.mark.parametrize("tells_time", [False, True])
def test_template_that_rewrites_the_end_of_a_prompt_is_named_where_the_texts_are_equal(explainer, tells_time):
    first, second = turns(replies=reply("Hi, what can I do?"), template_tells_time=tells_time)
    explainer.explain(first)
    explanation = explainer.explain(second)
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 13, Reason.TEMPLATE_DROPPED: 20, Reason.NEW_CONTENT: 10}
    assert (explanation.difference.reason, explanation.difference.detail) == (Reason.TEMPLATE_DROPPED, "prompt")


def test_reply_of_unknown_tokens_behind_what_the_template_rewrites_costs_what_was_generated(explainer):
    first, second = turns(replies=reply("Hi, what can I do?", ids_known=False))
    explainer.explain(first)
    assert missed(explainer.explain(second))[Reason.TEMPLATE_DROPPED] == 21


def test_reasoning_that_comes_back_and_is_left_out_is_the_templates(explainer):
    messages = [{"role": "user", "content": "Look"}]
    body = orjson.dumps({"model": "demo", "messages": messages})
    explainer.explain(asked(SYSTEM, body, session="s", replies=(ReplyChoice(None, None, 13, has_reasoning=True),)))
    messages += [
        {"role": "assistant", "content": "Here.", "reasoning": "Where is it?"},
        {"role": "user", "content": "Thanks"},
    ]
    body = orjson.dumps({"model": "demo", "messages": messages})
    explanation = explainer.explain(asked([*SYSTEM, *range(5000, 5040)], body, 1, cached=32, held=32, session="s"))
    assert missed(explanation) == {Reason.BLOCK_BOUNDARY: 8, Reason.TEMPLATE_DROPPED: 12, Reason.NEW_CONTENT: 28}
    assert explanation.difference.detail == "answer"


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_reply_that_is_changed_behind_what_the_template_rewrites_is_the_clients_from_there_on(explainer, share):
    text = "Hi, what can I do?"
    kept = round(len(text) * share)
    first, second = turns(replies=reply(text[:kept] + "#" * (len(text) - kept) + " Bye."))
    explainer.explain(first)
    parts = missed(explainer.explain(second))
    assert parts.get(Reason.TEMPLATE_DROPPED, 0) == 20 * share
    assert parts.get(Reason.REPLY_RERENDERED, 0) == 20 - 20 * share


def test_what_the_client_does_to_the_prompt_is_never_the_templates(explainer):
    first, second = turns(replies=reply("Hi, what can I do?"), fields={"chat_template_kwargs": {"thinking": True}})
    explainer.explain(first)
    assert missed(explainer.explain(second))[Reason.ARGUMENTS_CHANGED] == 20


@pytest.mark.parametrize("field", [{"prompt": "Once upon a time"}, {"truncate_prompt_tokens": 60}])
def test_prompts_without_a_template_and_those_that_are_cut_have_no_such_reason(explainer, field):
    endpoint = "/v1/completions" if "prompt" in field else "/v1/chat/completions"
    body = orjson.dumps({"model": "demo", **field}) if "prompt" in field else chat("Be brief.", "Hello", **field)
    for at in range(2):
        explanation = explainer.explain(asked([at, *SYSTEM, *QUESTION], body, at, endpoint=endpoint, session="s"))
    assert missed(explanation)[Reason.UNCLASSIFIED] == 60


def test_other_tokenizer_makes_other_tokens_of_the_same_text(explainer):
    body = chat("Be brief and kind to everybody who asks.", "Hello there")
    explainer.explain(asked(SYSTEM, body, session="s", where=SpaceKey("demo", "one", "v")))
    explanation = explainer.explain(asked(QUESTION, body, 1, session="s", where=SpaceKey("demo", "two", "v")))
    assert missed(explanation) == {Reason.TOKENIZER_CHANGED: 20}


def test_conversation_that_goes_on_with_another_model_is_computed_again(explainer):
    explainer.explain(asked(SYSTEM + QUESTION, session="s", where=SpaceKey("demo", "t", "v")))
    explanation = explainer.explain(
        asked([*SYSTEM, *QUESTION, 1, 2], at=1, session="s", model="big", where=SpaceKey("big", "t", "v"))
    )
    assert missed(explanation) == {Reason.MODEL_CHANGED: 48, Reason.BLOCK_BOUNDARY: 12, Reason.NEW_CONTENT: 2}


HELD = st.integers(-10, 400)


@st.composite
def finished_requests(draw):
    lengths = draw(st.lists(st.integers(0, 120), min_size=1, max_size=3))
    parts = tuple(ids([draw(st.integers(0, 3))] + [9] * length) for length in lengths)
    own = sum(map(len, parts)) // 4
    text = st.text(st.sampled_from("ab 12:-\n"), max_size=30)
    return request(
        parts=draw(st.sampled_from([(), parts])),
        body=draw(st.sampled_from([b"", b"[", chat(draw(text), draw(text)), chat(draw(text), draw(text), draw(text))])),
        at=1000.0 + draw(st.integers(0, 50)),
        session=draw(st.sampled_from(["", "s"])),
        life=draw(st.sampled_from("ab")),
        replica=draw(st.sampled_from(["r0", "r1"])),
        where=SpaceKey(draw(st.sampled_from(["demo", "big"])), owner=draw(st.sampled_from(["", "tenant:acme"]))),
        prompt_tokens=draw(st.one_of(st.just(own), st.integers(0, 500))),
        own_tokens=own,
        predicted_tokens=draw(HELD),
        cached_tokens=draw(st.one_of(st.none(), HELD)),
        holders=tuple(
            ReplicaPrefix(f"r{n}", 0, draw(HELD), barred=draw(st.sampled_from(["", "failed"]))) for n in range(2)
        ),
        replies=tuple(
            ReplyChoice(None, draw(st.one_of(st.none(), st.just(ids([9] * 20)))), 30, has_calls=True) for _ in "x"
        ),
        bypasses_cache=draw(st.booleans()),
        is_blind=draw(st.booleans()),
        block_size=draw(st.sampled_from([1, 16, 32])),
        warming=draw(st.booleans()),
        measured=draw(st.booleans()),
    )


@given(st.lists(finished_requests(), min_size=1, max_size=6))
def test_hits_and_reasons_add_up_to_the_prompt_for_any_traffic(requests):
    explainer = made()
    for each in requests:
        explanation = explainer.explain(each)
        assert explanation.hits + sum(missed(explanation).values()) == each.prompt_tokens == explanation.prompt_tokens
        assert explanation.rungs[-1] == each.prompt_tokens
        assert len(explanation.rungs) == len(Rung)
        assert list(explanation.rungs) == sorted(explanation.rungs)
        assert len(missed(explanation)) == len(explanation.missed)


def test_argument_that_the_template_does_not_print_is_not_the_cause_of_what_the_text_explains(explainer):
    text = "Today is {}.\nBe brief and kind, and never say what the weather will be tomorrow."
    first = chat(text.format("2026-11-20"), "Hello", chat_template_kwargs={"enable_thinking": False})
    second = chat(text.format("2026-11-21"), "Hello", chat_template_kwargs={"enable_thinking": True})
    explainer.explain(asked([1, 2, 3, 100, *SYSTEM, *QUESTION], first))
    explanation = explainer.explain(asked([1, 2, 3, 200, *SYSTEM, *QUESTION], second, 1))
    assert missed(explanation)[Reason.DYNAMIC_TIME] == 60


def test_argument_is_the_cause_where_the_tokens_part_in_front_of_what_else_differs(explainer):
    turns = ["Be brief and kind to everybody. " * 8, "Hello", "Hi", "And the rest of it?"]
    first = chat(*turns[:3], "Why?", chat_template_kwargs={"enable_thinking": False})
    second = chat(*turns, chat_template_kwargs={"enable_thinking": True})
    explainer.explain(asked([1, 2, *SYSTEM, *QUESTION], first, session="s"))
    explanation = explainer.explain(asked([1, 9, *SYSTEM, *QUESTION], second, 1, session="s"))
    assert missed(explanation)[Reason.ARGUMENTS_CHANGED] == 60


MAIN = "You are a coding assistant. Read files, edit them, run tests, and say in one sentence what you did. " * 4
SUBAGENT = (
    "You are a coding assistant. Read files, search them, run nothing, and say in one sentence what you found. " * 4
)


def by_agent(agent="", **more):
    return {"identity": RequestIdentity("s", agent, **more), "session": "s"}


def test_the_first_request_of_a_subagent_is_no_changed_system_prompt(explainer):
    explainer.explain(asked([*SYSTEM, *QUESTION], chat(MAIN, "Mend the tests."), **by_agent()))
    other = [*SYSTEM[:16], *range(7000, 7040)]
    first = explainer.explain(asked(other, chat(SUBAGENT, "Find it."), 1, cached=16, held=16, **by_agent("a1")))
    assert (first.reference, first.hits, missed(first)) == (None, 16, {Reason.NEW_CONTENT: 40})
    sibling = [*SYSTEM[:16], *range(8000, 8040)]
    second = explainer.explain(asked(sibling, chat(SUBAGENT + "!", "And?"), 2, cached=16, held=16, **by_agent("a2")))
    assert (second.reference, missed(second)) == (None, {Reason.NEW_CONTENT: 40})


def test_each_agent_of_a_session_goes_on_from_its_own_last_request(explainer):
    main, sub = chat(MAIN, "Mend the tests."), chat(SUBAGENT, "Find it.")
    explainer.explain(asked([*SYSTEM, *QUESTION], main, request_id="main-1", **by_agent()))
    explainer.explain(asked([*SYSTEM[:16], *range(7000, 7040)], sub, 1, request_id="sub-1", **by_agent("a1")))
    explanation = explainer.explain(
        asked(
            [*SYSTEM[:16], *range(7000, 7040), *QUESTION],
            chat(SUBAGENT, "Find it.", "Here.", "More."),
            2,
            **by_agent("a1"),
        )
    )
    assert (explanation.reference.request_id, explanation.reference.chosen_by) == ("sub-1", "session")
    explanation = explainer.explain(
        asked([*SYSTEM, *QUESTION, 1, 2], chat(MAIN, "Mend the tests.", "Done.", "Thanks."), 3, **by_agent())
    )
    assert (explanation.reference.request_id, explanation.conversation) == ("main-1", "s")


def test_a_name_that_several_conversations_share_is_not_what_they_are_compared_by(explainer):
    shared = {"session": "app", "identity": RequestIdentity("app", is_exact=False)}
    explainer.explain(asked([*SYSTEM, *QUESTION], chat("Be brief.", "Where is my parcel?"), **shared))
    explanation = explainer.explain(asked([*SYSTEM, 5, 6, 7], chat("Be brief.", "Who won?"), 1, **shared))
    assert explanation.reference is None or explanation.reference.chosen_by != "session"


def test_without_a_session_the_conversation_is_known_by_its_first_request(explainer):
    first = asked([*SYSTEM, *QUESTION], chat("Be brief." * 9, "Where is my parcel, please?"), request_id="one")
    assert explainer.explain(first).conversation == "one"
    turn = chat("Be brief." * 9, "Where is my parcel, please?", "It comes tomorrow, between eight and ten.", "Thanks.")
    assert explainer.explain(asked([*SYSTEM, *QUESTION, 1, 2], turn, 1, request_id="two")).conversation == "one"
    other = explainer.explain(asked([*SYSTEM, 1, 2], turn, 2, request_id="three", tenant="other"))
    assert other.conversation == "three"


def test_nothing_is_compared_with_a_session_that_was_ended(explainer):
    first = {"session": "s", "request_id": "one"}
    explainer.explain(asked([*SYSTEM, *QUESTION], **first))
    explainer.explain(asked([*SYSTEM, *QUESTION], tenant="other", **first))
    explainer.forget_session("acme", "s")
    assert explainer.explain(asked([*SYSTEM, *QUESTION, 1], at=1, session="s")).reference is None
    kept = explainer.explain(asked([*SYSTEM, *QUESTION, 1], at=1, session="s", tenant="other"))
    assert kept.reference.request_id == "one"


RULES = " ".join(f"Rule {number}: answer questions about shelf {number} of the shop politely." for number in range(9))


def sent(explainer, number, source, *leading):
    body = chat(*leading, f"Question {number}", roles=("system",) * len(leading) + ("user",))
    words = " ".join([*leading, f"Question {number}"]).split()
    explainer.explain(
        asked(
            [zlib.crc32(word.encode()) for word in words],
            body,
            at=number,
            source=source,
            request_id=f"{source}-{number}",
        )
    )


def shown(explainer):
    return [(row["source"], row["than"], row["requests"]) for row in explainer.families_shown(1100.0)]


def test_leading_messages_that_were_sent_once_count_when_families_are_asked_for(explainer):
    for number in range(4):
        sent(explainer, number, "web", RULES)
    sent(explainer, 4, "mobile", RULES, "The client is a phone. Write no tables.")
    assert shown(explainer) == [("mobile", "web", 1)]
    sent(explainer, 5, "mobile", RULES, "The client is a phone. Write no tables.")
    assert shown(explainer) == shown(explainer) == [("mobile", "web", 2)]


def test_many_leading_messages_of_their_own_hide_no_family(explainer):
    for number in range(3):
        sent(explainer, number, "web", f"It is 12:0{number}. {RULES}")
        sent(
            explainer, 10 + number, "mobile", f"It is 12:0{number}. {RULES}", "The client is a phone. Write no tables."
        )
    for number in range(50):
        words = " ".join(f"{'ghijklmnop'[number % 10]}{'qrstu'[number // 10]}{each}" for each in "vwxyz")
        sent(explainer, 20 + number, "script", words)
    assert shown(explainer) == [("mobile", "web", 3)]
