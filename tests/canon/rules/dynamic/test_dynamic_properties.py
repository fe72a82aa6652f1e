"""For any prompt: nothing is lost, nothing is doubled, and what was moved once is not moved again."""

import re

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from moving import NOW, Conversation, rule
from requests_at_random import chats

from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.dynamic.dynamic_suffix import BlockForm
from gateway.config.canon_settings import DynamicSuffixSettings, SlotSettings

_FORM = BlockForm(DynamicSuffixSettings())
_TIMES = [
    "2026-11-21 10:02",
    "2026-11-21",
    "21. November 2026",
    "Saturday, November 21, 2026",
    "10:02",
    "1795255320",
    "2024-03-12",
    "Monday",
    "2026年11月21日",
    "21.11.2026 um 10:02 Uhr",
    "٢١ نوفمبر ٢٠٢٦",
]
_IDS = ["3f2504e0-4f89-11d3-9a0c-0305e82c3301", "req_8f7a6b5c4d", "42", "ab12cd34ef"]
_FRONTS = [
    "Current time: ",
    "Today is ",
    "Date: ",
    "Time: ",
    "You are Eva, today is ",
    "Session ID: ",
    "request id ",
    "- ",
    "**Current date:** ",
    "Heute ist ",
    "今天是",
    "اليوم هو ",
    "User ID: ",
    "Trace: ",
    "",
    "> ",
    "| ",
    '"today is ',
    "# ",
    "Example: ",
    "Hi Tom,",
    "x-anthropic-billing-header: cch=1; v=",
    "Customer: ",
    "From: ",
    "[context 3] ",
    "<doc>",
    "</doc>",
    "<env>",
    "```",
    "it is now ",
    "Ticket ",
]
_BACKS = [
    "",
    ".",
    ", and be nice.",
    " (UTC)",
    "\n",
    ". Be short. ",
    " Uhr",
    '"',
    "。",
    " [context 7]",
    "</doc>",
    " |",
    ";",
]
_PIECES = st.builds(
    lambda front, value, back: front + value + back,
    st.sampled_from(_FRONTS),
    st.sampled_from([*_TIMES, *_IDS, "", "words of no value", "[context 2]"]),
    st.sampled_from(_BACKS),
)
_TEXTS = st.lists(st.tuples(_PIECES, st.sampled_from(["\n", " ", "\n\n", "", "\r\n"])), max_size=10).map(
    lambda pieces: "".join(part for piece in pieces for part in piece)
)
_SLOTS = st.lists(
    st.sampled_from(
        [
            SlotSettings(name="customer", regex=r"^Customer: (.+)$"),
            SlotSettings(name="digits", regex=r"\d+", varies="request"),
            SlotSettings(name="ticket", regex=r"Ticket (\S+)", varies="request"),
            SlotSettings(name="word", regex=r"is (\w+) ?(x)?"),
            SlotSettings(name="lines", regex=r"Date: ([^|]+)be", varies="request"),
        ]
    ),
    max_size=2,
    unique_by=lambda slot: slot.name,
)


def _contents(messages):
    out = []
    for message in messages:
        content = message["content"]
        out += [content] if isinstance(content, str) else [part["text"] for part in content]
    return out


def _filled(text, values):
    """The text with values in place of their pointers."""
    return _FORM.pattern.sub(lambda match: values.get(int(match[1]), match[0]), text)


@given(st.lists(_TEXTS, min_size=1, max_size=3), _SLOTS, st.booleans())
@settings(max_examples=4 * settings().max_examples)
def test_the_block_holds_what_the_pointers_stand_for_and_nothing_more_is_found(texts, slots, parts):
    leading = [{"role": "system", "content": [{"type": "text", "text": text}] if parts else text} for text in texts]
    fields = {"model": "m", "messages": [*leading, {"role": "user", "content": "Hi"}]}
    one = rule(slots=slots)
    found = one.detect(fields, RuleContext(NOW))
    after = applied(fields, found.edits)
    below = _FORM.largest(texts)
    behind = after["messages"][-1]["content"].removeprefix("Hi").removeprefix("\n\n")
    values = _FORM.read(behind, below) if behind else {}
    # Every value is behind, under the number of one pointer each.
    now_leading = _contents(after["messages"][:-1])
    pointers = [int(n) for text in now_leading for n in _FORM.pattern.findall(text) if int(n) > below]
    assert pointers == sorted(values) == list(range(below + 1, below + 1 + len(values)))
    assert [_filled(text, values) for text in now_leading] == texts
    assert one.detect(after, RuleContext(NOW)).edits == ()
    assert rule(slots=slots).detect(after, RuleContext(NOW)).edits == ()


@given(st.lists(_TEXTS, min_size=2, max_size=4))
def test_a_conversation_only_grows_wherever_its_context_keeps_its_places(texts):
    """Each turn says the same but for other times. Where these are the ids of sessions, each is a conversation."""
    conversation = Conversation()
    assume(not re.search(r"(session|user) id\b.*10:02", texts[0], re.IGNORECASE))
    said, before = [], []
    for turn, time in enumerate(("10:02", "10:02", "11:15", "10:02")):
        said.append({"role": "user", "content": f"question {turn}"})
        leading = {"role": "system", "content": texts[0].replace("10:02", time)}
        sent = conversation.send({"messages": [leading, *said]})
        same_places = not before or sent[0] == before[0]
        if same_places:
            assert sent[: len(before)] == before
            # Where the turn before had other leading messages, its blocks belong to those.
            assert conversation.last.context_lost is (turn > 0 and not before and bool(conversation.last.edits))
        latest = {}
        below = _FORM.largest([leading["content"]])
        for message in sent[1:]:
            latest |= _FORM.read(message["content"].partition("\n\n")[2], below) if message["role"] == "user" else {}
        assert _filled(sent[0]["content"], latest) == leading["content"]
        said.append({"role": "assistant", "content": "answer"})
        before = [*sent, said[-1]] if same_places else []


@given(chats())
@settings(max_examples=2 * settings().max_examples)
def test_odd_requests_pass(fields):
    found = rule().detect(fields, RuleContext(NOW))
    after = applied(fields, found.edits)
    assert rule().detect(after, RuleContext(NOW)).edits == ()
    for before, now in zip(fields["messages"], after["messages"], strict=True):
        if before.get("role") == "assistant":
            assert before is now


def test_pointers_of_other_settings_are_found_again():
    form = BlockForm(DynamicSuffixSettings(pointer="<{number}>", opening="A", closing="B"))
    text = form.written({3: "x\n<2> y", 10: "z"})
    assert text == "A\n<3> x\n<2> y\n<10> z\nB"
    assert form.read(text, 2) == {3: "x\n<2> y", 10: "z"}
    assert re.sub(form.pattern, "", "a<12>b") == "ab"
