"""Everything that is known of one request, JSON-ready."""

from collections.abc import Mapping

import msgspec

from gateway.core.explanation import Attribution, Difference, Explanation, ReferenceShown, RequestRecord
from gateway.core.reasons import REASONS, Rung
from gateway.stats.canonicalization_totals import request_rules
from gateway.stats.entries import RequestEntry
from gateway.stats.figures import seconds
from gateway.stats.phrases import COMPARED_BY, EVIDENCE, PREDICTED_HITS, RUNGS, iso_time
from gateway.stats.request_text import told
from gateway.stats.stats_limits import ComputePrice


def request_shown(entry: RequestEntry, price: ComputePrice) -> dict[str, object]:
    """The request, with ``told`` first: that is all a person has to read."""
    finished, explanation = entry.finished, entry.explanation
    return {
        "told": told(entry, price),
        "id": finished.request_id,
        "at": finished.at,
        "time": iso_time(finished.at),
        "model": finished.model,
        "endpoint": finished.endpoint,
        "tenant": finished.tenant,
        "source": finished.source,
        "session": finished.session,
        "turn": explanation.turn or None,
        "status": finished.status,
        "ending": finished.ending,
        "streamed": finished.streamed,
        "prompt_tokens": explanation.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "hits": explanation.hits,
        "evidence": EVIDENCE[explanation.hits_confirmed],
        "skipped": explanation.was_skipped,
        "missed": [_missed_shown(each, entry, price) for each in explanation.missed],
        "ladder": _ladder(explanation),
        "reference": _reference(explanation.reference, finished.at),
        "difference": _difference(explanation.difference),
        "canonicalization": request_rules(entry),
        "decision": _decision(finished),
        "timings": {
            "ttft_seconds": finished.ttft_seconds,
            "seconds": seconds(finished.seconds),
            "sent_after_seconds": seconds(finished.sent_after_seconds),
            "stages": {stage: seconds(spent) for stage, spent in finished.stages},
            "prefill_seconds_per_token": finished.prefill_seconds_per_token,
        },
        "value": {
            "saved": _worth(explanation.hits, entry, price),
            "lost": _worth(explanation.prompt_tokens - explanation.hits, entry, price),
        },
        "tokens": {
            "source": finished.token_source,
            "block_size": finished.block_size,
            "own_count": finished.own_tokens,
            "predicted": finished.predicted_tokens,
            "cached": finished.cached_tokens,
        },
        "space": msgspec.structs.asdict(finished.where) | {"life": finished.life},
    }


def _missed_shown(missed: Attribution, entry: RequestEntry, price: ComputePrice) -> dict[str, object]:
    text = REASONS[missed.reason]
    return {
        "reason": missed.reason,
        "title": text.title,
        "tokens": missed.tokens,
        "evidence": EVIDENCE[missed.is_confirmed],
        "note": missed.note,
        "remedy": text.remedy,
        "advice": text.advice,
    } | _worth(missed.tokens, entry, price)


def _worth(tokens: int, entry: RequestEntry, price: ComputePrice) -> dict[str, object]:
    gpu_seconds = tokens * entry.finished.prefill_seconds_per_token * entry.gpus
    return {"gpu_seconds": seconds(gpu_seconds), "money": price.of(gpu_seconds)}


def _ladder(explanation: Explanation) -> list[dict[str, object]]:
    below = 0
    shown: list[dict[str, object]] = []
    for rung, tokens in zip(Rung, explanation.rungs, strict=True):
        phrase = PREDICTED_HITS if rung is Rung.CONFIRMED and not explanation.hits_confirmed else RUNGS[rung]
        shown.append({"rung": rung, "tokens": tokens, "more": tokens - below, "phrase": phrase})
        below = tokens
    return shown


def _reference(reference: ReferenceShown | None, at: float) -> Mapping[str, object] | None:
    if reference is None:
        return None
    return {
        "id": reference.request_id,
        "time": iso_time(reference.at),
        "seconds_before": round(at - reference.at, 3),
        "source": reference.source,
        "chosen_by": reference.chosen_by,
        "phrase": COMPARED_BY.get(reference.chosen_by, ""),
        "equal_tokens": reference.equal_tokens,
    }


def _difference(difference: Difference | None) -> Mapping[str, object] | None:
    return None if difference is None else msgspec.structs.asdict(difference)


def _decision(finished: RequestRecord) -> dict[str, object]:
    chosen = (finished.replica, finished.rank)
    return {
        "kind": finished.decision,
        "policy": finished.policy,
        "replica": finished.replica,
        "rank": finished.rank,
        "failed_attempts": finished.failed_attempts,
        "is_blind": finished.is_blind,
        "bypasses_cache": finished.bypasses_cache,
        "targets": [
            msgspec.structs.asdict(holder) | {"chosen": (holder.replica, holder.rank) == chosen}
            for holder in sorted(finished.holders, key=lambda each: (bool(each.barred), each.cost_seconds))
        ],
    }
