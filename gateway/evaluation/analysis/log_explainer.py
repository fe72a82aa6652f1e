"""Explains recorded requests with the code that explains live ones, and sums the explanations up.

Two steps, which may run in two processes: ``RecordExplainer`` finds references, differences and reasons;
``ExplanationSums`` works out what rules would gain, and adds up. The sums have no time windows: a log may span weeks.
Findings and suggestions come from the live journal, which keeps a week; families of clients are read every hour, for
they are counted by the hour.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from gateway.core.explanation import Explanation, RequestRecord
from gateway.evaluation.analysis.analysis_options import AnalysisOptions, EveryModel
from gateway.evaluation.analysis.opening_groups import OTHERS, OpeningGroups
from gateway.evaluation.analysis.source_forms import SourceForms
from gateway.explain.bodies import parsed
from gateway.explain.prompt_text import prompt_text
from gateway.explain.reference import Frames
from gateway.explain.worker.explain_messages import CanonOptions, WorkerOptions
from gateway.explain.worker.explain_parts import ExplainParts
from gateway.stats.totals import Row, add_to, row_of

SEEN_BLOCKS = 4_194_304
"""Blocks remembered: about 67 million tokens with blocks of 16, in 64 MiB for each of four memories."""

TTL_SECONDS = 30 * 86_400.0
"""How long earlier requests are remembered for comparison, as far as the memory goes."""

_REFERENCE_BYTES = 192 * 1024 * 1024
_FRAMES_BYTES = 16 * 1024 * 1024
_JOURNAL_REQUESTS = 100
_WAITING_BYTES = 64 * 1024 * 1024
_HOUR = 3600
_MAX_SOURCES = 100
_MAX_FAMILIES = 500
_OTHER_SOURCE = "(other)"
_WEEK = "7d"
_SHORTEST_WINDOW = "15m"


class ApplicationSums(msgspec.Struct):
    """The requests of one application.

    Attributes:
        opening: As in ``OpeningGroup``; empty for requests without a common opening.
        row: Sums by column.
        sources: Requests by client family.
    """

    opening: str
    row: Row = msgspec.field(default_factory=dict)
    sources: dict[str, int] = msgspec.field(default_factory=dict)


class ExplainedSums(msgspec.Struct):
    """All explanations of a log, summed up.

    Attributes:
        row: Sums by column.
        sources: The same for each client family.
        applications: By number; ``OTHERS`` for requests without a common opening.
        findings: As in the summary of the admin API.
        suggestions: As in the summary of the admin API.
        families: Likewise, summed over the hours; and those of ``SourceForms``.
        notices: What could not be worked out.
        begin: Time of the first request, Unix seconds.
        end: Time of the last one.
    """

    row: Row
    sources: dict[str, Row]
    applications: dict[int, ApplicationSums]
    findings: list[dict[str, Any]]
    suggestions: list[dict[str, Any]]
    families: list[dict[str, Any]]
    notices: list[str]
    begin: float
    end: float


def _worker_options(options: AnalysisOptions, *, with_rules: bool) -> WorkerOptions:
    models = EveryModel(options)
    canon = CanonOptions(options.canon.model_dump_json().encode(), models) if with_rules and models else None
    return WorkerOptions(
        max_waiting_bytes=_WAITING_BYTES,
        journal_requests=_JOURNAL_REQUESTS,
        journal_ttl_seconds=TTL_SECONDS,
        reference_bytes=_REFERENCE_BYTES,
        reference_ttl_seconds=TTL_SECONDS,
        seen_blocks=SEEN_BLOCKS,
        gpu_hour_price=None,
        currency="",
        gpus={},
        canon=canon,
    )


class RecordExplainer:
    """Explains records in the order of their times.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        self._options = _worker_options(options, with_rules=False)
        self._parts: ExplainParts | None = None
        self._families: dict[tuple[object, ...], dict[str, Any]] = {}
        self._latest = 0.0

    def explain(self, record: RequestRecord) -> Explanation:
        """The explanation of a request."""
        if self._parts is None:
            self._parts = ExplainParts(self._options, record.at)
            self._latest = record.at
        if record.at // _HOUR > self._latest // _HOUR:
            self._note_families(self._parts)
        self._latest = max(self._latest, record.at)
        return self._parts.explain(record)

    def families(self) -> list[dict[str, Any]]:
        """Families of clients that differ, as in the summary of the admin API, summed over the hours so far."""
        if self._parts is not None:
            self._note_families(self._parts)
        return list(self._families.values())

    def _note_families(self, parts: ExplainParts) -> None:
        """Add the families of the hour that is over."""
        # At its end: families count by slots of an hour, and no request came later.
        now = (self._latest // _HOUR + 1) * _HOUR - 1
        for row in _summary(parts, _SHORTEST_WINDOW, now)["families"]:
            key = _key_of(row)
            if key in self._families:
                self._families[key]["requests"] += row["requests"]
            elif len(self._families) < _MAX_FAMILIES:
                self._families[key] = row


class ExplanationSums:
    """Adds explanations up, with the gain of each rule, in the order of their times.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        self._options = _worker_options(options, with_rules=options.with_rules)
        self._parts: ExplainParts | None = None
        frames = Frames(_FRAMES_BYTES)
        self._groups = OpeningGroups(frames)
        self._forms = SourceForms(frames)
        self._row: Row = {}
        self._sources: dict[str, Row] = {}
        self._applications: dict[int, ApplicationSums] = {}
        self._begin = self._end = 0.0

    def add(self, record: RequestRecord, explanation: Explanation) -> None:
        """Add a request."""
        if self._parts is None:
            self._parts = ExplainParts(self._options, record.at)
            self._parts.load_tokenizers()
            self._begin = self._end = record.at
        self._end = max(self._end, record.at)
        explanation = self._parts.observe(record, explanation)
        self._parts.add_request(record, explanation, 1.0)
        self._sum(record, explanation)

    def finish(self, families: Sequence[dict[str, Any]]) -> ExplainedSums:
        """The sums of all requests so far; ``families`` are those that ``RecordExplainer`` found."""
        findings: list[dict[str, Any]] = []
        suggestions: list[dict[str, Any]] = []
        notices: list[str] = []
        if self._parts is not None:
            summary = _summary(self._parts, _WEEK, self._end)
            findings = summary["findings"]
            suggestions = summary["canonicalization"]["suggestions"]
            notices = [" ".join(notice.fields.values()) for notice in self._parts.notices()]
        for number, application in self._applications.items():
            group = self._groups.groups.get(number)
            application.opening = group.opening if group else ""
        forms = {_key_of(row): row for row in self._forms.shown()}
        every = forms | {_key_of(row): row for row in families}
        return ExplainedSums(
            self._row,
            self._sources,
            self._applications,
            findings,
            suggestions,
            sorted(every.values(), key=lambda row: -row["requests"]),
            notices,
            self._begin,
            self._end,
        )

    def _sum(self, record: RequestRecord, explanation: Explanation) -> None:
        row = row_of(record, explanation, 0.0)
        add_to(self._row, row)
        source = record.source if record.source in self._sources or len(self._sources) < _MAX_SOURCES else _OTHER_SOURCE
        add_to(self._sources.setdefault(source, {}), row)
        fields = parsed(record.body) if record.body else None
        number = OTHERS
        if fields is not None:
            text = prompt_text(record.endpoint, fields)
            number = self._groups.number_of(text)
            self._forms.add(text, source, record.tenant, record.model)
        application = self._applications.get(number)
        if application is None:
            application = self._applications[number] = ApplicationSums("")
        add_to(application.row, row)
        application.sources[source] = application.sources.get(source, 0) + 1


def _summary(parts: ExplainParts, window: str, now: float) -> dict[str, Any]:
    found = orjson.loads(parts.answer("summary", {"window": window}, now, None))
    assert isinstance(found, dict)
    return found


def _key_of(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Identifies a difference of two families. Which of them is named first depends on the hour."""
    difference = row["difference"]
    pair = frozenset((row["source"], row["than"]))
    return row["tenant"], row["model"], pair, difference["reason"], difference["path"]
