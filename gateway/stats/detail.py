"""One explained request: in full as JSON, as lines of text for a terminal, and the token ids of its difference."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from textwrap import wrap

import msgspec

from gateway.core.advice import advice_for, advice_on, rules_applied
from gateway.core.canonical import ALL_RULES, RuleMode
from gateway.core.explanation import Attribution, Explanation, ReferenceShown, ReplicaPrefix, RequestRecord
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import REASONS, Reason, Remedy, Rung
from gateway.stats.entries import RequestEntry
from gateway.stats.figures import seconds
from gateway.stats.findings import hint_shown
from gateway.stats.prices import ComputePrice

EVIDENCE: Mapping[bool, str] = {True: "confirmed", False: "predicted"}
"""Evidence of hits and reasons, by whether the engine reported its hits."""

COMPARED_BY: Mapping[str, str] = {
    "session": "the same session",
    "conversation": "the same conversation",
    "skeleton": "the same prompt template",
    "similar": "a similar prompt",
    "beginning": "the same beginning",
}
"""What a request has in common with the one it is compared with, by ``ReferenceShown.chosen_by``."""

RUNGS: Mapping[Rung, str] = {
    Rung.CONFIRMED: "not computed again, as the engine reports",
    Rung.CHOSEN: "believed to be held by the replica that was chosen",
    Rung.ANYWHERE: "believed to be held by some replica",
    Rung.SEEN_HERE: "computed before in this prefix space",
    Rung.SEEN: "computed before in any prefix space",
    Rung.REFERENCE: "equal to the earlier request it is compared with, from the first token on",
    Rung.REUSABLE: "as before, plus what the earlier request contains after the first difference",
    Rung.PROMPT: "the whole prompt",
}
"""Meaning of each rung of the ladder."""

PREDICTED_HITS = "not computed again, as predicted: the engine reports nothing"
"""Meaning of the first rung if the engine reports no hits."""


def iso_time(at: float) -> str:
    """Unix seconds as a UTC time to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_line(text: str) -> str:
    """Text without line ends and control characters, for one line of a terminal."""
    return "".join(letter if letter.isprintable() else "⏎" if letter == "\n" else " " for letter in text)


def ago(seconds: float) -> str:
    """A duration as text."""
    if seconds < 120:
        return f"{max(seconds, 0):.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


LINES = 25
"""Maximum number of lines."""
WIDTH = 110
"""Maximum characters per line."""

_REASONS_SHOWN = 7
_ADVICES = 2
_LEAST_SHARE = 0.05
"""Share of the missed tokens below which a reason gets no advice."""
_LONGEST = 2 * WIDTH - 20
_NAME = 60


def explanation_lines(entry: RequestEntry, price: ComputePrice) -> list[str]:
    """The request as text: hits, misses with reasons, the first difference, advice."""
    lines = [*_head(entry), *_missed(entry, price), *_compared(entry), *_advice(entry)]
    return [line[:WIDTH] for line in lines[:LINES]]


def _head(entry: RequestEntry) -> Iterator[str]:
    record, explanation = entry.record, entry.explanation
    yield from _lines(
        f"{iso_time(record.at)}  {_name(record.model)} for {_name(record.tenant)}, by {_name(record.source)}"
        + (f", turn {explanation.turn}" if explanation.turn else "")
        + f": {record.status} {record.ending}"
    )
    hits, tokens = explanation.hits, explanation.prompt_tokens
    share = f" ({hits / tokens:.0%})" if tokens else ""
    evidence = "as the engine reports" if explanation.hits_confirmed else "as predicted, the engine does not say"
    yield from _lines(f"{hits:,} of {tokens:,} prompt tokens{share} were not computed again, {evidence}.")
    yield from _lines(_routed(entry))


def _routed(entry: RequestEntry) -> str:
    record = entry.record
    where = f"Sent to {_name(record.replica)}" + (f", rank {record.rank}" if record.rank else "")
    where += f" ({record.decision}), believed to hold {record.predicted_tokens:,} of them"
    others = [each for each in record.holders if (each.replica, each.rank) != (record.replica, record.rank)]
    best = max(others, key=lambda each: each.held_tokens, default=None)
    if best is None or best.held_tokens <= record.predicted_tokens:
        return f"{where}; no other replica held more." if others else f"{where}."
    return f"{where}; {_name(best.replica)} held {best.held_tokens:,}, {_passed_over(best, record.holders)}."


def _passed_over(best: ReplicaPrefix, holders: Sequence[ReplicaPrefix]) -> str:
    match best.barred:
        case "unavailable":
            return "but was not available"
        case "failed":
            return "but failed the request"
        case "pinned":
            return "but the request may not go there"
    costs = sorted(each.cost_seconds for each in holders if not each.barred)
    return f"but would have cost {best.cost_seconds:.3f} s, the least is {costs[0]:.3f} s"


def _missed(entry: RequestEntry, price: ComputePrice) -> Iterator[str]:
    explanation = entry.explanation
    missed = sorted((each for each in explanation.missed if each.tokens), key=lambda each: -each.tokens)
    if not missed:
        return
    tokens = explanation.prompt_tokens - explanation.hits
    gpu_seconds = tokens * entry.record.prefill_seconds_per_token * entry.gpus
    money = price.of(gpu_seconds)
    costs = f"{gpu_seconds:.3g} GPU seconds" + ("" if money is None else f", {money:.2g} {price.currency}")
    yield from _lines(f"{tokens:,} were computed again ({costs}):")
    for each in missed[:_REASONS_SHOWN]:
        note = f": {each.note}" if each.note else ""
        marked = "" if each.is_confirmed else ", predicted"
        yield from _lines(f"{each.tokens:>9,}  {REASONS[each.reason].title} ({each.reason}{marked}){note}", limit=1)
    if rest := missed[_REASONS_SHOWN:]:
        yield f"{sum(each.tokens for each in rest):>9,}  for {len(rest)} more reasons: see `missed`"


def _compared(entry: RequestEntry) -> Iterator[str]:
    explanation = entry.explanation
    reference, difference = explanation.reference, explanation.difference
    if explanation.was_skipped:
        yield "Explaining was behind, or had used its share of the CPU time, so the text was not compared."
    if reference is not None:
        yield from _lines(
            f"Compared with {_name(reference.request_id)} ({COMPARED_BY.get(reference.chosen_by, 'an earlier one')}, "
            f"{ago(entry.record.at - reference.at)} before, by {_name(reference.source)}): "
            f"the first {reference.equal_tokens:,} tokens are equal."
        )
    if difference is None:
        return
    place = _name(difference.path, 2 * _NAME)
    if difference.line:
        place += f", line {difference.line}, column {difference.column}"
    kind = f"{difference.reason}, {difference.detail}" if difference.detail else difference.reason
    yield from _lines(f"First difference: {place} ({kind}). {difference.said}", indent=2)
    if difference.before:
        yield from _lines(f"  before: {difference.before}", limit=1)
    if difference.after:
        yield from _lines(f"  now:    {difference.after}", limit=1)


def _advice(entry: RequestEntry) -> Iterator[str]:
    hint = _hint(entry.explanation)
    for reason in _worth_advice(entry.explanation.missed)[:_ADVICES]:
        if hint is not None and reason is hint[0]:
            yield from _lines(f"What to do ({reason}): {hint[1]['advice']} {hint[1]['gain']}", indent=2)
            continue
        yield from _lines(f"What to do ({reason}): {_advised(entry, reason)}", indent=2)


def _advised(entry: RequestEntry, reason: Reason) -> str:
    difference, applied = entry.explanation.difference, rules_applied(entry.record.canonical.modes)
    if difference is None or difference.reason is not reason:
        return advice_for(reason, applied=applied)
    return advice_on(difference, applied)


def _hint(explanation: Explanation) -> tuple[Reason, Mapping[str, object]] | None:
    """The hint of the first difference, with its reason; None if it has none."""
    difference = explanation.difference
    if difference is None:
        return None
    tokens = sum(each.tokens for each in explanation.missed if each.reason is difference.reason)
    shown = hint_shown(difference.detail, tokens)
    return None if shown is None else (difference.reason, shown)


def _worth_advice(missed: Sequence[Attribution]) -> list[Reason]:
    ranked = sorted((each for each in missed if each.tokens), key=lambda each: -each.tokens)
    least = sum(each.tokens for each in ranked) * _LEAST_SHARE
    return [
        each.reason for each in ranked if each.tokens >= least and REASONS[each.reason].remedy is not Remedy.NONE
    ] or [each.reason for each in ranked[:1]]


def _lines(text: str, indent: int = 0, limit: int = 2) -> list[str]:
    """The text wrapped to at most ``limit`` lines, all but the first indented; the rest is cut."""
    text = one_line(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
    return wrap(
        text, WIDTH, subsequent_indent=" " * indent, replace_whitespace=False, drop_whitespace=True,
        break_on_hyphens=False, max_lines=limit, placeholder=" …",
    )  # fmt: skip


def _name(text: str, longest: int = _NAME) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def head_shown(entry: RequestEntry) -> dict[str, object]:
    """What lists of requests show as well, JSON-ready."""
    record, explanation = entry.record, entry.explanation
    return {
        "id": record.request_id,
        "at": record.at,
        "time": iso_time(record.at),
        "model": record.model,
        "tenant": record.tenant,
        "source": record.source,
        "prompt": record.where.prompt,
        "session": record.session,
        "turn": explanation.turn or None,
        "status": record.status,
        "prompt_tokens": explanation.prompt_tokens,
        "hits": explanation.hits,
        "evidence": EVIDENCE[explanation.hits_confirmed],
    }


def request_shown(entry: RequestEntry, price: ComputePrice) -> dict[str, object]:
    """The request as JSON; its first field holds the text for people."""
    record, explanation = entry.record, entry.explanation
    return {
        "told": explanation_lines(entry, price),
        **head_shown(entry),
        "endpoint": record.endpoint,
        "dialect": record.dialect,
        "conversation": explanation.conversation,
        "agent": record.identity.agent,
        "parent_agent": record.identity.parent_agent,
        "ending": record.ending,
        "streamed": record.streamed,
        "completion_tokens": record.completion_tokens,
        "skipped": explanation.was_skipped,
        "missed": [_missed_shown(each, entry, price) for each in explanation.missed],
        "ladder": _ladder(explanation),
        "reference": _reference(explanation.reference, record.at),
        "difference": None if explanation.difference is None else msgspec.structs.asdict(explanation.difference),
        "hint": hint[1] if (hint := _hint(explanation)) else None,
        "canonicalization": _request_rules(entry),
        "decision": _decision(record),
        "timings": {
            "ttft_seconds": record.ttft_seconds,
            "seconds": seconds(record.seconds),
            "sent_after_seconds": seconds(record.sent_after_seconds),
            "stages": {stage: seconds(spent) for stage, spent in record.stages},
            "prefill_seconds_per_token": record.prefill_seconds_per_token,
        },
        "value": {
            "saved": _worth(explanation.hits, entry, price),
            "lost": _worth(explanation.prompt_tokens - explanation.hits, entry, price),
        },
        "tokens": {
            "source": record.token_source,
            "block_size": record.block_size,
            "own_count": record.own_tokens,
            "predicted": record.predicted_tokens,
            "cached": record.cached_tokens,
        },
        "space": msgspec.structs.asdict(record.where) | {"life": record.life},
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
        "advice": _advised(entry, missed.reason),
    } | _worth(missed.tokens, entry, price)


def _worth(tokens: int, entry: RequestEntry, price: ComputePrice) -> dict[str, object]:
    gpu_seconds = tokens * entry.record.prefill_seconds_per_token * entry.gpus
    return {"gpu_seconds": seconds(gpu_seconds), "money": price.of(gpu_seconds)}


def _ladder(explanation: Explanation) -> list[dict[str, object]]:
    shown: list[dict[str, object]] = []
    for rung, (below, tokens) in zip(Rung, pairwise([0, *explanation.rungs]), strict=True):
        phrase = PREDICTED_HITS if rung is Rung.CONFIRMED and not explanation.hits_confirmed else RUNGS[rung]
        shown.append({"rung": rung, "tokens": tokens, "more": tokens - below, "phrase": phrase})
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


def _decision(record: RequestRecord) -> dict[str, object]:
    chosen = (record.replica, record.rank)
    return {
        "kind": record.decision,
        "policy": record.policy,
        "replica": record.replica,
        "rank": record.rank,
        "failed_attempts": record.failed_attempts,
        "is_blind": record.is_blind,
        "bypasses_cache": record.bypasses_cache,
        "targets": [
            msgspec.structs.asdict(holder) | {"chosen": (holder.replica, holder.rank) == chosen}
            for holder in sorted(record.holders, key=lambda each: (bool(each.barred), each.cost_seconds))
        ],
    }


def tokens_shown(entry: RequestEntry | None) -> Mapping[str, object] | None:
    """The token ids around the first difference, JSON-ready, for the gateway to decode and mask; None without any."""
    if entry is None or entry.explanation.tokens is None or entry.explanation.reference is None:
        return None
    window = entry.explanation.tokens
    return {
        "model": entry.record.model,
        "equal_tokens": entry.explanation.reference.equal_tokens,
        "before": _ids(window.before),
        "after": _ids(window.after),
        "first": window.first,
    }


def _ids(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + TOKEN_BYTES], "little") for at in range(0, len(packed), TOKEN_BYTES)]


def _request_rules(entry: RequestEntry) -> dict[str, object]:
    """The effect of canonicalization rules on one request."""
    explanation = entry.explanation
    observed = [each for each in explanation.canonical if each.mode is RuleMode.OBSERVE and each.rule != ALL_RULES]
    return {
        "observed": bool(explanation.observed),
        "weight": explanation.observed,
        "left_out": explanation.left_out,
        "applied": [each.rule for each in explanation.canonical if each.mode is RuleMode.APPLY and each.edits],
        "context_lost": entry.record.canonical.context_lost,
        "rules": [
            msgspec.structs.asdict(each)
            for each in explanation.canonical
            if each.rule != ALL_RULES or len(observed) > 1
        ],
        "edits": [msgspec.structs.asdict(each) for each in explanation.edits],
    }
