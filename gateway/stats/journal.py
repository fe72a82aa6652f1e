"""The journal: takes explained requests, and answers the queries of the admin API."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import orjson

from gateway.core.errors import NotFound
from gateway.core.explanation import MEASUREMENT, Explanation, RequestRecord, SkippedTotals
from gateway.core.reasons import Reason
from gateway.stats import figures
from gateway.stats.counters import HOURS, Counters
from gateway.stats.day_totals import DayKey, DayTotals, report
from gateway.stats.detail import head_shown, request_shown, tokens_shown
from gateway.stats.entries import RequestEntries, RequestEntry
from gateway.stats.findings import CostsByTime, findings_of, findings_shown, suggestion_of, suggestions_shown
from gateway.stats.history import FIGURES, HISTORY, decode_all, decoded, encoded, sender_of
from gateway.stats.label_limiter import LabelLimiter, StatsLimits
from gateway.stats.markers import Marker, Markers
from gateway.stats.prices import ComputePrice
from gateway.stats.query_arguments import (
    PARTS,
    Selection,
    read_names,
    read_one_of,
    read_selection,
)
from gateway.stats.time_buckets import COUNTS, WINDOWS
from gateway.stats.totals import row_of, row_of_skipped
from gateway.stats.tried_conversations import TriedConversations

_NO_PRICE = ComputePrice()
_SHOWN_CHARS = 200
_NEW_TO_TENANT = frozenset({Reason.TENANT_ISOLATED, Reason.FIRST_SEEN})
"""Reasons that differ by what other tenants have sent."""

_TO_CLIENTS = "time model turn prompt_tokens hits evidence reference difference hint".split()


class Stats:
    """Sums and details of explained requests. All times are Unix seconds.

    Args:
        since: Start of the journal.
        limits: Bounds of its memory.
        price: Price of GPU time.
        families: Lists how client families differ, at a time, of a model and a tenant: JSON-ready, one for each pair.
        name: Random id of this process among those of other gateways.
    """

    def __init__(
        self,
        since: float,
        limits: StatsLimits | None = None,
        price: ComputePrice = _NO_PRICE,
        families: Callable[[float, str | None, str | None], Sequence[Mapping[str, object]]] = lambda *_: (),
        name: bytes = b"",
    ) -> None:
        self._name = name
        limits = limits or StatsLimits()
        self._since = self._history_since = since
        self._restored = {name}
        self._price = price
        self._families = families
        self._keys = LabelLimiter(limits)
        self._counts = Counters(since)
        self._days = DayTotals()
        self._markers = Markers()
        self._findings = CostsByTime(limits.findings)
        self._suggestions = CostsByTime(limits.suggestions)
        self._entries = RequestEntries(limits)

    def configure(self, limits: StatsLimits, price: ComputePrice, now: float) -> None:
        """Apply other limits and another price."""
        self._price = price
        self._keys.limits = self._entries.limits = limits
        self._findings.limit, self._suggestions.limit = limits.findings, limits.suggestions
        self._entries.expire(now)

    def add(self, record: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Add one request. Those sent to warm are skipped; those sent to measure count for the cost report only.

        Args:
            record: The request.
            explanation: Where its tokens went.
            gpus: GPUs per replica.
        """
        if record.warming:
            return
        tokens, at = explanation.prompt_tokens, record.at
        confirmed = tokens if explanation.hits_confirmed else 0
        used = 1, tokens, explanation.hits, confirmed, record.completion_tokens or 0
        self._days.add(DayKey.at(at, record.tenant, record.model, record.prompt), used)
        if not record.is_reported:
            return
        key = self._keys.key(record.model, record.tenant, record.source, record.where.template, record.prompt, at)
        self._counts.add(key, at, row_of(record, explanation, gpus))
        self._findings.add(findings_of(key, record, explanation, gpus), at)
        self._suggestions.add(suggestion_of(key, explanation), at)
        self._entries.add(record, explanation, gpus)

    def add_skipped(self, sums: SkippedTotals, gpus: float) -> None:
        """Add the sums of requests that were not explained. They count as skipped, their missed tokens as unclassified.

        Args:
            sums: The sums.
            gpus: GPUs per replica.
        """
        confirmed = sums.prompt_tokens if sums.hits_confirmed else 0
        used = sums.requests, sums.prompt_tokens, sums.hits, confirmed, sums.completion_tokens
        self._days.add(DayKey.at(sums.at, sums.tenant, sums.model, sums.prompt), used)
        if sums.source != MEASUREMENT:
            key = self._keys.key(sums.model, sums.tenant, sums.source, sums.template, sums.prompt, sums.at)
            self._counts.add(key, sums.at, row_of_skipped(sums, gpus))

    def add_marker(self, marker: Marker) -> None:
        """Add a marker to the trend."""
        self._markers.add(marker)

    def restore(self, data: bytes) -> None:
        """Add the history of an earlier process, as the question ``history`` answers it; nothing, if it was added
        before or is this one's own.

        Raises:
            HistoryInvalid: It cannot be read; nothing was added.
        """
        sender = sender_of(data)
        if sender in self._restored:
            return
        history = decoded(data)
        self._restored.add(sender)
        for start, key, row in history.rows():
            self._counts.restore(key, start, row)
        for day, total in history.days:
            self._days.add(day, total)
        self._markers.restore(history.markers)
        self._history_since = min(self._history_since, history.since)

    def answer(
        self, question: str, arguments: Mapping[str, str], now: float, others: Sequence[bytes] | None = ()
    ) -> bytes:
        """Answers a query of the admin API, as JSON. Empty arguments count as missing.

        Args:
            question: ``summary``, ``reasons``, ``requests``, ``request``, ``sessions``, ``session``, ``end_session`` or
                ``report``; ``tokens``, whose answer must be masked before it is shown, because token ids reveal the
                text; or ``figures`` and ``history``, whose answers are binary, for other gateways and to be stored.
            arguments: As in ``ExplainClient.ask``.
            now: Unix seconds.
            others: Answers of the journals of other gateways to ``figures``; None if they are unavailable.

        Raises:
            BadRequest: A parameter is unknown, or its value is invalid.
            NotFound: There is no such request or query.
        """
        self._entries.expire(now)
        match question:
            case "summary":
                return orjson.dumps(self._summary(read_names(arguments, ("window", *PARTS, "gateways")), now, others))
            case "reasons":
                return orjson.dumps(self._series(read_names(arguments, ("window", *PARTS, "reason", "by")), now))
            case "requests":
                found, more = self._entries.newest(read_names(arguments, (*PARTS, "reason", "session", "limit")))
                return orjson.dumps({"requests": [_line(entry) for entry in found], "more": more})
            case "sessions":
                return orjson.dumps(self._entries.sessions_shown(read_names(arguments, ("tenant", "limit"))))
            case "session" | "end_session":
                given = read_names(arguments, ("id", "tenant"))
                return orjson.dumps(self._entries.session_shown(given, end=question == "end_session"))
            case "request":
                return self._request(read_names(arguments, ("id",)).get("id", ""))
            case "tokens":
                return orjson.dumps(tokens_shown(self._entries.get(read_names(arguments, ("id",)).get("id", ""))))
            case "figures":
                windows = ((each.seconds, self._counts.sums(Selection(each, now)).rows()) for each in WINDOWS.values())
                return encoded(FIGURES, self._name, self._since, windows)
            case "history":
                hours, days, markers = self._counts.hours(), self._days.all(), self._markers.all()
                return encoded(HISTORY, self._name, self._history_since, hours, days, markers)
            case "report":
                given = read_names(arguments, ("month", "tenant", "prompt", "gateways"))
                return orjson.dumps(self._report(given, now, others))
        raise NotFound(f"There is no question {question[:_SHOWN_CHARS]!r}.", code="unknown_question")

    def _summary(self, given: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> dict[str, object]:
        selection, price = read_selection(given, now), self._price
        own = sums = self._counts.sums(selection)
        first, begin, gateways = selection.starts(COUNTS)[0], self._began(selection), {}
        if read_one_of(given, "gateways", ("all",)):
            elsewhere, missing = decode_all(others, FIGURES, self._name)
            sums = own.combined(each.window(selection) for each in elsewhere)
            gateways = {"gateways": {"counted": 1 + len(elsewhere), "missing": missing}}
            begin = min([begin, *(each.since for each in elsewhere)])
        total, own_total, begin = sums.total, own.total, max(first, begin)
        tried = TriedConversations(self._entries.explanations(selection, first))
        suggestions = suggestions_shown(self._suggestions, selection, own_total.observed[1])
        return {
            **selection.shown,
            **gateways,
            "covered_seconds": round(max(now - begin, 0.0), 3),
            "since": min(begin, now),
            "price": {"per_gpu_hour": price.per_gpu_hour, "currency": price.currency},
            **figures.totals(total),
            "ladder": figures.ladder(total),
            "reasons": figures.reasons(total, price),
            "ttft": figures.durations(total, "ttft"),
            "total_latency": figures.durations(total, "total"),
            **figures.value(total, price),
            **{f"by_{part}": figures.grouped(sums.by(part), part, price) for part in PARTS},
            "turns": figures.turns(total),
            "rounding_tokens": total.tokens_of(Reason.BLOCK_BOUNDARY, Reason.TOO_SHORT),
            "rerendered_tokens": total.tokens_of(Reason.REPLY_RERENDERED),
            "findings": findings_shown(
                self._findings, selection, since=self._since, prompt_tokens=own_total.prompt_tokens, price=price
            ),
            "families": list(self._families(now, selection.model, selection.tenant)),
            "canonicalization": figures.rules_summed(sums, price, tried) | {"suggestions": suggestions},
        }

    def _series(self, given: Mapping[str, str], now: float) -> dict[str, object]:
        selection, only = read_selection(given, now), read_one_of(given, "reason", tuple(Reason))
        by, began = read_one_of(given, "by", PARTS), self._began(selection)
        shown = figures.series_shown(self._counts, selection, since=began, only=only, by=by)
        return shown | {"markers": self._markers.shown(selection.starts(COUNTS)[0])}

    def _began(self, selection: Selection) -> float:
        """Begin of the totals that a window is read from: only hours and longer outlive a restart."""
        return self._history_since if selection.window.ring >= HOURS else self._since

    def _report(self, given: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> dict[str, object]:
        elsewhere, missing = decode_all(others, HISTORY)
        totals = [*self._days.all(), *(total for each in elsewhere for total in each.days)]
        shown = report(totals, given, now, self._price)
        if read_one_of(given, "gateways", ("all",)):
            shown["gateways"] = {"counted": 1 + len(elsewhere), "missing": missing}
        return shown

    def explanation(self, request_id: str, tenant: str, now: float) -> Mapping[str, object] | None:
        """A tenant's request as its client may see it: nothing of replicas and of other tenants; None if not kept."""
        self._entries.expire(now)
        if (entry := self._entries.get(request_id, tenant)) is None:
            return None
        shown, missed = request_shown(entry, self._price), Counter[str]()
        for each in entry.explanation.missed:
            missed[str(Reason.NEW_CONTENT if each.reason in _NEW_TO_TENANT else each.reason)] += each.tokens
        return {name: shown[name] for name in _TO_CLIENTS} | {"missed": missed}

    def _request(self, request_id: str) -> bytes:
        if (entry := self._entries.get(request_id)) is None:
            raise NotFound(
                f"There is no request {request_id[:_SHOWN_CHARS]!r}: only the last ones are kept, and a request "
                "appears here a moment after its answer. GET /admin/api/requests lists them.",
                code="unknown_request",
            )
        return orjson.dumps(request_shown(entry, self._price), option=orjson.OPT_INDENT_2)


def _line(entry: RequestEntry) -> dict[str, object]:
    record, explanation = entry.record, entry.explanation
    top = max(explanation.missed, key=lambda each: each.tokens, default=None)
    return {
        **head_shown(entry),
        "template": record.where.template,
        "replica": record.replica,
        "decision": record.decision,
        "reason": top.reason if top is not None and top.tokens else None,
        "reason_tokens": top.tokens if top is not None else 0,
        "ttft_seconds": record.ttft_seconds,
        "seconds": record.seconds,
    }
