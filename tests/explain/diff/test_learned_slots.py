"""How a place that varies would be found: from two prompts, for all others."""

import re

import pytest
from differing import chat, difference
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.config.canon_settings import SlotSettings
from gateway.core.reasons import Reason
from gateway.explain.diff.learned import learned_slot

AROUND = "You answer questions about parcels.\n{}\nBe brief and kind to everybody, and never promise a date.\n"


def learned(before: str, after: str):
    one, other = chat(("system", before), ("user", "Hi")), chat(("system", after), ("user", "Hi"))
    return learned_slot(one, other, difference(one, other))


@pytest.mark.parametrize(
    ("before", "after", "regex", "name"),
    [
        ("Customer: Anna Smith", "Customer: Anna Jones", "^Customer: (.+)$", "customer"),
        ("Customer: Anna Smith", "Customer: Bob Miller", "^Customer: (.+)$", "customer"),
        ("- Build: 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "- Build: 8a6e0804-2bd0-4672-b79d-d97027f9071a",
         "^- Build: (.+)$", "build"),
        ("You help Anna Smith, a gold member.", "You help Bob Kent, a gold member.",
         "^You help (.+?), a gold", "you-help"),
        ("Order 4711, ticket TCK-9931 is open", "Order 4711, ticket TCK-8821 is open",
         " ticket (.+?) is open", "ticket"),
        ("Room 12 holds sensor a9f3bc21de", "Room 12 holds sensor 77c0b1f2aa",
         r"^Room \d+ holds sensor (.+)$", "holds-sensor"),
        ("[k29fq8xz]", "[p81mz3qd]", r"^\[((?:[A-Za-z]+[0-9]|[0-9]+[A-Za-z])[A-Za-z0-9]*)\]", "random"),
        ("- [k29fq8xz] Be quick.", "- [7bmz3q9d] Be quick.",
         r"^- \[((?:[A-Za-z]+[0-9]|[0-9]+[A-Za-z])[A-Za-z0-9]*)\]", "random"),
    ],
)  # fmt: skip
def test_a_place_is_found_by_what_stands_around_it(before, after, regex, name):
    slot = learned(AROUND.format(before), AROUND.format(after))
    assert (slot.regex, slot.name) == (regex, name)
    assert not slot.is_kept
    text = AROUND.format(after)
    assert re.search(regex, text, re.MULTILINE).span(1) == (slot.start, slot.end)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # What stands in front holds what only these two have in common.
        ("Customer Anna Smith, ticket TCK-9931 is open", "Customer Anna Smith, ticket TCK-8821 is open"),
        ("Order 4711-22: run r-9a8b7c6d5e", "Order 4711-22: run r-1f2e3d4c5b"),
    ],
)
def test_values_of_others_are_no_part_of_it(before, after):
    slot = learned(AROUND.format(before), AROUND.format(after))
    assert slot is not None
    assert not any(secret in slot.regex + slot.name for secret in ("Anna", "Smith", "4711", "22", "anna"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[k29fq8xz]", "[p81mz3qd]"),
        ("[4f7qk2]", "[9xw1mz]"),
        ("(K29FQ8XZ)", "(P81MZ3QD)"),
    ],
)
def test_a_random_mark_at_the_very_beginning_is_an_id_and_gets_a_slot(before, after):
    one, other = f"{before} You are Eva, who answers briefly.", f"{after} You are Eva, who answers briefly."
    slot = learned(one, other)
    assert (slot.reason, slot.name, other[slot.start : slot.end]) == (Reason.DYNAMIC_ID, "random", after[1:-1])
    setting = SlotSettings(name=slot.name, regex=slot.regex, varies="request")
    for prompt in ("[note] You are Eva.", "[12] You are Eva.", "(beta) You are Eva."):
        assert re.search(setting.regex, prompt, re.MULTILINE) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[note]", "[hint]"),
        ("[12]", "[13]"),
        ("k29fq8xz", "p81mz3qd"),
        ("[k29fq8xz] and [aa11bb22]", "[p81mz3qd] and [aa11bb22]"),
    ],
)
def test_what_a_pattern_of_marks_would_not_find_alone_gets_no_slot(before, after):
    text = "{}\n[aa11bb22]\n" if "and" in before else "{} You are Eva.\n"
    assert learned(text.format(before), text.format(after)) is None


def test_a_line_that_stands_there_twice_is_not_learned():
    line = "Customer: {}"
    one, other = AROUND.format(line.format("Anna")), AROUND.format(line.format("Bob"))
    assert learned(one, other) is not None
    assert learned(one + line.format("Eve"), other + line.format("Eve")) is None


def test_only_values_in_leading_messages_are_learned():
    assert learned("Be brief.", "Be kind and say more than one word, always, to everybody who asks.") is None
    one = chat(("system", "Be brief."), ("user", "Customer: Anna Smith"))
    other = chat(("system", "Be brief."), ("user", "Customer: Bob Miller"))
    assert learned_slot(one, other, difference(one, other)) is None
    assert learned_slot(one, one, None) is None


def test_content_parts_are_one_text():
    parts = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Customer: {}"}]

    def prompt(name):
        return chat(("system", [parts[0], {**parts[1], "text": f"Customer: {name}"}]), ("user", "Hi"))

    slot = learned_slot(prompt("Anna"), prompt("Bob"), difference(prompt("Anna"), prompt("Bob")))
    assert (slot.regex, slot.start) == ("^Customer: (.+)$", len("Be brief.\nCustomer: "))
    assert slot.reason is Reason.USER_DATA


values = st.one_of(
    st.uuids().map(str),
    st.datetimes().map(lambda moment: moment.isoformat(timespec="seconds")),
    st.from_regex(r"[A-Z][a-z]{2,8} [A-Z][a-z]{2,8}", fullmatch=True),
    st.integers(10**6, 10**9).map(str),
)
front = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: len(text.splitlines()) < 2)


@given(front, st.tuples(values, values), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@example("Kunde (’neu’): ", ("Anna Smith", "Bob Kent"), "")
@example("a\tb\u200b\u2028 it's: ", ("Anna Smith", "Bob Kent"), " and more")
@example("$1.5 [*]+? per name: ", ("Anna Smith", "Bob Kent"), "\r\nX")
def test_what_is_learned_is_taken_as_a_setting_and_finds_both_values(before, pair, behind):
    assume(pair[0] != pair[1])
    one, other = (AROUND.format(before.replace("{", "").replace("}", "") + value + behind) for value in pair)
    slot = learned(one, other)
    if slot is None:
        return
    setting = SlotSettings(name=slot.name, regex=slot.regex, varies="request")
    assert slot.regex.isprintable()
    for text in (one, other):
        assert len(re.findall(setting.regex, text, re.MULTILINE)) == 1
    (found,) = re.findall(setting.regex, other, re.MULTILINE)
    assert found == other[slot.start : slot.end]
