"""What is advised about a miss: by its reason, its detail, its place, and the rules that are on.

A rule is named only where it can help: ``dynamic-suffix`` takes values out of system messages only, ``whitespace`` does
not touch dashes, and a rule that is on already has done what it can.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gateway.core.canonical import RuleMode, RuleName
from gateway.core.explanation import Difference
from gateway.core.reasons import QUESTION_FIRST, REASONS, Reason

_SYSTEM = frozenset({"system", "developer"})
_WRITTEN = _SYSTEM | {"user", "prompt"}
_ROLES: Mapping[RuleName, frozenset[str]] = {
    RuleName.UNICODE: _WRITTEN,
    RuleName.WHITESPACE: _WRITTEN,
    RuleName.INNER_SPACES: _WRITTEN,
    RuleName.DASH_STYLE: _WRITTEN,
    RuleName.JSON_TEXT: _SYSTEM,
    RuleName.DYNAMIC_SUFFIX: _SYSTEM,
}
"""Roles of the messages that a rule changes, as in ``Difference.role``; a rule that is not here looks at no role."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What is said about a detail that has a remedy of its own, in place of the reason's text.

    Attributes:
        subject: As in ``ReasonText``.
        advice: As in ``ReasonText``.
        gain: What the remedy would bring, with ``{tokens}`` for the number of tokens.
    """

    subject: str
    advice: str
    gain: str


HINTS: Mapping[str, Hint] = {
    QUESTION_FIRST: Hint(
        "The question in front of documents",
        "Put the documents first, always in one order, and the question behind them.",
        "With the documents first, up to {tokens} tokens more could be reused.",
    ),
}
"""Hints by ``Difference.detail``."""


_BY_DETAIL: Mapping[tuple[Reason, str], tuple[RuleName, ...]] = {
    (Reason.WHITESPACE, "line_ends"): (RuleName.WHITESPACE,),
    (Reason.WHITESPACE, "trailing"): (RuleName.WHITESPACE,),
    (Reason.WHITESPACE, "blanks"): (RuleName.INNER_SPACES, RuleName.WHITESPACE),
    (Reason.WHITESPACE, "zero_width"): (RuleName.UNICODE,),
    (Reason.WHITESPACE, "unicode_form"): (RuleName.UNICODE,),
    (Reason.WHITESPACE, "quotes"): (),
    (Reason.WHITESPACE, "dashes"): (RuleName.DASH_STYLE,),
    (Reason.WHITESPACE, "bullets"): (RuleName.DASH_STYLE,),
    (Reason.WHITESPACE, "json_spacing"): (RuleName.JSON_TEXT,),
    (Reason.WHITESPACE, "json_key_order"): (RuleName.JSON_TEXT,),
    (Reason.ROLE_ORDER, "message_order"): (RuleName.ROLE_ORDER,),
    (Reason.ROLE_ORDER, "system_order"): (RuleName.SYSTEM_ORDER,),
}
"""The rules that remove a detail, where those of the reason have one task each."""

_DOES: Mapping[Reason, str] = {
    Reason.WHITESPACE: "evens it out",
    Reason.ROLE_ORDER: "orders them",
}
"""What the gateway does with the reasons of ``_BY_DETAIL``."""


def rules_for(reason: Reason, detail: str = "", role: str | None = None) -> tuple[RuleName, ...]:
    """The rules that can remove a difference; the most useful first.

    Args:
        reason: Its reason.
        detail: As ``Difference.detail``; empty if unknown.
        role: As ``Difference.role``; None if its place is unknown.
    """
    rules = () if detail in HINTS else _BY_DETAIL.get((reason, detail), REASONS[reason].rules)
    return tuple(rule for rule in rules if role is None or rule not in _ROLES or role in _ROLES[rule])


def advice_for(
    reason: Reason, detail: str = "", *, role: str | None = None, applied: Collection[RuleName] = frozenset()
) -> str:
    """What to do about a reason.

    Args:
        reason: The reason.
        detail: As in ``rules_for``.
        role: As in ``rules_for``.
        applied: The rules in mode ``apply``.
    """
    if detail in HINTS:
        return HINTS[detail].advice
    text, helping = REASONS[reason], rules_for(reason, detail, role)
    if (reason, detail) in _BY_DETAIL:
        modes = ", ".join(f"{rule}: apply" for rule in helping if rule not in applied)
        by_rule = f"Or set canon: {{rules: {{{modes}}}}}, and the gateway {_DOES[reason]}." if modes else ""
        return " ".join(filter(None, (text.change, by_rule)))
    named = {rule for rule in text.rules if f"{rule}: apply" in text.by_rule}
    if not named & set(helping):
        return text.change
    return " ".join(filter(None, (text.change, text.when_on if named <= set(applied) else text.by_rule)))


def advice_on(difference: Difference, applied: Collection[RuleName]) -> str:
    """What to do about a difference. ``applied``: the rules in mode ``apply``."""
    return advice_for(difference.reason, difference.detail, role=difference.role, applied=applied)


@lru_cache(maxsize=256)
def rules_applied(modes: tuple[RuleMode, ...]) -> frozenset[RuleName]:
    """The rules in mode ``apply``. ``modes``: of every rule, in the order of ``RuleName``; empty if unknown."""
    return frozenset(rule for rule, mode in zip(RuleName, modes, strict=False) if mode is RuleMode.APPLY)
