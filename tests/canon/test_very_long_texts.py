"""Texts of many mebibytes: no search takes for ever, and none keeps other threads from running for long."""

import random
import re

import orjson
import pytest
from cpu_limit import cpu_seconds
from levels import slow_except

from gateway.canon.rewrite import RawJson
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import rulebook
from gateway.canon.rules.dynamic.search import OperatorSlots
from gateway.config.canon_settings import CanonSettings, SlotSettings
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

MIB = 2**20


def changed(text, *rules, role="system", **settings):
    fields = {"messages": [{"role": role, "content": text}, {"role": "user", "content": "x"}]}
    given = RuleContext(now=1_793_268_000.0, endpoint=Endpoint.CHAT, owner="a", tenant="t", recall=lambda key: None)
    return rulebook(CanonSettings(**settings)).canonical(fields, rules, given).fields != fields


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (RuleName.WHITESPACE, "blanks behind a line  \nand more\n"),
        pytest.param(RuleName.UNICODE, "e\u0301 and a\u0308\n", marks=pytest.mark.slow),
        pytest.param(
            RuleName.DYNAMIC_SUFFIX, "Request id: 550e8400-e29b-41d4-a716-446655440000\n", marks=pytest.mark.slow
        ),
    ],
)
def test_texts_of_more_than_a_mebibyte_stay_as_they_are(rule, text):
    assert changed(text + "a\n" * 400_000, rule)
    assert not changed(text + "a\n" * 600_000, rule)


@pytest.mark.parametrize("rule", [RuleName.WHITESPACE, RuleName.UNICODE, RuleName.DYNAMIC_SUFFIX])
@pytest.mark.parametrize(
    "unit",
    slow_except(
        ["a", "1", " ", "\n", "a \n\n\n", "1\n", "é", "e\u0301", "<pre>", "`", "\r\n", "~~~~\n"],
        {"a"},
    ),
)
def test_the_longest_texts_that_are_changed(rule, unit):
    with cpu_seconds(60):
        changed((unit * MIB)[:MIB], rule)


@pytest.mark.slow
def test_a_line_with_very_many_slots():
    # What stood in front of each on the line was copied for each.
    slots = OperatorSlots([SlotSettings(name="n", regex="No [0-9]")])
    text = ("No 1 " + "x" * 35) * 100_000 + "No 1"
    with cpu_seconds(15):
        assert sum(1 for _ in slots.find(text, "m", re.compile("pointer"))) == 100_001


@pytest.mark.parametrize("shift", slow_except([0, 1, 2, 3, 50, 101, 127, 128, 129], {0, 1, 128}))
@pytest.mark.parametrize("filler", ["a", "\\\\", "\\n", '\\"'])
def test_strings_that_reach_over_the_ends_of_portions(filler, shift):
    long = filler * (MIB // len(filler))
    rnd = random.Random(shift)
    short = ",".join(f'"{"k" * rnd.randrange(130)}"' for _ in range(20_000))
    name = "a" + "x" * shift
    document = f'{{"{name}": "{long}", "b": [{short}, {{"c": "{long}{long}\\\\"}}], "d": 1}}'.encode()
    parsed = orjson.loads(document)
    raw = RawJson(document)
    members = raw.members(raw.root().value)
    assert {member.name: orjson.loads(document[member.value : member.end]) for member in members} == parsed
