"""Declared documents come in one order for any order they were sent in, and numbers keep naming the same document."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats, completions
from text_rule_checks import changed, check_idempotent

from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.document_order import DocumentOrder
from gateway.config.document_order_settings import DocumentOrderSettings
from gateway.core.canonical import RuleName

TAGS = {"name": "tags", "opening": "<document", "closing": "</document>"}
PASSAGES = ["Parcels travel for two days.", "Refunds take a week.", "Returns are free of charge."]
NUMBERED = {"name": "sources", "regex": r"^\[\d+\] .+$", "number": r"^\[(\d+)\]", "numbers": "renumber"}


def rule_with(*documents):
    return DocumentOrder(DocumentOrderSettings(documents=documents))


def asked(text, role="user", rule=None, **given):
    """One text after the rule."""
    fields = {"messages": [{"role": role, "content": text}]} if role else {"prompt": text}
    after = changed(rule or rule_with(TAGS), fields)
    return after["messages"][0]["content"] if role else after["prompt"]


def tagged(passages):
    return "\n".join(f"<document>{passage}</document>" for passage in passages)


def numbered(passages):
    return "\n".join(f"[{number}] {passage}" for number, passage in enumerate(passages, 1))


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", ""])
def test_every_order_becomes_the_same_and_the_rest_stays(role):
    results = {asked(f"Read:\n{tagged(order)}\n\nWhat is free?", role) for order in itertools.permutations(PASSAGES)}
    (one,) = results
    assert one.startswith("Read:\n<document>")
    assert one.endswith("</document>\n\nWhat is free?")
    assert all(one.count(f"<document>{passage}</document>") == 1 for passage in PASSAGES)


def test_without_a_declaration_nothing_is_done():
    text = tagged(reversed(PASSAGES))
    assert {asked(tagged(order), rule=DocumentOrder(DocumentOrderSettings())) for order in (PASSAGES,)} == {
        tagged(PASSAGES)
    }
    assert asked(text, rule=rule_with({**TAGS, "opening": "<doc", "closing": "</doc>"})) == text


def test_answers_and_other_roles_stay():
    fields = {
        "messages": [{"role": "assistant", "content": tagged(order)} for order in itertools.permutations(PASSAGES)]
    }
    assert changed(rule_with(TAGS), fields) is fields
    only_system = rule_with({**TAGS, "roles": ["system"]})
    orders = list(itertools.permutations(PASSAGES))
    assert [asked(tagged(order), "user", only_system) for order in orders] == [tagged(order) for order in orders]
    assert len({asked(tagged(order), "system", only_system) for order in orders}) == 1


def test_separated_documents_between_their_bounds():
    rule = rule_with({"name": "hits", "separator": "\n---\n", "after": "Context:\n", "before": "\n\nQuestion:"})
    results = {
        asked("A\n---\nB\nContext:\n" + "\n---\n".join(order) + "\n\nQuestion: why?\n---\nZ\n---\nY", rule=rule)
        for order in itertools.permutations(PASSAGES)
    }
    (one,) = results
    assert one.startswith("A\n---\nB\nContext:\n")
    assert one.endswith("\n\nQuestion: why?\n---\nZ\n---\nY")
    for order in itertools.permutations(PASSAGES):
        unbounded = "Context:\n" + "\n---\n".join(order) + "\nanother end"
        assert asked(unbounded, rule=rule) == unbounded


def test_separated_documents_up_to_the_end_keep_the_end_of_the_text():
    rule = rule_with({"name": "hits", "separator": "\n\n", "after": "Context:\n"})
    (one,) = {asked("Context:\n" + "\n\n".join(order) + "\n", rule=rule) for order in itertools.permutations(PASSAGES)}
    assert one.endswith(".\n")
    assert sorted(one.removeprefix("Context:\n").strip().split("\n\n")) == PASSAGES


def test_documents_of_a_pattern_in_a_list():
    rule = rule_with({"name": "json", "regex": r'\{"text": "[^"]*"\}'})
    orders = [[f'{{"text": "{passage}"}}' for passage in order] for order in itertools.permutations(PASSAGES)]
    (one,) = {asked(f"[{', '.join(order)}]", rule=rule) for order in orders}
    assert one.startswith('[{"text": ')
    assert one.endswith("}]")


def test_by_id():
    rule = rule_with({**TAGS, "id": 'id="([^"]+)"'})
    documents = {
        name: f'<document rank="9" id="{name}">{text}</document>' for name, text in zip("bca", PASSAGES, strict=True)
    }
    for order in itertools.permutations("abc"):
        text = "\n".join(documents[name] for name in order)
        assert asked(text, rule=rule) == "\n".join(documents[name] for name in "abc")
    without = "\n".join([documents["b"], documents["a"], "<document>No id.</document>"])
    assert asked(without, rule=rule) == without


def test_text_between_documents_separates_runs():
    orders = list(itertools.permutations(PASSAGES))
    results = {
        asked(f"Ours:\n{tagged(one)}\nTheirs:\n{tagged(other)}") for one, other in itertools.product(orders, orders)
    }
    (one,) = results
    assert one.split("\nTheirs:\n")[0].removeprefix("Ours:\n") == one.split("\nTheirs:\n")[1]


@pytest.mark.parametrize(
    "text",
    [
        "<document>b <document>inner</document></document><document>a</document>",
        "<documents><document>b</document></documents>",
        "<document>b</document> and <document>a</document>",
        "<document>b",
        "",
    ],
)
def test_nested_and_single_documents_are_left_alone(text):
    assert asked(text) == text


def test_the_tag_around_the_documents_is_none():
    results = {asked(f"<documents>\n{tagged(order)}\n</documents>") for order in itertools.permutations(PASSAGES)}
    assert len(results) == 1


def test_numbers_travel_with_their_documents():
    rule = rule_with({**NUMBERED, "numbers": "travel"})
    for order in itertools.permutations(PASSAGES):
        lines = numbered(order).split("\n")
        after = asked(f"{numbered(order)}\nIs [2] right?", rule=rule)
        assert sorted(after.split("\n")[:3]) == lines
        assert [line[4:] for line in after.split("\n")[:3]] == [
            line[4:] for line in asked(numbered(PASSAGES), rule=rule).split("\n")
        ]
        assert after.endswith("Is [2] right?")


def test_numbers_are_given_anew_and_citations_follow():
    rule = rule_with(NUMBERED)
    fronts = set()
    for order in itertools.permutations(PASSAGES):
        after = asked(f"{numbered(order)}\n\nCompare [2] with [1]; [4] is none.", rule=rule)
        front, question = after.split("\n\n")
        fronts.add(front)
        documents = dict(line[1:].split("] ") for line in front.split("\n"))
        assert list(documents) == ["1", "2", "3"]
        second, first = question[9:10], question[18:19]
        assert (documents[second], documents[first]) == (order[1], order[0])
        assert question.endswith("; [4] is none.")
    assert len(fronts) == 1


def conversation(order, question="Which is right, [1]?"):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{numbered(order)}\n{question}"}]


def remembering(store):
    return RuleContext(now=0, owner="acme", recall=store.get)


def test_a_conversation_keeps_the_numbers_that_its_answer_used():
    rule, store = rule_with(NUMBERED), {}
    order = next(
        each for each in itertools.permutations(PASSAGES) if asked(numbered(each), rule=rule) != numbered(each)
    )
    first = {"messages": conversation(order)}
    found = rule.detect(first, remembering(store))
    sent = applied(first, found.edits)["messages"]
    store |= found.remember
    later = [{"role": "assistant", "content": "It is [1]."}, {"role": "user", "content": "And what does [2] say?"}]
    second = {"messages": [*conversation(order), *later]}
    found = rule.detect(second, remembering(store))
    assert applied(second, found.edits)["messages"] == [*sent, *later]
    assert found.remember == store
    # Made-up answers cite the numbers as they were sent.
    assert rule.detect(second, remembering({})).edits == ()


def test_what_comes_later_does_not_change_what_was_sent():
    rule, store = rule_with(NUMBERED), {}
    orders = [each for each in itertools.permutations(PASSAGES) if asked(numbered(each), rule=rule) != numbered(each)]
    first = {"messages": conversation(orders[0])}
    found = rule.detect(first, remembering(store))
    store |= found.remember
    sent = applied(first, found.edits)["messages"]
    answer = {"role": "assistant", "content": "It is [1]."}
    unsafe = conversation(orders[1], "What does the second document say?")[1]
    second = {"messages": [*first["messages"], answer, unsafe]}
    found = rule.detect(second, remembering(store))
    assert applied(second, found.edits)["messages"] == [*sent, answer, unsafe]


@pytest.mark.parametrize(
    "question",
    [
        "What does document 2 say?",
        "Was steht in Dokument 2?",
        "資料2は?",
        "Is the second document right?",
        "Is the last one right?",
        "Compare documents 1 and 3.",
        "Is source no. 3 right?",
        "See [1, 2].",
        "See [1-3].",
        "See (2).",
        "See #2.",
        "What does document two say?",
        "Compare [7, 2].",
        "Compare documents 7 and 2.",
        "Что сказано в документе 2?",
        "Was steht im 2. Dokument?",
        "Qu'est-ce que dit le deuxième ?",
        "文書２は?",
        "ikinci kaynakta ne yazıyor?",
        "See [1]–[3].",
        "See [1] - [3].",
        "See [1] to [3].",
        "Siehe [1] bis [3].",
        "Explain 2.",
        "Explain 2, please.",
        "Explain 2 and 3.",
        "Compare 1-3.",
        "Compare 1,3.",
        "Is ref2 right?",
        "Is S2 right?",
        "Is ② right?",
        "Free of charge.^2",
        "Is the top result right?",
        "Is the middle one right?",
        "Is the next-to-last right?",
        "2-құжатты түсіндір.",
        "Екінші құжатты түсіндір.",
        "2 құжатты түсіндір.",
    ],
)
def test_what_cannot_be_followed_leaves_the_prompt_alone(question):
    rule = rule_with(NUMBERED)
    for order in itertools.permutations(PASSAGES):
        text = f"{numbered(order)}\n{question}"
        assert asked(text, rule=rule) == text


@pytest.mark.parametrize(
    "question",
    [
        "Answer in 2 sentences.",
        "Call 030 1234 for 3 days.",
        "Document 12?",
        "The last word?",
        "Today is 2026-01-02, 10:02, a 2.5 % day.",
        "Rules:\n1. Be kind.\n2) Be quick.",
        "It costs $3 or 2 %.",
        "2文で答えて。",
        "The top speed, the middle way?",
    ],
)
def test_other_numbers_are_none_of_documents(question):
    rule = rule_with(NUMBERED)
    assert len({asked(f"{numbered(order)}\n{question}", rule=rule) for order in itertools.permutations(PASSAGES)}) == 1


@pytest.mark.parametrize(
    "passages",
    [
        [*PASSAGES[:2], "As [1] says, it is free."],
        ["a", "b", "c [2] d"],
    ],
)
def test_documents_that_cite_others_are_left_alone(passages):
    rule = rule_with(NUMBERED)
    for order in itertools.permutations(passages):
        assert asked(numbered(order), rule=rule) == numbered(order)


@pytest.mark.parametrize("numbers", [(1, 3, 4), (3, 2, 1), (1, 1, 2), ("01", "02", "03")])
def test_numbers_that_are_no_positions_stay(numbers):
    rule = rule_with(NUMBERED)
    for order in itertools.permutations(PASSAGES):
        text = "\n".join(f"[{number}] {passage}" for number, passage in zip(numbers, order, strict=True))
        assert asked(text, rule=rule) == text


def test_two_lists_with_the_same_numbers_are_left_alone():
    rule = rule_with(NUMBERED)
    for order in itertools.permutations(PASSAGES):
        text = f"{numbered(order)}\nOthers:\n{numbered(['x', 'y'])}\nIs [1] right?"
        assert asked(text, rule=rule) == text


def test_citations_in_front_follow_or_stay():
    orders = list(itertools.permutations(PASSAGES))
    follows = {asked(f"Cite as [1].\n{numbered(order)}", rule=rule_with(NUMBERED)) for order in orders}
    assert len(follows) == 3
    stays = rule_with({**NUMBERED, "in_front": "stay"})
    (one,) = {asked(f"Cite as [1].\n{numbered(order)}", rule=stays) for order in orders}
    assert one.startswith("Cite as [1].\n")


def test_a_label_of_its_own_is_followed():
    rule = rule_with(
        {
            "name": "docs",
            "regex": r"^Document \d+: .+$",
            "number": r"^Document (\d+)",
            "numbers": "renumber",
            "citation": r"[Dd]ocument (\d+)",
        }
    )
    for order in itertools.permutations(PASSAGES):
        text = "\n".join(f"Document {number}: {passage}" for number, passage in enumerate(order, 1))
        *documents, question = asked(f"{text}\nIs document 3 right?", rule=rule).split("\n")
        cited = question.removeprefix("Is document ")[0]
        assert [line for line in documents if line.endswith(order[2])] == [f"Document {cited}: {order[2]}"]


def test_what_is_said_quotes_nothing():
    order = max(
        itertools.permutations(PASSAGES),
        key=lambda each: asked(numbered(each), rule=rule_with(NUMBERED)) != numbered(each),
    )
    fields = {"messages": [{"role": "user", "content": f"{numbered(order)}\nIs [1] right, or [2], or [3]?"}]}
    edits = rule_with(NUMBERED).detect(fields, RuleContext(now=0)).edits
    assert {edit.rule for edit in edits} == {RuleName.DOCUMENT_ORDER}
    assert {edit.what for edit in edits} == {"renumbered", "citation"}
    assert not any(passage in edit.summary for edit in edits for passage in PASSAGES)


def test_earlier_declarations_come_first_where_two_overlap():
    rule = rule_with(TAGS, {"name": "all", "regex": r"<document>.*?</document>", "id": "(free|week|two)"})
    (one,) = {asked(tagged(order), rule=rule) for order in itertools.permutations(PASSAGES)}
    assert one == asked(tagged(PASSAGES), rule=rule_with(TAGS))


def test_very_many_documents_and_very_long_texts_stay():
    passages = [f"passage {number}" for number in range(1200)]
    random.Random(1).shuffle(passages)
    assert asked(tagged(passages)) == tagged(passages)
    long = tagged(["b" * 600_000, "a" * 600_000])
    assert asked(long) == long
    assert asked(tagged(passages[:900])) == asked(tagged(sorted(passages[:900])))


def test_documents_that_grow_together_in_the_new_order_are_left_alone():
    # An "a" takes a "b" right behind it along, so that sorting may make one document of two.
    rule = rule_with({"name": "odd", "regex": r"a\d(?:\n\nb\d)?|[bc]\d"})
    for words in itertools.product(*([f"{letter}{n}" for n in range(5)] for letter in "acb")):
        for order in itertools.permutations(words):
            check_idempotent(rule, {"messages": [{"role": "user", "content": "\n\n".join(order)}]})


PLACES = st.lists(
    st.sampled_from(
        [
            TAGS,
            {"name": "t", "regex": r"<document>\n.*\n</document>"},
            {"name": "l", "regex": r"^- .+$"},
            {"name": "s", "separator": "\n\n", "after": "x"},
            NUMBERED,
            {"name": "c", "regex": r"\[context \d+\]", "number": r"(\d+)", "numbers": "renumber"},
        ]
    ),
    max_size=3,
)


@given(chats() | completions(), PLACES)
def test_once_is_enough_for_any_request(fields, places):
    check_idempotent(rule_with(*places), fields)


LINES = ["[1] a", "[2] b", "[3] c", "[1] d", "[2] e", "- b", "- a", "see [2]", "", "<document>b</document>"]


@given(st.lists(st.sampled_from(LINES), max_size=8), PLACES)
def test_once_is_enough_for_texts_of_documents(lines, places):
    check_idempotent(rule_with(*places), {"messages": [{"role": "user", "content": "x" + "\n".join(lines)}]})
