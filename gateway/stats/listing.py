"""One line for each of the last requests, JSON-ready."""

from collections.abc import Mapping
from itertools import islice

from gateway.stats.entries import RequestEntries, RequestEntry
from gateway.stats.phrases import EVIDENCE, iso_time
from gateway.stats.query_arguments import read_limit, read_reason


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
