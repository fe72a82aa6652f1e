"""A configuration to start with, as YAML with the reasons as comments, from what an analysis found."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.canonical import RuleName
from gateway.evaluation.analysis.log_analysis import RepeatInterval, RuleGain

_LEAST_POINTS = 0.5
"""Points of the hit rate from which a rule is suggested."""

_SAFE = frozenset({RuleName.UNICODE, RuleName.WHITESPACE, RuleName.TOOL_ORDER, RuleName.JSON_KEYS})
"""Rules that change no content: suggested as applied; the others as observed."""

_WANTED_SHARE = 0.95
"""Share of the repeated tokens that the TTL should cover."""

_LONGEST_TTL = 86_400.0
_MAX_MODELS = 20


def starting_configuration(
    models: Sequence[tuple[str, str | None]],
    rules: Sequence[RuleGain],
    intervals: Sequence[RepeatInterval],
    suggestions: Sequence[Mapping[str, Any]],
    *,
    idle_ttl_seconds: float,
) -> str:
    """The configuration, which ``prefix-gateway check`` accepts.

    Args:
        models: The models of the log, most requests first, each with its tokenizer; None: by the model's name.
        rules: The gain of each rule.
        intervals: Repeat intervals against times to live.
        suggestions: Slots for ``dynamic-suffix``, as in the summary of the admin API.
        idle_ttl_seconds: The TTL of now.
    """
    lines = ["# Check it with `prefix-gateway check FILE`. Replace the addresses by those of your engines."]
    lines.append("models:")
    for number, (model, tokenizer) in enumerate(models[:_MAX_MODELS] or [("my-model", None)]):
        lines.append(f"  - id: {json.dumps(model)}")
        if tokenizer is not None:
            lines.append(f"    tokenizer: {json.dumps(tokenizer)}")
        lines.append(f'    replicas: ["http://engine-{number}-0:8000", "http://engine-{number}-1:8000"]')
    lines += _rules(rules, suggestions)
    lines += _spaces(intervals, idle_ttl_seconds)
    return "\n".join(lines) + "\n"


def _rules(rules: Sequence[RuleGain], suggestions: Sequence[Mapping[str, Any]]) -> list[str]:
    chosen = [each for each in rules if each.rule in set(RuleName) and each.points >= _LEAST_POINTS]
    slots = [slot for slot in (_slot(each) for each in suggestions) if slot is not None]
    if not chosen and not slots:
        return []
    lines = ["canon:"]
    if chosen:
        lines.append("  rules:")
        for each in chosen:
            mode = "apply" if each.rule in _SAFE else "observe"
            why = f"Gains {each.points:.1f} points of the hit rate"
            if mode == "observe":
                why += "; try it with `prefix-gateway canon` before it is applied"
            lines += [f"    # {why}", f"    {each.rule}: {mode}"]
    if slots:
        lines += ["  dynamic_suffix:", "    slots:", *slots]
    return lines


def _slot(suggestion: Mapping[str, Any]) -> str | None:
    line = str(suggestion["yaml"]).rstrip("\n").rpartition("\n")[2]
    return line if line.lstrip().startswith("- {") and (suggestion.get("points") or 0) >= _LEAST_POINTS else None


def _spaces(intervals: Sequence[RepeatInterval], idle_ttl_seconds: float) -> list[str]:
    """A longer TTL if the present one ends too early for what repeats."""
    if not any(each.share for each in intervals):
        return []
    present = max((each.share for each in intervals if each.seconds <= idle_ttl_seconds), default=1.0)
    if present >= _WANTED_SHARE:
        return []
    enough = [each for each in intervals if each.share >= _WANTED_SHARE and each.seconds <= _LONGEST_TTL]
    seconds = min((each.seconds for each in enough), default=_LONGEST_TTL)
    if seconds <= idle_ttl_seconds:
        return []
    # A comment: without tenants nothing expires unless it is set, so the line would shorten what it is to extend.
    return [
        f"# {100 * present:.0f} % of the repeats come within {idle_ttl_seconds:g} s. With isolation:",
        "# spaces:",
        f"#   idle_ttl_seconds: {seconds:g}",
    ]
