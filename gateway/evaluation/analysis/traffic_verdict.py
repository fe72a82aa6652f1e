"""The verdict on a log, in one sentence: start with an application, align formats first, or little to gain."""

from collections.abc import Sequence

from gateway.evaluation.analysis.log_analysis import ApplicationShare, ReasonShare, RuleGain, Verdict

LITTLE = 0.1
"""Share of the prompt tokens that repeat, also behind changes, below which there is little to gain."""

_CHANGING = 0.1
"""Least share of the prompt tokens behind changes for which aligning comes first; it must exceed what repeats now."""


def verdict_of(
    *,
    repeated: float,
    behind_changes: float,
    applications: Sequence[ApplicationShare],
    causes: Sequence[ReasonShare],
    place: str,
    rules: Sequence[RuleGain],
) -> Verdict:
    """The verdict.

    Args:
        repeated: Share of the prompt tokens that an ideal cache reuses.
        behind_changes: Share of the prompt tokens that repeat behind something that changes.
        applications: The applications.
        causes: Reasons of the tokens behind changes, most tokens first.
        place: Where the change that costs most stands, such as ``messages[0].content``; empty if unknown.
        rules: The gain of each rule.
    """
    if repeated + behind_changes < LITTLE:
        sentence = f"Little to gain: {_percent(repeated)} of the prompt tokens repeat"
        if behind_changes >= 0.005:
            sentence += f", and {_percent(behind_changes)} more would if what changes in front of them were aligned"
        return Verdict("little_to_gain", sentence + ".")
    if behind_changes >= _CHANGING and behind_changes > repeated and causes:
        cause = causes[0]
        where = f" in {place}" if place else ""
        sentence = (
            f"Align formats first: {_percent(behind_changes)} of the prompt tokens repeat only behind something that "
            f"changes (mostly: {cause.title.lower()}{where}), {_percent(repeated)} can be reused as they are"
        )
        best = next((rule for rule in rules if rule.rule != "all" and rule.points >= 1), None)
        if best is not None:
            sentence += f"; the rule {best.rule} alone gains {best.points:.0f} points"
        return Verdict("align_first", sentence + ".")
    best_application = max(applications, key=lambda each: each.repeated, default=None)
    if best_application is None or not best_application.repeated:
        return Verdict("little_to_gain", f"Little to gain: {_percent(repeated)} of the prompt tokens repeat.")
    return Verdict(
        "start_with",
        f"Start with {best_application.name}: {_percent(best_application.hit_rate)} of its prefill repeats "
        f"({_percent(repeated)} of all prompt tokens repeat).",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"
