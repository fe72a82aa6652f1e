"""Rules one after the other: in their order, those that are wanted, each on what the one before it left."""

import itertools

from gateway.canon.rule import Detected, Edit, RuleContext
from gateway.canon.rulebook import Rulebook, rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import RuleName

NOW = 1795255320.0  # 2026-11-21 10:02 UTC
GIVEN = RuleContext(now=NOW, count_tokens=lambda text: len(text) // 4, context_limit=1000)

FAULTS = {
    "messages": [
        {"role": "user", "content": "An old question, asked long ago. " * 80},
        {"role": "system", "content": "Cafe\u0301 help.  \nBuild: 77\nCurrent time: 2026-11-21 10:02\nBe brief."},
        {"role": "system", "content": '• Be  kind.\n{"b":1, "a":2}'},
        {"role": "assistant", "content": "An old answer. " * 80},
        {"role": "user", "content": "Another question. " * 40},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": '{"b": 1, "a": 2}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "user", "content": "<doc>Two</doc>\n<doc>Three</doc>\n<doc>One</doc>\nAnd now?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "sub"}},
        {"function": {"parameters": {"properties": {}, "type": "object"}, "name": "add"}, "type": "function"},
    ],
    "max_tokens": 50,
}
"""Something to do for every rule."""

EVERY_RULE = rulebook(
    CanonSettings(
        patterns=[{"name": "build", "regex": r"^Build: \d+\n"}],
        document_order={"documents": [{"name": "docs", "opening": "<doc", "closing": "</doc>"}]},
    )
)


class Says:
    """A rule that puts its name behind what stands in ``said``."""

    def __init__(self, name, **more):
        self.name = name
        self._more = more

    def detect(self, fields, given):
        edit = Edit(self.name, "said", ("said",), fields["said"], f"{fields['said']} {self.name}")
        return Detected([edit], **self._more)


def test_every_rule_has_its_turn_in_the_order_of_their_names():
    done = EVERY_RULE.canonical(FAULTS, set(RuleName), GIVEN)
    assert [rule for rule, _ in itertools.groupby(edit.rule for edit in done.edits)] == list(RuleName)
    assert done.cut_messages > 0
    assert done.remember


def test_a_rule_that_is_not_wanted_does_nothing():
    for rule in RuleName:
        alone = EVERY_RULE.canonical(FAULTS, {rule}, GIVEN)
        others = EVERY_RULE.canonical(FAULTS, set(RuleName) - {rule}, GIVEN)
        assert {edit.rule for edit in alone.edits} <= {rule}
        assert rule not in {edit.rule for edit in others.edits}
        assert len(others.edits) > 2


def test_no_rules_no_change():
    done = EVERY_RULE.canonical(FAULTS, (), GIVEN)
    assert done.fields is FAULTS
    assert (list(done.edits), done.remember, done.context_lost, done.cut_messages) == ([], {}, False, 0)


def test_each_rule_works_on_what_the_one_before_it_left():
    book = Rulebook([Says(RuleName.UNICODE), Says(RuleName.PATTERN), Says(RuleName.JSON_KEYS)])
    done = book.canonical({"said": "-"}, {RuleName.JSON_KEYS, RuleName.UNICODE}, GIVEN)
    assert done.fields == {"said": "- unicode json-keys"}
    assert [edit.rule for edit in done.edits] == [RuleName.UNICODE, RuleName.JSON_KEYS]


def test_what_rules_say_beside_their_edits_is_put_together():
    book = Rulebook(
        [
            Says(RuleName.UNICODE, remember={b"a": "1"}, cut_messages=2),
            Says(RuleName.PATTERN, context_lost=True),
            Says(RuleName.JSON_KEYS, remember={b"b": "2"}, cut_messages=1),
        ]
    )
    done = book.canonical({"said": "-"}, {RuleName.UNICODE, RuleName.JSON_KEYS}, GIVEN)
    assert (done.remember, done.context_lost, done.cut_messages) == ({b"a": "1", b"b": "2"}, False, 3)
    done = book.canonical({"said": "-"}, {RuleName.PATTERN}, GIVEN)
    assert (done.remember, done.context_lost, done.cut_messages) == ({}, True, 0)


def test_what_was_in_front_of_a_cut_is_not_missed():
    book = Rulebook([Says(RuleName.UNICODE, cut_messages=2), Says(RuleName.PATTERN, context_lost=True)])
    assert book.canonical({"said": "-"}, {RuleName.PATTERN}, GIVEN).context_lost
    assert not book.canonical({"said": "-"}, set(RuleName), GIVEN).context_lost
