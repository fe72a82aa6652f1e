"""What is advised about a miss: by its reason, its detail, its place, and the rules that are on.

A rule is named only where it can help: ``dynamic-suffix`` takes values out of system messages only, and a rule that is
on already has done what it can.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gateway.core.canonical import RuleMode, RuleName
from gateway.core.explanation import Difference
from gateway.core.reasons import QUESTION_FIRST, REASONS, Reason

_SYSTEM_ROLES = frozenset({"system", "developer"})
_SYSTEM_ONLY = frozenset({RuleName.DYNAMIC_SUFFIX})
"""Rules that change nothing but system messages."""


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


def advice_for(
    reason: Reason, detail: str = "", *, in_system: bool = True, applied: Collection[RuleName] = frozenset()
) -> str:
    """What to do about a reason.

    Args:
        reason: The reason.
        detail: As ``Difference.detail``; empty if unknown.
        in_system: Whether the difference stands in a system message; true also if its place is unknown.
        applied: The rules in mode ``apply``.
    """
    if detail in HINTS:
        return HINTS[detail].advice
    text = REASONS[reason]
    named = {rule for rule in text.rules if f"{rule}: apply" in text.by_rule}
    if not in_system and named and named <= _SYSTEM_ONLY:
        return text.change
    is_on = bool(named) and named <= set(applied)
    return " ".join(filter(None, (text.change, text.when_on if is_on else text.by_rule)))


def advice_on(difference: Difference, applied: Collection[RuleName]) -> str:
    """What to do about a difference. ``applied``: the rules in mode ``apply``."""
    return advice_for(difference.reason, difference.detail, in_system=is_in_system(difference), applied=applied)


def is_in_system(difference: Difference) -> bool:
    """Whether a difference stands in a system or developer message."""
    return difference.role in _SYSTEM_ROLES


def rules_applied(modes: Collection[RuleMode]) -> frozenset[RuleName]:
    """The rules in mode ``apply``. ``modes``: of every rule, in the order of ``RuleName``; empty if unknown."""
    return frozenset(rule for rule, mode in zip(RuleName, modes, strict=False) if mode is RuleMode.APPLY)
