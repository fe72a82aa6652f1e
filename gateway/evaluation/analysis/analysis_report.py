"""The report of an analysis: what it says, in sections."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any

from gateway.core.canonical import OPT_IN, RuleName
from gateway.core.reasons import Reason
from gateway.evaluation.analysis.expected_hits import POLICIES
from gateway.evaluation.analysis.log_analysis import ApplicationShare, LogAnalysis
from gateway.evaluation.analysis.report_parts import Bars, Figures, Listing, Paragraph, ReportDocument, ReportSection

_REASONS = 12
_UNREADABLE = 5
_FAMILIES = 10
_PERSONAL_DATA = 10
_SHORT_TOKENS = 128
_MILLION = 1_000_000
_WORTH_A_TRIAL = 0.005
_DECLARED_IN = {RuleName.PATTERN: "canon.patterns", RuleName.DOCUMENT_ORDER: "canon.document_order.documents"}


def report_of(analysis: LogAnalysis) -> ReportDocument:
    """The report."""
    return ReportDocument("Prefix analysis", analysis.verdict.sentence, tuple(_sections(analysis)))


def _sections(analysis: LogAnalysis) -> Iterator[ReportSection]:
    yield ReportSection("What was read", tuple(_read(analysis)))
    yield ReportSection("What repeats", tuple(_repeats(analysis)))
    yield ReportSection("Lengths", tuple(_lengths(analysis)))
    yield ReportSection("When it repeats", tuple(_intervals(analysis)))
    if analysis.expected:
        yield ReportSection("Expected hit rate", tuple(_expected(analysis)))
    yield ReportSection("Why the rest is computed", tuple(_reasons(analysis)))
    yield ReportSection("Applications", tuple(_applications(analysis)))
    if analysis.families:
        yield ReportSection("Same content, other format", tuple(_families(analysis.families)))
    if analysis.rules:
        yield ReportSection("Canonicalization", tuple(_rules(analysis)))
    yield ReportSection("Personal data in prefixes", tuple(_personal_data(analysis.personal_data)))
    yield ReportSection("A configuration to start with", (Listing(analysis.configuration),))


def _read(analysis: LogAnalysis) -> Iterator[Paragraph | Figures]:
    read = analysis.read
    files = ", ".join(f"{name} ({kind})" for name, kind in read.files.items())
    spans = ""
    if read.without_time < read.requests:
        spans = f", from {_time(read.begin)} to {_time(read.end)}"
    yield Paragraph(
        f"{files}: {read.requests:,} requests, {_count(analysis.prompt_tokens)} prompt tokens "
        f"({read.tokenizer}){spans}."
    )
    if read.others:
        yield Paragraph(f"{read.others:,} entries are no requests for text.")
    if read.unreadable:
        yield Paragraph(f"{read.unreadable:,} entries could not be read:")
        yield Figures(
            ("reason", "first places", "entries"),
            [
                (each["reason"], ", ".join(each["places"]), f"{each['entries']:,}")
                for each in read.unreadable_reasons[:_UNREADABLE]
            ],
            texts=2,
        )
    for note in read.notes:
        yield Paragraph(note)


def _repeats(analysis: LogAnalysis) -> Iterator[Paragraph | Figures | Bars]:
    rows = [
        ("ideal hit rate: one cache that never evicts", percent(analysis.ideal.share), _count(analysis.ideal.tokens)),
        (
            "repeats behind something that changes",
            percent(analysis.behind_changes.share),
            _count(analysis.behind_changes.tokens),
        ),
        (
            f"in shared prefixes of at least {analysis.long_tokens:,} tokens",
            percent(analysis.long_prefix_tokens),
            _count(round(analysis.long_prefix_tokens * analysis.prompt_tokens)),
        ),
    ]
    yield Figures(("of the prompt tokens", "share", "tokens"), rows)
    yield Paragraph(
        f"{percent(analysis.long_prefixes)} of the requests begin with at least {analysis.long_tokens:,} tokens that "
        "an earlier request had."
    )
    if analysis.reported is not None:
        reported = analysis.reported
        yield Paragraph(
            f"The engines reported {percent(reported.hit_rate)} of the prompt tokens as cached, in "
            f"{reported.requests:,} answers; ideal for the same requests: {percent(reported.ideal_hit_rate)}."
        )


def _lengths(analysis: LogAnalysis) -> Iterator[Figures | Bars]:
    pairs = (("prompts", analysis.prompts), ("shared prefixes", analysis.shared_prefixes))
    yield Figures(
        ("tokens", "mean", "p50", "p90", "p99"),
        [(name, *(f"{value:,.0f}" for value in (each.mean, each.p50, each.p90, each.p99))) for name, each in pairs],
    )
    for name, each in pairs:
        yield Bars(f"Length of {name} in tokens, share of the requests", _token_bars(each.bars))


def _intervals(analysis: LogAnalysis) -> Iterator[Paragraph | Figures | Bars]:
    if not analysis.intervals:
        yield Paragraph("The log has no times.")
        return
    yield Figures(
        ("time to live", "share of the repeats", "hit rate with it"),
        [(each.label, percent(each.share), percent(each.hit_rate)) for each in analysis.intervals],
    )
    bars = [
        (f"over {_duration(low)}" if high == inf else f"to {_duration(high)}", share)
        for low, high, share in analysis.interval_bars
    ]
    yield Bars("Time since the same tokens were used last, share of the repeated tokens", bars)


def _expected(analysis: LogAnalysis) -> Iterator[Paragraph | Figures]:
    heads = ("cache per replica", "replicas", *POLICIES.values())
    yield Figures(
        heads,
        [
            (
                f"{_count(each.cache_tokens)} tokens",
                f"{each.replicas}",
                *(percent(each.by_policy[policy]) for policy in POLICIES),
            )
            for each in analysis.expected
        ],
    )
    yield Paragraph(analysis.expected_note)


def _reasons(analysis: LogAnalysis) -> Iterator[Paragraph | Figures | Bars]:
    yield Bars(
        "Where the prompt tokens go",
        [
            ("served from an ideal cache", analysis.ideal.share),
            *((each.title, each.share) for each in analysis.reasons[:_REASONS]),
        ],
    )
    costly = [each for each in analysis.findings if each["share"] >= 0.001]
    if costly:
        yield Figures(
            ("cause", "place", "source", "example", "share"),
            [(_said(each), _place(each), each["source"], each["example"], percent(each["share"])) for each in costly],
            texts=4,
        )
        advice = dict.fromkeys((each["title"], each["advice"]) for each in costly)
        for title, text in advice:
            yield Paragraph(f"{title}: {text}")


def _applications(analysis: LogAnalysis) -> Iterator[Figures]:
    def rows(shares: Sequence[ApplicationShare]) -> list[tuple[str, ...]]:
        return [
            (
                each.name,
                f"{each.requests:,}",
                percent(each.share),
                percent(each.hit_rate),
                percent(each.behind_changes / each.prompt_tokens if each.prompt_tokens else 0.0),
            )
            for each in shares
        ]

    heads = ("requests", "of all tokens", "repeats", "behind changes")
    yield Figures(("application", *heads), rows(analysis.applications))
    if len(analysis.sources) > 1:
        yield Figures(("source", *heads), rows(analysis.sources))


def _families(families: Sequence[dict[str, Any]]) -> Iterator[Paragraph | Figures]:
    yield Paragraph("These clients send the leading messages or tools of one application in different forms:")
    yield Figures(
        ("client", "than", "difference", "place", "requests"),
        [
            (
                each["source"],
                each["than"],
                each["difference"]["said"],
                each["difference"]["path"],
                f"{each['requests']:,}",
            )
            for each in families[:_FAMILIES]
        ],
        texts=4,
    )


_DECLARATION = """\
canon:
  document_order:
    documents:
      - {name: tags, opening: "<document", closing: "</document>", id: 'id="([^"]+)"'}
"""
"""Documents in tags, the most usual form."""


def _rules(analysis: LogAnalysis) -> Iterator[Paragraph | Figures | Listing]:
    idle = [each.rule for each in analysis.rules if not each.requests and each.rule not in analysis.undeclared]
    rows = [
        (
            "all together" if each.rule == "all" else each.rule,
            f"{each.requests:,}",
            _count(each.saved_tokens),
            _count(each.lost_tokens),
            f"{each.points:+.1f}",
        )
        for each in analysis.rules
        if each.requests
    ]
    if rows:
        names = ("rule", "requests changed", "tokens saved", "tokens lost", "points of the hit rate")
        yield Figures(names, rows)
    if idle:
        yield Paragraph(f"Nothing to change: {', '.join(idle)}.")
    for rule in analysis.undeclared:
        yield Paragraph(f"{rule}: nothing is declared ({_DECLARED_IN[RuleName(rule)]}), so it has nothing to change.")
    if RuleName.DOCUMENT_ORDER in analysis.undeclared and any(
        each.code == Reason.DOCUMENTS_REORDERED and each.share >= _WORTH_A_TRIAL for each in analysis.reasons
    ):
        yield Paragraph(
            "Documents come in another order. If their order means nothing, declare them, and analyze with --config "
            "what it gains. Documents in tags, for example:"
        )
        yield Listing(_DECLARATION)
    yield Paragraph("history-trim is not tried: a log does not say how many tokens the model takes.")
    yield Paragraph(
        f"{', '.join(rule for rule in RuleName if rule in OPT_IN)} are not tried either, because they change how texts "
        "look or what is read first: prefix-gateway canon shows what they would change."
    )


def _personal_data(found: Sequence[dict[str, Any]]) -> Iterator[Paragraph | Figures]:
    shared = [each for each in found if each["shared"]]
    if not found:
        yield Paragraph("None was found in front of the first user messages.")
        return
    if not shared:
        yield Paragraph(
            f"None is shared by several conversations; {len(found)} places hold some that only one conversation has."
        )
        return
    yield Paragraph("Text that several conversations share holds personal data (the text is not shown):")
    yield Figures(
        ("kind", "place", "source", "requests"),
        [(each["kind"], each["path"], each["source"], f"{each['requests']:,}") for each in shared[:_PERSONAL_DATA]],
        texts=3,
    )


def _said(finding: dict[str, Any]) -> str:
    """What changes, without the place that stands beside it."""
    place = _place(finding)
    said = str(finding["said"])
    return said.removeprefix(f"{place}: ") if said else str(finding["title"])


def _place(finding: dict[str, Any]) -> str:
    return f"{finding['path']}, line {finding['line']}" if finding["line"] else str(finding["path"])


def _token_bars(bars: Sequence[tuple[float, float, float]]) -> list[tuple[str, float]]:
    """The bars with their labels; short lengths share one."""
    none = sum(share for _, high, share in bars if high <= 1)
    short = sum(share for _, high, share in bars if 1 < high <= _SHORT_TOKENS)
    first = [("0", none)] if none else []
    if short:
        first.append((f"to {_SHORT_TOKENS}", short))
    return first + [(f"to {high:,.0f}", share) for _, high, share in bars if high > _SHORT_TOKENS]


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


def _count(number: float) -> str:
    if number >= 10 * _MILLION:
        return f"{number / _MILLION:,.1f} M"
    return f"{number:,.0f}"


def _duration(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
