"""Makes the result of an analysis from its sums.

Its verdict is one sentence: start with an application, align formats first, or little to gain.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import ALL_RULES, OPT_IN, RuleName
from gateway.core.reasons import REASONS, Reason, Remedy, Rung
from gateway.evaluation.analysis.analysis_options import ENGINE_TOKENIZER, AnalysisOptions
from gateway.evaluation.analysis.log_analysis import (
    ApplicationShare,
    ExpectedHits,
    LogAnalysis,
    LogRead,
    ReasonShare,
    RepeatedTokens,
    RuleGain,
    Verdict,
)
from gateway.evaluation.analysis.log_explainer import SEEN_BLOCKS, ApplicationSums, ExplainedSums
from gateway.evaluation.analysis.opening_groups import OTHERS
from gateway.evaluation.analysis.record_encoding import NO_MODEL, OTHER_MODELS
from gateway.evaluation.analysis.shared_personal_data import PersonalDataShare
from gateway.evaluation.analysis.starting_configuration import starting_configuration
from gateway.evaluation.analysis.traffic_sums import TrafficSums
from gateway.evaluation.logs.log_reading import ReadCounts
from gateway.explain.client_family import UNKNOWN
from gateway.stats import figures
from gateway.stats.totals import Totals

_APPLICATIONS = 20
_SOURCES_NAMED = 2
_FINDINGS = 10
_OWN_SHARE = 0.9
_PERSONAL_DATA = 50
_WEEK_SECONDS = 7 * 86_400

_UNTRIED = OPT_IN | {RuleName.HISTORY_TRIM}
"""``history-trim`` goes by the engine's context limit, which a log does not say."""

BEHIND_CHANGES = frozenset(
    reason for reason, text in REASONS.items() if text.rung is Rung.REUSABLE and text.remedy is Remedy.APPLICATION
) - {Reason.MODEL_CHANGED}
"""Reasons of tokens that repeat behind something that changes in the prompt."""
LITTLE = 0.1
"""Share of the prompt tokens that repeat, also behind changes, below which there is little to gain."""

_CHANGING = 0.1
"""Least share of the prompt tokens behind changes for which aligning comes first; it must exceed what repeats now."""


@dataclass(frozen=True, slots=True)
class LogSums:
    """All sums of an analysis.

    Attributes:
        options: What it was done with.
        counts: What was read.
        models: The models, most requests first.
        not_encoded: Requests whose tokens are estimated.
        traffic: Sums that need no text.
        explained: Sums of the explanations.
        personal_data: Personal data in prefixes.
        personal_data_skipped: Requests that were not searched.
        forgets: Whether there were more blocks than are remembered.
    """

    options: AnalysisOptions
    counts: ReadCounts
    models: Sequence[str]
    not_encoded: int
    traffic: TrafficSums
    explained: ExplainedSums
    personal_data: Sequence[PersonalDataShare]
    personal_data_skipped: int
    forgets: bool


def analysis_of(sums: LogSums, expected: list[ExpectedHits], expected_note: str) -> LogAnalysis:
    """The result.

    Args:
        sums: The sums.
        expected: Expected hit rates.
        expected_note: What they are based on.
    """
    options, traffic, explained = sums.options, sums.traffic, sums.explained
    totals = Totals(explained.row)
    by_source = {name: Totals(row).requests for name, row in explained.sources.items()}
    applications = [
        _application(each, totals.prompt_tokens, by_source, is_rest=number == OTHERS)
        for number, each in explained.applications.items()
    ]
    applications.sort(key=lambda each: -each.prompt_tokens)
    sources = [
        _application(ApplicationSums("", row, {name: by_source[name]}), totals.prompt_tokens, {}, is_rest=False)
        for name, row in explained.sources.items()
    ]
    sources.sort(key=lambda each: -each.prompt_tokens)
    reasons = _reasons(totals)
    causes = [each for each in reasons if each.code in BEHIND_CHANGES]
    behind = sum(each.tokens for each in causes)
    rules = _rules(totals)
    has_times = sums.counts.without_time < sums.counts.requests
    intervals = traffic.intervals if has_times else []
    behind_share, ideal_share = _share(behind, totals.prompt_tokens), _share(totals.hits, totals.prompt_tokens)
    place = next((each["path"] for each in explained.findings if causes and each["reason"] == causes[0].code), "")
    return LogAnalysis(
        verdict=verdict_of(
            repeated=ideal_share,
            behind_changes=behind_share,
            applications=[each for each in applications if each.opening] or sources,
            causes=causes,
            place=place,
            rules=rules,
        ),
        read=_read(sums, has_times=has_times),
        requests=totals.requests,
        prompt_tokens=totals.prompt_tokens,
        ideal=RepeatedTokens(totals.hits, ideal_share),
        behind_changes=RepeatedTokens(behind, behind_share),
        long_tokens=options.long_tokens,
        long_prefixes=traffic.long_prefixes,
        long_prefix_tokens=traffic.long_prefix_tokens,
        reported=traffic.reported,
        prompts=traffic.prompts,
        shared_prefixes=traffic.prefixes,
        intervals=intervals,
        interval_bars=traffic.interval_bars if has_times else [],
        reasons=reasons,
        ladder=figures.ladder(totals),
        applications=applications[:_APPLICATIONS],
        sources=sources[:_APPLICATIONS],
        families=explained.families[:_APPLICATIONS],
        findings=[_finding(each, totals.prompt_tokens) for each in explained.findings[:_FINDINGS]],
        rules=rules,
        undeclared=_undeclared(rules, options.canon),
        suggestions=explained.suggestions[:_FINDINGS],
        personal_data=[each._asdict() for each in sums.personal_data[:_PERSONAL_DATA]],
        expected=expected,
        expected_note=expected_note,
        configuration=starting_configuration(
            _models(sums),
            rules,
            intervals,
            explained.suggestions,
            idle_ttl_seconds=options.idle_ttl_seconds,
        ),
    )


def _read(sums: LogSums, *, has_times: bool) -> LogRead:
    counts, explained = sums.counts, sums.explained
    ranked = sorted(counts.unreadable.items(), key=lambda each: -each[1].count)
    return LogRead(
        files=dict(counts.formats),
        requests=counts.requests,
        others=counts.others,
        unreadable=counts.unreadable_entries,
        unreadable_reasons=[
            {"reason": reason, "entries": each.count, "places": each.places} for reason, each in ranked
        ],
        without_time=counts.without_time,
        begin=explained.begin,
        end=explained.end,
        tokenizer=sums.options.tokenizer,
        notes=_notes(sums, has_times=has_times),
    )


def _models(sums: LogSums) -> list[tuple[str, str | None]]:
    """The models that are named, each with its tokenizer unless that is only the built-in one."""
    named = [model for model in sums.models if model not in (NO_MODEL, OTHER_MODELS)]
    found = [(model, sums.options.options_of(model)) for model in named]
    if sums.options.is_built_in:
        return [(model, None) for model in named]
    return [(model, options.tokenizer if options else ENGINE_TOKENIZER) for model, options in found]


def _notes(sums: LogSums, *, has_times: bool) -> list[str]:
    options, counts, explained = sums.options, sums.counts, sums.explained
    notes: list[str] = []
    if options.is_built_in:
        notes.append(
            "Tokens are counted with the small built-in tokenizer, which makes more of them than your model's: shares "
            "hardly change, lengths do. --tokenizer or --config takes yours."
        )
    if not has_times:
        notes.append("The log has no times: repeat intervals are unknown, and times in prompts may not be recognized.")
    elif counts.without_time:
        notes.append(f"{counts.without_time:,} requests have no time: each counts as a second after the one before.")
    if sums.not_encoded:
        notes.append(
            f"{sums.not_encoded:,} requests hold media or cannot be rendered: their tokens are estimated from the text."
        )
    if sums.forgets:
        tokens = SEEN_BLOCKS * options.block_size
        notes.append(f"Of more than about {tokens:,} different tokens, those not used for longest are forgotten.")
    if explained.end - explained.begin > _WEEK_SECONDS:
        notes.append("Causes and suggestions are those of the last seven days; all other figures are of the whole log.")
    if sums.personal_data_skipped:
        notes.append(f"{sums.personal_data_skipped:,} prompts are too long to be searched for personal data.")
    return notes + [f"Rules: {notice}." for notice in explained.notices]


def _application(
    sums: ApplicationSums, prompt_tokens: int, by_source: Mapping[str, int], *, is_rest: bool
) -> ApplicationShare:
    totals = Totals(sums.row)
    reasons = _codes(totals)
    return ApplicationShare(
        name="requests without a common opening" if is_rest else _name(sums.opening, sums.sources, by_source),
        opening=sums.opening,
        sources=dict(sorted(sums.sources.items(), key=lambda each: -each[1])),
        requests=totals.requests,
        prompt_tokens=totals.prompt_tokens,
        share=_share(totals.prompt_tokens, prompt_tokens),
        repeated=totals.hits,
        hit_rate=_share(totals.hits, totals.prompt_tokens),
        behind_changes=sum(tokens for code, tokens in reasons.items() if code in BEHIND_CHANGES),
        reasons=dict(reasons.most_common()),
    )


def _name(opening: str, sources: Mapping[str, int], by_source: Mapping[str, int]) -> str:
    """The client families as far as they are known; and the opening, unless they send hardly anything else."""
    ranked = [name for name in sorted(sources, key=lambda name: -sources[name]) if name != UNKNOWN]
    named = ", ".join(ranked[:_SOURCES_NAMED]) + (", …" if len(ranked) > _SOURCES_NAMED else "")
    sent = sum(by_source.get(name, 0) for name in sources)
    if named and (not opening or (UNKNOWN not in sources and sum(sources.values()) >= _OWN_SHARE * sent)):
        return named
    quoted = f"“{opening}”" if opening else ""
    return " ".join(each for each in (named, quoted) if each) or "unknown clients"


def _reasons(totals: Totals) -> list[ReasonShare]:
    return [
        ReasonShare(
            code,
            REASONS[Reason(code)].title,
            tokens,
            _share(tokens, totals.prompt_tokens),
            REASONS[Reason(code)].advice,
        )
        for code, tokens in _codes(totals).most_common()
    ]


def _codes(totals: Totals) -> "Counter[str]":
    return Counter({reason.value: int(tokens) for reason, tokens in totals.missed_tokens.items() if tokens})


def _undeclared(rules: Sequence[RuleGain], canon: CanonSettings) -> list[str]:
    """The rules that found nothing because nothing is declared for them."""
    declared = {RuleName.PATTERN: canon.patterns, RuleName.DOCUMENT_ORDER: canon.document_order.documents}
    idle = {each.rule for each in rules if not each.requests}
    return [str(rule) for rule, found in declared.items() if rule in idle and not found]


def _rules(totals: Totals) -> list[RuleGain]:
    requests, tokens = totals.observed
    if not requests:
        return []
    gains = [
        RuleGain(rule, int(changed), int(saved), int(lost), round(100 * (saved - lost) / tokens, 4) if tokens else 0.0)
        for (rule, _), (changed, saved, lost) in totals.rules.items()
    ]
    alone = [each for each in gains if each.rule != ALL_RULES]
    together = [each for each in gains if each.rule == ALL_RULES and len(alone) > 1]
    found = {each.rule for each in alone}
    idle = [RuleGain(rule, 0, 0, 0, 0.0) for rule in RuleName if rule not in found and rule not in _UNTRIED]
    return [*together, *sorted(alone, key=lambda each: -each.points), *idle]


def _finding(finding: Mapping[str, Any], prompt_tokens: int) -> dict[str, Any]:
    names = ("source", "reason", "title", "path", "line", "requests", "tokens", "said", "advice", "example")
    return {name: finding[name] for name in names} | {"share": _share(finding["tokens"], prompt_tokens)}


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


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
