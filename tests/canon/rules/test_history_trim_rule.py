"""The rule ``history-trim``."""

import copy
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.history_trim import HistoryTrim
from gateway.canon.token_counts import TokenCounts
from gateway.config.canon_settings import HistoryTrimSettings
from gateway.core.canonical import RuleName

LIMIT = 1000
SYSTEM = {"role": "system", "content": "Be kind."}


def words(text):
    return len(text.split())


def knowing(limit=LIMIT, count_tokens=words):
    return RuleContext(now=0.0, context_limit=limit, count_tokens=count_tokens)


def said(role, tokens, **more):
    return {"role": role, "content": "word " * tokens, **more}


def turns(number, tokens=44):
    """Turns of two messages, each of which counts ``tokens`` and 6 for its marks."""
    return [said(role, tokens) for _ in range(number) for role in ("user", "assistant")]


def trimmed(fields, given_=None, **settings):
    found = HistoryTrim(HistoryTrimSettings(**settings)).detect(fields, given_ or knowing())
    return applied(fields, found.edits), found


def kept(messages, given_=None, fields=None, **settings):
    """Positions of the messages that are left; each is the very object it was."""
    after, _ = trimmed({"messages": messages, **(fields or {})}, given_, **settings)
    numbers = {id(message): n for n, message in enumerate(messages)}
    return [numbers[id(message)] for message in after["messages"]]


def test_a_conversation_that_fits_stays_as_it_is():
    fields = {"messages": [SYSTEM, *turns(8), said("user", 44)]}  # 8 + 16 * 50 + 50 = 858
    after, found = trimmed(fields)
    assert after is fields
    assert (found.edits, found.cut_messages) == ((), 0)


def test_at_the_start_share_a_step_is_left_out_up_to_a_message_of_the_user():
    messages = [SYSTEM, *turns(9)]  # 8 + 900 >= 0.9 * 1000; a step of 300 is three turns
    assert kept(messages) == [0, *range(7, 19)]
    _, found = trimmed({"messages": messages})
    (edit,) = found.edits
    assert (edit.rule, edit.what, edit.place, found.cut_messages) == (RuleName.HISTORY_TRIM, "cut", "messages", 6)
    assert edit.summary == "6 messages left out: the conversation is too long for the model."


def test_the_cut_stays_until_a_step_has_come_again():
    cuts = [len(turns(n)) - len(kept(turns(n))) for n in range(1, 25)]
    assert cuts == [0] * 8 + [6] * 3 + [12] * 3 + [18] * 3 + [24] * 3 + [30] * 3 + [36]


@pytest.mark.parametrize(("step", "first"), [(0.05, 2), (0.2, 4), (0.5, 10), (0.8, 16)])
def test_a_step_is_as_large_as_configured(step, first):
    assert kept(turns(9), step=step)[0] == first


def test_where_the_step_ends_within_a_turn_the_next_message_of_the_user_is_the_first_one_left():
    # 250 tokens a turn: behind a step of 300 begins the third.
    assert kept([SYSTEM, *turns(4, tokens=119)]) == [0, *range(5, 9)]


def test_the_last_message_of_the_user_and_what_follows_it_is_kept_however_long_it_is():
    tail = [said("user", 2000), said("assistant", 5, tool_calls=[call("a")]), said("tool", 900, tool_call_id="a")]
    assert kept([SYSTEM, *turns(2), *tail]) == [0, 5, 6, 7]
    assert kept([SYSTEM, *tail]) == [0, 1, 2, 3]


def test_where_the_conversation_ends_within_the_step_the_cut_stays_too():
    # 300 tokens a turn, and 800 a step: cut in front of the last message of the user, where there is none behind.
    cuts = [len(turns(n, 144)) - len(kept(turns(n, 144), step=0.8)) for n in range(1, 8)]
    assert cuts == [0, 0, 4, 4, 6, 10, 10]


def test_large_leading_messages_make_the_steps_smaller():
    # 606 of 900 are taken; of the 294 that are left half goes at a time, not 300.
    leading = said("system", 600)
    cuts = [len(turns(n, 4)) + 1 - len(kept([leading, *turns(n, 4)])) for n in range(1, 40)]
    assert cuts == [0] * 14 + [16] * 8 + [30] * 7 + [46] * 8 + [60] * 2


def test_leading_messages_and_tools_are_counted_and_stay():
    leading = [SYSTEM, {"role": "developer", "content": "word " * 300}]
    tools = [{"type": "function", "function": {"name": "search", "description": "word " * 100}}]
    messages = [*leading, *turns(4)]
    assert kept(messages) == list(range(10))
    # 314 + 400 and more than 300 for the tools; half of what they leave is a step, and ends in the second turn.
    assert kept(messages, fields={"tools": tools}) == [0, 1, *range(6, 10)]
    after, _ = trimmed({"messages": messages, "tools": tools, "model": "m"})
    assert after["tools"] is tools
    assert list(after) == ["messages", "tools", "model"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_what_the_answer_may_take_is_kept_free(name):
    messages = turns(6)  # 600
    assert kept(messages) == list(range(12))
    assert kept(messages, fields={name: 300}) == list(range(12))
    messages = turns(8)  # 800: beyond 0.9 * 750 = 675, as a quarter is kept free at most
    assert kept(messages, fields={name: 100}) == list(range(16))
    assert kept(messages, fields={name: 250})[0] > 0
    assert kept(messages, fields={name: 250}) == kept(messages, fields={name: 900})
    assert kept(messages, fields={name: None}) == list(range(16))


def test_an_invalid_number_for_the_answer_reserves_no_tokens():
    assert len(kept(turns(9), fields={"max_tokens": -500})) == 12


def test_of_two_words_for_the_answer_the_newer_one_counts():
    assert kept(turns(6), fields={"max_completion_tokens": 10, "max_tokens": 400}) == list(range(12))


@pytest.mark.parametrize(("limit", "fields"), [(0, {}), (0, {"max_tokens": 5000}), (-1, {})])
def test_without_a_limit_or_free_tokens_nothing_is_done(limit, fields):
    assert kept(turns(50), knowing(limit), fields) == list(range(100))


def call(name, arguments="{}"):
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_results_of_tools_stay_with_their_calls():
    # A step of 300 ends at message 6, but a call before it is answered behind it.
    messages = turns(9)
    messages[5] = said("assistant", 44, tool_calls=[call("a")])
    messages[7] = said("tool", 44, tool_call_id="a")
    assert kept(messages) == list(range(8, 18))


@pytest.mark.parametrize("tool_call_id", ["another", None, 7])
def test_a_result_of_an_unknown_call_belongs_to_the_last_one(tool_call_id):
    messages = turns(9)
    messages[5] = said("assistant", 44, tool_calls=[call("a")])
    messages[7] = said("tool", 44, tool_call_id=tool_call_id)
    assert kept(messages) == list(range(8, 18))
    # In front of that call, the history may be cut.
    assert kept(messages, step=0.2) == list(range(4, 18))


def test_functions_of_the_older_api_are_pairs_too():
    messages = turns(9)
    messages[5] = said("assistant", 44, function_call={"name": "f", "arguments": "{}"})
    messages[7] = said("function", 44, name="f")
    assert kept(messages) == list(range(8, 18))


def test_ids_that_come_again_in_every_turn_bind_to_the_latest_call():
    turn = [said("user", 44), said("assistant", 30, tool_calls=[call("0")]), said("tool", 44, tool_call_id="0")]
    messages = [message for _ in range(7) for message in copy.deepcopy(turn)]
    assert kept(messages)[0] == 6


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "word " * 450}]},
        {"role": "user", "content": ["word " * 450]},
        {"role": "user", "content": [{"type": "input_text", "text": "word " * 450}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "word " * 450}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": [{"type": "a kind of the future", "what": 1}]},
        {"role": "assistant", "content": None, "tool_calls": [call("a", "word " * 450)]},
        {"role": "assistant", "content": None, "tool_calls": [call("a", {"of": "word " * 450})]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "word " * 450}},
        {"role": "assistant", "content": "", "reasoning_content": "word " * 450},
        {"role": "assistant", "content": "", "reasoning": "word " * 450},
    ],
)
def test_everything_that_takes_tokens_counts(message):
    rest = [said("user", 1), *turns(5), said("user", 1)]  # 514
    assert len(kept([said("user", 1), {"role": message["role"], "content": ""}, *rest])) == len(rest) + 2
    assert len(kept([said("user", 1), message, *rest])) < len(rest) + 2


def test_emoji_and_other_long_characters_are_not_missed():
    # 4 tokens a character, as a byte-level tokenizer counts what it does not know: fewer characters than the limit.
    def of_bytes(text):
        return len(text.encode())

    messages = [
        message for _ in range(4) for message in ({"role": "user", "content": "\N{FACE WITH TEARS OF JOY}" * 70},)
    ]
    assert sum(len(message["content"]) for message in messages) < 900
    assert kept(messages, knowing(count_tokens=of_bytes)) == [2, 3]


def test_without_a_tokenizer_three_bytes_are_a_token():
    messages = [{"role": "user", "content": "x" * 132} for _ in range(17)]  # 44 + 6 each
    assert kept(messages, knowing(count_tokens=None)) == list(range(17))
    messages.append({"role": "user", "content": "x" * 132})
    assert kept(messages, knowing(count_tokens=None)) == list(range(6, 18))


def test_a_counter_that_remembers_is_used_from_its_first_text_on():
    assert kept(turns(9), knowing(count_tokens=TokenCounts(words))) == list(range(6, 18))


def test_a_prompt_that_cannot_be_too_long_is_not_even_counted():
    def refuse(text):
        raise AssertionError("counted")

    assert kept(turns(2), knowing(100_000, refuse)) == list(range(4))


@pytest.mark.parametrize("fields", [{}, {"prompt": "x" * 10_000}, {"messages": []}, {"messages": None}])
def test_what_is_no_conversation_stays(fields):
    assert trimmed(fields)[0] is fields


def test_odd_values_are_passed_over():
    odd = [
        {"role": "assistant", "tool_calls": [None, 3, {"function": 4}, {"id": [], "function": {"name": None}}]},
        {"role": "user", "content": [None, 5, [], {"type": []}, {"type": None, "text": 5}, {"text": 10**30}]},
        {"role": "tool", "content": {"a": 1}, "tool_call_id": {}},
        {"role": "assistant", "content": 5, "tool_calls": "x", "function_call": "y", "reasoning": 9},
    ]
    tools = [None, 7, {"function": {"parameters": {"maximum": 10**30}}}]
    fields = {"messages": [*odd, *turns(12)], "tools": tools, "max_tokens": True}
    after, found = trimmed(fields)
    assert found.cut_messages > 0
    assert after["messages"][0]["role"] == "user"


# Conversations of any shape, turn by turn.

sizes = st.integers(0, 160)
replies = st.builds(lambda size: [said("assistant", size)], sizes)


@st.composite
def tool_loops(draw):
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    results = [said("tool", draw(sizes), tool_call_id=name) for name in names]
    return [{"role": "assistant", "content": None, "tool_calls": list(map(call, names))}, *results]


turns_of_any_shape = st.builds(
    lambda size, loops, reply: [said("user", size), *(each for loop in loops for each in loop), *reply],
    sizes,
    st.lists(tool_loops(), max_size=2),
    replies,
)
conversations = st.lists(turns_of_any_shape, min_size=1, max_size=25)
leadings = st.lists(st.builds(said, st.sampled_from(["system", "developer"]), st.integers(0, 300)), max_size=2)
rules = st.builds(HistoryTrimSettings, start=st.floats(0.2, 1), step=st.floats(0.05, 0.8))


@given(leadings, conversations, rules, st.booleans())
def test_what_is_left_fits_and_is_whole(leading, conversation, settings, tools):
    messages = [*leading, *(message for turn in conversation for message in turn)]
    fields = {"messages": messages} | ({"tools": [{"type": "function", "function": {"name": "f"}}]} if tools else {})
    rule = HistoryTrim(settings)
    found = rule.detect(fields, knowing())
    after = applied(fields, found.edits)
    left = after["messages"]

    assert rule.detect(after, knowing()).edits == ()
    assert len(messages) - len(left) == found.cut_messages
    # The leading messages and a whole end of the conversation, all the same objects.
    history = left[len(leading) :]
    assert all(one is other for one, other in zip(left, messages[: len(leading)], strict=False))
    assert all(one is other for one, other in zip(history, messages[-len(history) :], strict=True))
    last_user = max(n for n, message in enumerate(messages) if message["role"] == "user")
    assert len(history) >= len(messages) - last_user
    if found.edits:
        assert history[0]["role"] == "user"
        called = {each["id"] for message in history for each in message.get("tool_calls", ())}
        assert all(message["tool_call_id"] in called for message in history if message["role"] == "tool")
    reported = sum(words(message["content"] or "") + 6 for message in left)
    assert reported < settings.start * LIMIT or len(history) == len(messages) - last_user


@given(leadings, conversations, rules)
def test_while_a_conversation_grows_the_cut_only_moves_forward_and_then_by_a_step(leading, conversation, settings):
    rule = HistoryTrim(settings)
    cuts = []
    for length in range(1, len(conversation) + 1):
        fields = {"messages": [*leading, *(message for turn in conversation[:length] for message in turn)]}
        cuts.append((rule.detect(fields, knowing()).cut_messages, fields["messages"]))
    for (before, _), (after, messages) in pairwise(cuts):
        assert before <= after
        left_before = messages[: len(leading)] + messages[len(leading) + before :]
        reported = sum(words(message["content"] or "") for message in left_before)
        marks = 40 * len(left_before)
        # It moves only where what was left has become too long.
        assert before == after or reported + marks >= int(settings.start * LIMIT) - 1


@given(st.integers(1, 60), rules)
def test_even_turns_move_the_cut_as_seldom_as_the_step_says(number, settings):
    # 20 tokens a turn, which is less than any step; a step is no more than half of what may be left, unless asked for.
    cuts = {len(turns(n, 4)) - len(kept(turns(n, 4), **settings.model_dump())) for n in range(1, number + 1)}
    most = 1 + number * 20 / (min(settings.step, settings.start / 2) * LIMIT - 1)
    assert len(cuts - {0}) <= most


@given(st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "assistant", "x"])}, optional={
    "content": st.none() | st.text() | st.lists(st.none() | st.text() | st.dictionaries(
        st.sampled_from(["type", "text"]), st.text() | st.integers())),
    "tool_calls": st.none() | st.lists(st.none() | st.dictionaries(st.sampled_from(["id", "function"]), st.text())),
    "tool_call_id": st.none() | st.text(),
}), max_size=20))  # fmt: skip
def test_never_raises_and_is_idempotent_for_any_request(messages):
    given_ = knowing(limit=60, count_tokens=None)
    after, _ = trimmed({"messages": messages}, given_)
    assert trimmed(after, given_)[1].edits == ()
