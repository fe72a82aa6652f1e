"""The same blocks of text in another order: found by usual separators, or by the operator's own."""

import itertools

import pytest
from differing import chat, code, difference

from gateway.canon.document_places import DocumentPlace
from gateway.config.document_order_settings import DocumentPlaceSettings
from gateway.explain.diff import find_difference
from gateway.explain.diff.declared_documents import declared_reordered
from gateway.explain.diff.slot import common_length
from gateway.explain.diff.text_blocks import reordered

PASSAGES = [
    "The north pier is open from sunrise to sunset.",
    "Bicycles travel free of charge on the ferry.",
    "The lighthouse can be visited on Sundays.",
]
MOVED = [PASSAGES[2], *PASSAGES[:2]]


def found(before, after, *, may_ask=False):
    return reordered(before, after, common_length(before, after), may_ask=may_ask)


FORMS = {
    "lines": "\n".join,
    "empty lines": "\n\n".join,
    "rules": "\n---\n".join,
    "list": lambda passages: "\n".join(f"- {each}" for each in passages),
    "numbers": lambda passages: "\n".join(f"[{n}] {each}" for n, each in enumerate(passages, 1)),
    "numbered list": lambda passages: "\n".join(f"{n}. {each}" for n, each in enumerate(passages, 1)),
    "labels": lambda passages: "\n".join(f"Document {n}: {each}" for n, each in enumerate(passages, 1)),
    "labels in a line": lambda passages: " ".join(f"Document {n}: {each}" for n, each in enumerate(passages, 1)),
    "headings": lambda passages: "\n\n".join(f"## {each[:9]}\n{each}" for each in passages),
    "tags": lambda passages: "".join(f"<doc>{each}</doc>" for each in passages),
    "tags with numbers": lambda passages: "\n".join(
        f'<doc index="{n}">{each}</doc>' for n, each in enumerate(passages, 1)
    ),
    "tags with ids": lambda passages: "\n".join(f'<doc id="{each[4:9]}">\n{each}\n</doc>' for each in passages),
    "bars in a line": " || ".join,
    "rules in a line": lambda passages: "Context: " + " ### ".join(passages),
    "objects": lambda passages: "[" + ", ".join(f'{{"text": "{each}"}}' for each in passages) + "]",
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@each_form
def test_any_order_of_the_same_blocks_is_found_in_every_form(form):
    for one, other in itertools.permutations(itertools.permutations(PASSAGES), 2):
        assert found(f"Read:\n{form(one)}", f"Read:\n{form(other)}") is not None


@each_form
def test_blocks_that_were_edited_added_or_replaced_are_another_difference(form):
    edited = [MOVED[0], MOVED[1].replace("open", "shut"), MOVED[2]]
    for other in (edited, MOVED[:2], [*MOVED, "The market is held every morning."], [MOVED[0], "x" * 40, MOVED[2]]):
        assert found(f"Read:\n{form(PASSAGES)}", f"Read:\n{form(other)}") is None


@each_form
def test_blocks_in_the_same_order_behind_a_change_are_another_difference(form):
    assert found(f"Read now:\n{form(PASSAGES)}", f"Read then:\n{form(PASSAGES)}") is None


def test_the_number_of_blocks_with_another_place():
    before, after = "\n".join(PASSAGES), "\n".join([PASSAGES[1], PASSAGES[0], PASSAGES[2]])
    assert found(before, after).pieces == 2
    assert found(before, "\n".join(MOVED)).pieces == 3


def test_a_question_behind_them_may_differ_where_users_write():
    before = "\n".join([*PASSAGES, "When is the pier open?"])
    after = "\n".join([*MOVED, "Do dogs travel free?"])
    assert found(before, after, may_ask=True) is not None
    assert found(before, after) is None
    labelled = [text.replace("When", "Question: When").replace("Do ", "Question: Do ") for text in (before, after)]
    assert found(*labelled) is not None


def test_a_request_of_any_length_may_follow_a_closing_tag():
    request = "Write a letter to the harbour office, in which I ask for " + "another day and " * 20 + "a cabin."
    tagged = [FORMS["tags with ids"](each) for each in (PASSAGES, MOVED)]
    wrapped = [f"<documents>\n{each}\n</documents>" for each in tagged]
    for before, after in (tagged, wrapped):
        asked = f"Read.\n{before}\n{request}", f"Read.\n{after}\nI need:\n- the hours of the market\n- its prices."
        assert found(*asked, may_ask=True).pieces >= 2
        assert found(*asked) is None
        assert found(f"Read.\n{before}\n{request}", f"Read.\n{after}\n{request}", may_ask=True) is not None
        assert found(f"{before}\n{request}", f"{before}\nIt is for the market.", may_ask=True) is None
        edited = f"Read.\n{after.replace('open', 'shut')}\nI need its prices."
        assert found(f"Read.\n{before}\n{request}", edited, may_ask=True) is None


@pytest.mark.parametrize(
    "form", ["(score {}) {}", "Score: {} {}", "[{}] {}", "1. (relevance={}) {}", "{1} (score: {0})"]
)
def test_scores_of_documents_may_change(form):
    before = "\n".join(form.format(score, each) for score, each in zip((0.97, 0.9, 0.875), PASSAGES, strict=True))
    after = "\n".join(form.format(score, each) for score, each in zip((0.93, 0.85, 0.8), MOVED, strict=True))
    assert found(before, after).pieces == 3
    assert found(before, after.replace("open", "shut")) is None
    assert found(before, before.replace("0.9", "0.8")) is None


def test_a_mark_that_does_not_come_again_separates_nothing():
    before, after = " || ".join(PASSAGES[:2]), " || ".join(PASSAGES[1::-1])
    assert found(before, after) is None
    assert found(f"{before} || It is free.", f"{after} || It is free.").pieces == 2


def test_short_values_are_no_blocks():
    assert found("one\ntwo\nthree", "three\none\ntwo") is None


def place(**declared):
    return DocumentPlace(DocumentPlaceSettings(name="hits", **declared))


SEPARATED = place(separator="%%", after="HITS", before="END")


def declared(before, after, *places):
    return declared_reordered(before, after, common_length(before, after), places or (SEPARATED,))


def hits(*documents):
    return f"Read. HITS {' %% '.join(documents)} END {documents[0]}?"


def test_declared_documents_in_another_order():
    for one, other in itertools.permutations(itertools.permutations("abc"), 2):
        assert declared(hits(*one), hits(*other))


@pytest.mark.parametrize("other", [("b", "a"), ("b", "a", "c", "d"), ("b", "a", "x"), ("a", "b", "c"), ("a", "b", "x")])
def test_declared_documents_that_are_others(other):
    before, after = hits("a", "b", "c"), hits(*other)
    assert before == after or not declared(before, after)


def test_a_difference_in_front_of_declared_documents_is_another_one():
    assert not declared(f"Today. {hits('a', 'b')}", f"Tomorrow. {hits('b', 'a')}")


def test_numbers_of_declared_documents_may_stay_or_move_along():
    numbered = place(regex=r"\[\d+\] \w+", number=r"\[(\d+)\]")
    assert declared("[1] aa, [2] bb", "[1] bb, [2] aa", numbered)
    assert declared("[1] aa, [2] bb", "[2] bb, [1] aa", numbered)
    assert not declared("[1] aa, [2] bb", "[1] bb, [3] aa", numbered)


def test_without_a_declaration_it_is_what_it_was():
    before, after = (chat(("system", "Be kind."), ("user", hits(*words))) for words in (PASSAGES, MOVED))
    sources = {"before_source": "web", "after_source": "web"}
    assert code(difference(before, after, same_conversation=False)) == ("user_data", "words")
    declared = find_difference(
        before, after, **sources, same_conversation=False, replies=(), tools_first=False, places=(SEPARATED,)
    )
    assert code(declared) == ("documents_reordered", "blocks")
