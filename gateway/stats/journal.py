"""The journal: takes what was explained, and answers what the admin port is asked.

One line for each of the last requests, JSON-ready.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

import orjson

from gateway.core.errors import NotFound
from gateway.core.explanation import Explanation, RequestRecord
from gateway.stats.counters import Counters
from gateway.stats.detail import request_shown
from gateway.stats.difference_tokens import tokens_shown
from gateway.stats.entries import RequestEntries, RequestEntry
from gateway.stats.findings import TopCauses
from gateway.stats.label_limiter import LabelLimiter
from gateway.stats.peer_totals import PeerTotals, tell_figures
from gateway.stats.phrases import EVIDENCE, iso_time
from gateway.stats.query_arguments import (
    PARTS,
    read_gateways,
    read_limit,
    read_names,
    read_part,
    read_reason,
    read_selection,
)
from gateway.stats.row import row_left_out, row_of
from gateway.stats.series import series_shown
from gateway.stats.stats_limits import ComputePrice, StatsLimits
from gateway.stats.suggestions import Suggestions
from gateway.stats.summary import summary_shown


def requests_shown(entries: RequestEntries, given: Mapping[str, str]) -> dict[str, object]:
    """Those that pass the filters, newest first.

    Raises:
        BadRequest: A filter's value is not possible.
    """
    limit = read_limit(given)
    found = entries.newest(
        model=given.get("model"),
        tenant=given.get("tenant"),
        source=given.get("source"),
        template=given.get("template"),
        session=given.get("session"),
        reason=read_reason(given),
    )
    shown = [_line(entry) for entry in islice(found, limit)]
    return {"requests": shown, "more": len(shown) == limit and next(found, None) is not None}


def _line(entry: RequestEntry) -> dict[str, object]:
    finished, explanation = entry.finished, entry.explanation
    top = max(explanation.missed, key=lambda each: each.tokens, default=None)
    return {
        "id": finished.request_id,
        "at": finished.at,
        "time": iso_time(finished.at),
        "model": finished.model,
        "tenant": finished.tenant,
        "source": finished.source,
        "template": finished.where.template,
        "session": finished.session,
        "turn": explanation.turn or None,
        "replica": finished.replica,
        "decision": finished.decision,
        "status": finished.status,
        "prompt_tokens": explanation.prompt_tokens,
        "hits": explanation.hits,
        "evidence": EVIDENCE[explanation.hits_confirmed],
        "reason": top.reason if top is not None and top.tokens else None,
        "reason_tokens": top.tokens if top is not None else 0,
        "ttft_seconds": finished.ttft_seconds,
        "seconds": finished.seconds,
    }


_SHOWN_CHARS = 200
_NO_PRICE = ComputePrice()


class FamiliesShown(Protocol):
    """Tells how the clients of one application differ in what they send."""

    def __call__(
        self, now: float, model: str | None = None, tenant: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        """One JSON-ready object for each two client families that differ."""
        ...


def _no_families(
    now: float,  # noqa: ARG001 - the protocol's
    model: str | None = None,  # noqa: ARG001
    tenant: str | None = None,  # noqa: ARG001
) -> Sequence[Mapping[str, object]]:
    return ()


class Stats:
    """Everything that was explained, as far as it is kept. All times are Unix seconds.

    Args:
        since: When it begins.
        limits: How much is kept.
        price: What computing costs.
        families: Tells how client families differ.
        name: Stands for this process among those of other gateways.
    """

    def __init__(
        self,
        since: float,
        limits: StatsLimits | None = None,
        price: ComputePrice = _NO_PRICE,
        families: FamiliesShown = _no_families,
        name: bytes = b"",
    ) -> None:
        self._name = name
        limits = limits or StatsLimits()
        self._since = since
        self._price = price
        self._families = families
        self._keys = LabelLimiter(limits)
        self._counts = Counters()
        self._findings = TopCauses(limits)
        self._suggestions = Suggestions(limits)
        self._entries = RequestEntries(limits)

    def configure(self, limits: StatsLimits, price: ComputePrice, now: float) -> None:
        """Go by other limits and another price from now on."""
        self._price = price
        self._keys.configure(limits)
        self._findings.configure(limits)
        self._suggestions.configure(limits)
        self._entries.configure(limits, now)

    def add(self, finished: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Take one request. One that was sent to fill a cache is left out.

        Args:
            finished: The request.
            explanation: Where its tokens went.
            gpus: GPUs of a replica.
        """
        if finished.warming:
            return
        key = self._keys.key(finished.model, finished.tenant, finished.source, finished.where.template, finished.at)
        self._counts.add(key, finished.at, row_of(finished, explanation, gpus))
        per_token = finished.prefill_seconds_per_token * gpus
        self._findings.add(key, finished.request_id, finished.at, explanation, per_token)
        self._suggestions.add(key, finished.at, explanation)
        self._entries.add(finished, explanation, gpus)

    def add_left_out(
        self,
        *,
        at: float,
        model: str,
        tenant: str,
        source: str,
        template: str,
        requests: int,
        prompt_tokens: int,
        hits: int,
        hits_confirmed: bool,
        prefill_seconds: float,
        gpus: float,
    ) -> None:
        """Take the sums of requests of which nothing else is known. They count as skipped, and what they missed as not
        classified.

        Args:
            at: When the last of them was over.
            model: As in ``RequestRecord``, for all of them.
            tenant: Likewise.
            source: Likewise.
            template: As ``RequestRecord.where.template``, likewise.
            requests: How many.
            prompt_tokens: Of all.
            hits: Of those, how many were not computed again.
            hits_confirmed: Whether engines reported that.
            prefill_seconds: What all prompt tokens would take, none of them reused.
            gpus: GPUs of a replica.
        """
        key = self._keys.key(model, tenant, source, template, at)
        per_token = prefill_seconds / prompt_tokens if prompt_tokens else 0.0
        row = row_left_out(requests, prompt_tokens, hits, per_token, gpus=gpus, confirmed=hits_confirmed)
        self._counts.add(key, at, row)

    def answer(
        self, question: str, arguments: Mapping[str, str], now: float, others: Sequence[bytes] | None = ()
    ) -> bytes:
        """The answer to a question of the admin port, JSON. Arguments that are empty count as left out.

        Args:
            question: ``summary``, ``reasons``, ``requests`` or ``request``; or ``tokens``, whose answer is not to be
                shown as it is: token ids are as good as text; or ``figures``, whose answer is for ``others`` elsewhere,
                and no JSON.
            arguments: As in ``ExplainDesk.ask``.
            now: The time.
            others: What the journals of other gateways answered to ``figures``; None if it cannot be had.

        Raises:
            BadRequest: A parameter is not known, or its value is not possible.
            NotFound: There is no such request, or no such question.
        """
        self._entries.expire(now)
        match question:
            case "summary":
                return orjson.dumps(self._summary(read_names(arguments, ("window", *PARTS, "gateways")), now, others))
            case "reasons":
                return orjson.dumps(self._series(read_names(arguments, ("window", *PARTS, "reason", "by")), now))
            case "requests":
                given = read_names(arguments, (*PARTS, "reason", "session", "limit"))
                return orjson.dumps(requests_shown(self._entries, given))
            case "request":
                return self._request(read_names(arguments, ("id",)).get("id", ""))
            case "tokens":
                return orjson.dumps(tokens_shown(self._entries.get(read_names(arguments, ("id",)).get("id", ""))))
            case "figures":
                return tell_figures(self._counts, now, teller=self._name, since=self._since)
        raise NotFound(f"There is no question {question[:_SHOWN_CHARS]!r}.", code="unknown_question")

    def _summary(self, given: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> dict[str, object]:
        selection = read_selection(given)
        return summary_shown(
            self._counts,
            self._findings,
            self._suggestions,
            selection,
            now,
            since=self._since,
            price=self._price,
            families=list(self._families(now, model=selection.model, tenant=selection.tenant)),
            elsewhere=PeerTotals(others, self._name) if read_gateways(given) else None,
        )

    def _series(self, given: Mapping[str, str], now: float) -> dict[str, object]:
        return series_shown(
            self._counts,
            read_selection(given),
            now,
            since=self._since,
            only=read_reason(given),
            by=read_part(given),
        )

    def _request(self, request_id: str) -> bytes:
        entry = self._entries.get(request_id)
        if entry is None:
            raise NotFound(
                f"There is no request {request_id[:_SHOWN_CHARS]!r}: only the last ones are kept, and a request stands "
                "here a moment after it was answered. GET /admin/api/requests lists them.",
                code="unknown_request",
            )
        return orjson.dumps(request_shown(entry, self._price), option=orjson.OPT_INDENT_2)
