"""Which mode a rule is in for a request: the most specific word counts."""

from gateway.canon.rulebook import ModeTable, rules_in
from gateway.core.canonical import RuleMode, RuleName

OFF, OBSERVE, APPLY = RuleMode.OFF, RuleMode.OBSERVE, RuleMode.APPLY
SPACE, SUFFIX = RuleName.WHITESPACE, RuleName.DYNAMIC_SUFFIX
CHAT = "/v1/chat/completions"


def mode(table, rule, *, model="m", route=CHAT, tenant=()):
    return table.modes(model, route, tenant)[tuple(RuleName).index(rule)]


def test_rules_without_a_setting_are_observed_but_for_those_that_are_off_by_default():
    table = ModeTable({}, {}, {})
    modes = dict(zip(RuleName, table.modes("m", CHAT, ()), strict=True))
    off = {"inner-spaces", "dash-style", "json-text", "system-order"}
    assert modes == {rule: OFF if rule in off else OBSERVE for rule in RuleName}
    for rule in off:
        assert mode(ModeTable({RuleName(rule): OBSERVE}, {}, {}), RuleName(rule)) is OBSERVE
    assert rules_in(table.modes("m", CHAT, ()), APPLY) == frozenset()


def test_tenant_goes_before_route_before_model_before_everybody():
    table = ModeTable({SPACE: OFF, SUFFIX: OFF}, {"m": {SPACE: OBSERVE}}, {CHAT: {SPACE: APPLY}})
    assert mode(table, SPACE, tenant=((SPACE, OFF),)) is OFF
    assert mode(table, SPACE) is APPLY
    assert mode(table, SPACE, route="/v1/completions") is OBSERVE
    assert mode(table, SPACE, route="/v1/completions", model="other") is OFF
    assert mode(table, SUFFIX, tenant=((SPACE, OFF),)) is OFF


def test_tenants_are_distinguished_by_their_settings_only():
    table = ModeTable({}, {}, {})
    assert mode(table, SPACE, tenant=((SPACE, APPLY),)) is APPLY
    assert mode(table, SPACE, tenant=((SUFFIX, APPLY),)) is OBSERVE
    assert mode(table, SUFFIX, tenant=((SUFFIX, APPLY),)) is APPLY


def test_a_rule_is_applied_to_requests_of_the_messages_api_unless_an_operator_says_otherwise():
    inline, tenant = RuleName.INLINE_SYSTEM, ((RuleName.INLINE_SYSTEM, OFF),)
    assert ModeTable({}, {}, {})["m", CHAT, (), "messages"][1] == {inline}
    assert ModeTable({}, {}, {})["m", CHAT, (), "responses"][1] == frozenset()
    for table, own in (({inline: OBSERVE}, ()), ({}, tenant)):
        assert ModeTable(table, {}, {})["m", CHAT, own, "messages"][1] == frozenset()
    assert ModeTable({inline: APPLY}, {}, {})["m", CHAT, (), ""][1] == {inline}
