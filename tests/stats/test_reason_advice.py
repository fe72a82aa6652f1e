"""Advice names rules that remove the detail at its place, and only those that are not on."""

import re

import pytest

from gateway.core.advice import HINTS, advice_for, rules_for
from gateway.core.canonical import RuleName
from gateway.core.reasons import REASONS, Reason


def named(reason, detail, role="system", **given):
    """The rules that the advice puts into mode ``apply``."""
    return re.findall(r"([a-z-]+): apply", advice_for(reason, detail, role=role, **given))


@pytest.mark.parametrize(
    ("reason", "detail", "rules"),
    [
        (Reason.WHITESPACE, "line_ends", ["whitespace"]),
        (Reason.WHITESPACE, "trailing", ["whitespace"]),
        (Reason.WHITESPACE, "blanks", ["inner-spaces", "whitespace"]),
        (Reason.WHITESPACE, "zero_width", ["unicode"]),
        (Reason.WHITESPACE, "unicode_form", ["unicode"]),
        (Reason.WHITESPACE, "dashes", ["dash-style"]),
        (Reason.WHITESPACE, "quotes", []),
        (Reason.WHITESPACE, "bullets", ["dash-style"]),
        (Reason.WHITESPACE, "json_spacing", ["json-text"]),
        (Reason.WHITESPACE, "json_key_order", ["json-text"]),
        (Reason.ROLE_ORDER, "message_order", ["role-order"]),
        (Reason.ROLE_ORDER, "system_order", ["system-order"]),
    ],
)
def test_every_detail_gets_the_rules_that_remove_it(reason, detail, rules):
    assert named(reason, detail) == rules
    assert rules_for(reason, detail, "system") == tuple(rules)
    assert advice_for(reason, detail, applied=set(RuleName)) == REASONS[reason].change


def test_what_a_rule_does_not_look_at_gets_another_advice():
    assert named(Reason.WHITESPACE, "line_ends", "assistant") == []
    assert named(Reason.WHITESPACE, "json_spacing", "user") == []
    assert named(Reason.WHITESPACE, "line_ends", "") == []  # in a tool
    assert named(Reason.TOOLS_REORDERED, "tool_order", "") == ["tool-order", "json-keys"]


def test_a_rule_that_is_on_is_not_advised_beside_another():
    assert named(Reason.WHITESPACE, "blanks", applied={RuleName.WHITESPACE}) == ["inner-spaces"]


@pytest.mark.parametrize("detail", HINTS)
def test_a_hint_needs_no_rule(detail):
    assert rules_for(Reason.USER_DATA, detail, "system") == ()
    assert advice_for(Reason.USER_DATA, detail) == HINTS[detail].advice
