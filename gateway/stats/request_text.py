"""A request explained to a person who reads it in a terminal: a few lines of text."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from gateway.core.explanation import Attribution, ReplicaPrefix
from gateway.core.reasons import REASONS, Reason, Remedy
from gateway.stats.entries import RequestEntry
from gateway.stats.phrases import COMPARED_BY, ago, iso_time, one_line
from gateway.stats.stats_limits import ComputePrice

LINES = 25
"""Most lines."""
WIDTH = 110
"""Most characters of a line."""

_REASONS_TOLD = 7
_ADVICES = 2
_LEAST_SHARE = 0.05
"""Of the missed tokens, below which there is no advice."""
_LONGEST = 2 * WIDTH - 20
_NAME = 60


def told(entry: RequestEntry, price: ComputePrice) -> list[str]:
    """The lines: what was reused, what not and why, where the first difference is, what to do."""
    lines = [*_head(entry), *_missed(entry, price), *_compared(entry), *_advice(entry)]
    return [line[:WIDTH] for line in lines[:LINES]]


def _head(entry: RequestEntry) -> Iterator[str]:
    finished, explanation = entry.finished, entry.explanation
    yield from _lines(
        f"{iso_time(finished.at)}  {_name(finished.model)} for {_name(finished.tenant)}, by {_name(finished.source)}"
        + (f", turn {explanation.turn}" if explanation.turn else "")
        + f": {finished.status} {finished.ending}"
    )
    evidence = "as the engine reports" if explanation.hits_confirmed else "as predicted, the engine does not say"
    yield from _lines(
        f"{explanation.hits:,} of {explanation.prompt_tokens:,} prompt tokens"
        f"{_share(explanation.hits, explanation.prompt_tokens)} were not computed again, {evidence}."
    )
    yield from _lines(_routed(entry))


def _routed(entry: RequestEntry) -> str:
    finished = entry.finished
    where = f"Sent to {_name(finished.replica)}" + (f", rank {finished.rank}" if finished.rank else "")
    where += f" ({finished.decision}), believed to hold {finished.predicted_tokens:,} of them"
    others = [each for each in finished.holders if (each.replica, each.rank) != (finished.replica, finished.rank)]
    best = max(others, key=lambda each: each.held_tokens, default=None)
    if best is None or best.held_tokens <= finished.predicted_tokens:
        return f"{where}; no other replica held more." if others else f"{where}."
    return f"{where}; {_name(best.replica)} held {best.held_tokens:,}, {_passed_over(best, finished.holders)}."


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
    gpu_seconds = tokens * entry.finished.prefill_seconds_per_token * entry.gpus
    money = price.of(gpu_seconds)
    costs = f"{gpu_seconds:.3g} GPU seconds" + ("" if money is None else f", {money:.2g} {price.currency}")
    yield from _lines(f"{tokens:,} were computed again ({costs}):")
    for each in missed[:_REASONS_TOLD]:
        note = f": {each.note}" if each.note else ""
        marked = "" if each.is_confirmed else ", predicted"
        yield from _lines(f"{each.tokens:>9,}  {REASONS[each.reason].title} ({each.reason}{marked}){note}", most=1)
    if rest := missed[_REASONS_TOLD:]:
        yield f"{sum(each.tokens for each in rest):>9,}  for {len(rest)} more reasons: see `missed`"


def _compared(entry: RequestEntry) -> Iterator[str]:
    explanation = entry.explanation
    reference, difference = explanation.reference, explanation.difference
    if explanation.was_skipped:
        yield "The explanation was behind, so the text was not looked at."
    if reference is not None:
        yield from _lines(
            f"Compared with {_name(reference.request_id)} ({COMPARED_BY.get(reference.chosen_by, 'an earlier one')}, "
            f"{ago(entry.finished.at - reference.at)} before, by {_name(reference.source)}): "
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
        yield from _lines(f"  before: {difference.before}", most=1)
    if difference.after:
        yield from _lines(f"  now:    {difference.after}", most=1)


def _advice(entry: RequestEntry) -> Iterator[str]:
    for reason in _worth_advice(entry.explanation.missed)[:_ADVICES]:
        yield from _lines(f"What to do ({reason}): {REASONS[reason].advice}", indent=2)


def _worth_advice(missed: Sequence[Attribution]) -> list[Reason]:
    ranked = sorted((each for each in missed if each.tokens), key=lambda each: -each.tokens)
    least = sum(each.tokens for each in ranked) * _LEAST_SHARE
    return [
        each.reason for each in ranked if each.tokens >= least and REASONS[each.reason].remedy is not Remedy.NOBODY
    ] or [each.reason for each in ranked[:1]]


def _lines(text: str, indent: int = 0, most: int = 2) -> list[str]:
    """The text on a few lines, all but the first indented; what does not fit is left out."""
    text = one_line(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
    return wrap(
        text, WIDTH, subsequent_indent=" " * indent, replace_whitespace=False, drop_whitespace=True,
        break_on_hyphens=False, max_lines=most, placeholder=" …",
    )  # fmt: skip


def _name(text: str, longest: int = _NAME) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.0%})" if whole else ""
