"""The causes of missed tokens that cost most, over time, and the slots that a rule could handle.

Findings are causes with one example request each; causes that cannot be remedied are no findings. Suggestions are slots
for the rule ``dynamic-suffix``: varying values, the tokens they cost, and the setting to add. Both are sums by time
bucket, of which each keeps the largest.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from typing import NamedTuple

import msgspec

from gateway.core.advice import HINTS, advice_for, rules_applied, rules_for
from gateway.core.application import prompt_id
from gateway.core.canonical import RuleName
from gateway.core.explanation import Explanation, RequestRecord
from gateway.core.reasons import REASONS, Reason, Remedy
from gateway.stats.figures import points, share
from gateway.stats.label_limiter import StatsKey
from gateway.stats.prices import ComputePrice
from gateway.stats.query_arguments import Selection
from gateway.stats.time_buckets import FINDINGS, TimeBuckets

DAY_SECONDS = 86400.0
_SHORTEST_SECONDS = 60.0
_SHOWN = 20
_LONGEST_PATH = 200
_LONGEST_SAID = 300
_INDEX = re.compile(r"\[\d+\]")

_MOVING = frozenset({Reason.HISTORY_TRIMMED, Reason.HISTORY_EDITED, Reason.REPLY_RERENDERED})
"""Reasons whose place moves with every turn of a conversation."""

_OPEN_FACTOR = 4
"""An open bucket holds this many times its final number of causes: the largest are known only when it closes."""


class Cause(NamedTuple):
    """What is counted together. Of suggestions ``path`` is the regular expression that finds the value.

    Attributes:
        key: Labels of the requests.
        reason: The miss reason.
        detail: As in ``Difference``; empty if the text is not the cause.
        path: As in ``Difference``; without indexes where they move with every turn.
        line: As in ``Difference``; 0 if unknown.
    """

    key: StatsKey
    reason: Reason
    detail: str
    path: str
    line: int


class Cost(msgspec.Struct, array_like=True):
    """The cost of a cause, with an example.

    Attributes:
        tokens: Missed tokens.
        gpu_seconds: GPU seconds of their prefill; 0 for suggestions.
        requests: Number of requests.
        example: Id of the last request.
        said: What changed in that request; of suggestions the name of the slot.
        role: As in ``Difference``; None if the text is not the cause.
        applied: The rules that were on and are among those that remove the reason.
        kept: Of suggestions: how often the value was the same in the next turn of a conversation.
        changed: How often it differed in the next turn of a session named by the client. Other conversations are not
            counted: two that look alike may belong to different users.
    """

    tokens: int = 0
    gpu_seconds: float = 0.0
    requests: int = 0
    example: str = ""
    said: str = ""
    role: str | None = None
    applied: tuple[RuleName, ...] = ()
    kept: int = 0
    changed: int = 0

    def add(self, other: "Cost") -> None:
        """Add a cost with a newer example."""
        self.tokens += other.tokens
        self.gpu_seconds += other.gpu_seconds
        self.requests += other.requests
        self.kept += other.kept
        self.changed += other.changed
        self.example, self.said = other.example, other.said
        self.role, self.applied = other.role, other.applied


_Costs = Iterable[tuple[Cause, Cost]]


class CostsByTime:
    """Costs by time and cause.

    Attributes:
        limit: Number of causes that a time bucket keeps: the largest.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buckets = TimeBuckets(FINDINGS, lambda: _CostBucket(self))

    def add(self, costs: _Costs, at: float) -> None:
        """Add the costs of a request that ended at ``at``."""
        found = [*costs]
        for bucket in self._buckets.opened(at) if found else ():
            for cause, cost in found:
                bucket.add(cause, cost)

    def sums(self, selection: Selection, same: Callable[[Cause], Cause] = lambda cause: cause) -> _Costs:
        """The sums of a selection. ``same``: what of a cause is counted together."""
        totals: dict[Cause, Cost] = {}
        for bucket in self._buckets.covering(selection.window.ring, selection.starts(FINDINGS)):
            for cause, cost in bucket.costs():
                if selection.takes(*cause.key):
                    totals.setdefault(same(cause), Cost()).add(cost)
        return totals.items()


class _CostBucket:
    """The costs of one time bucket; encoded unless the bucket is open."""

    def __init__(self, owner: CostsByTime) -> None:
        self._owner = owner
        self._open: dict[Cause, Cost] = {}
        self._packed = b""

    def add(self, cause: Cause, cost: Cost) -> None:
        """Add a cost; a new cause is dropped once ``_OPEN_FACTOR`` times as many as are kept are held."""
        if self._packed:
            self._open, self._packed = dict(self.costs()), b""
        held = self._open.get(cause)
        if held is None:
            if len(self._open) >= self._owner.limit * _OPEN_FACTOR:
                return
            held = self._open[cause] = Cost()
        held.add(cost)

    def close(self) -> None:
        """Encode the largest causes and drop the others."""
        if self._open:
            self._packed, self._open = _pack(_largest(self._open.items(), self._owner.limit)), {}

    def costs(self) -> _Costs:
        return _unpack(self._packed) if self._packed else self._open.items()


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[Cause, Cost]]).decode


def _largest(costs: _Costs, limit: int) -> list[tuple[Cause, Cost]]:
    return nlargest(limit, costs, key=lambda each: (each[1].gpu_seconds, each[1].tokens, each[1].requests))


def findings_of(
    key: StatsKey, record: RequestRecord, explanation: Explanation, gpus: float
) -> Iterator[tuple[Cause, Cost]]:
    """The costs of one request by cause. ``gpus``: per replica."""
    difference, applied = explanation.difference, rules_applied(record.canonical.modes)
    per_token = record.prefill_seconds_per_token * gpus
    for missed in explanation.missed:
        text, tokens = REASONS[missed.reason], missed.tokens
        differs = difference is not None and difference.reason is missed.reason
        if not tokens or (not differs and text.remedy is Remedy.NONE):
            continue
        cause, said, role = Cause(key, missed.reason, "", "", 0), missed.note, None
        if difference is not None and differs:
            path, line = difference.path, difference.line
            if missed.reason in _MOVING:
                path, line = _INDEX.sub("[…]", path), 0
            cause = Cause(key, missed.reason, difference.detail, path[:_LONGEST_PATH], line)
            said, role = difference.said, difference.role
        said, rules = (said or text.meaning)[:_LONGEST_SAID], tuple(rule for rule in text.rules if rule in applied)
        yield cause, Cost(tokens, tokens * per_token, 1, record.request_id, said, role, rules)


def findings_shown(
    findings: CostsByTime, selection: Selection, *, since: float, prompt_tokens: int, price: ComputePrice
) -> list[dict[str, object]]:
    """The causes with the largest cost in a window, JSON-ready.

    Args:
        findings: The findings.
        selection: Window and filters.
        since: Start of the journal, Unix seconds.
        prompt_tokens: Prompt tokens of the selection.
        price: Price of GPU time.
    """
    covered_seconds = max(selection.now - max(selection.starts(FINDINGS)[0], since), 0.0)
    return [
        _shown(cause, cost, covered_seconds, price) | {"share": share(cost.tokens, prompt_tokens)}
        for cause, cost in _largest(findings.sums(selection), _SHOWN)
    ]


def suggestion_of(key: StatsKey, explanation: Explanation) -> Iterator[tuple[Cause, Cost]]:
    """The varying slot of a request, if it has one."""
    if (slot := explanation.slot) is None:
        return
    cost = Cost(said=slot.name, kept=1)
    if not slot.is_kept:
        tokens = next((each.tokens for each in explanation.missed if each.reason is slot.reason), 0)
        within = explanation.reference is not None and explanation.reference.chosen_by == "session"
        cost = Cost(tokens, requests=1, said=slot.name, changed=int(within))
    yield Cause(key, slot.reason, "", slot.regex, 0), cost


def suggestions_shown(suggestions: CostsByTime, selection: Selection, prompt_tokens: int) -> list[dict[str, object]]:
    """The suggestions for a selection, JSON-ready, largest cost first.

    Args:
        suggestions: The suggestions.
        selection: Window and filters.
        prompt_tokens: Prompt tokens of all requests on which rules were evaluated.
    """
    reasons: dict[Cause, Counter[Reason]] = {}

    def same(place: Cause) -> Cause:
        # One suggestion for all versions of a template or application and all kinds of values.
        return place._replace(
            key=place.key._replace(template="", prompt=prompt_id(place.key.prompt)), reason=Reason.UNCLASSIFIED
        )

    for place, cost in suggestions.sums(selection):
        reasons.setdefault(same(place), Counter())[place.reason] += max(cost.tokens, 1)
    found = [(place, cost) for place, cost in suggestions.sums(selection, same) if cost.tokens]
    return [_slot_shown(place, cost, reasons[place], prompt_tokens) for place, cost in _largest(found, _SHOWN)]


def per_day(amount: float, covered_seconds: float) -> float | None:
    """An amount extrapolated to a day; None if less than a minute is covered."""
    return amount * DAY_SECONDS / covered_seconds if covered_seconds >= _SHORTEST_SECONDS else None


def gpu_time(gpu_seconds: float) -> str:
    """GPU seconds as text, in hours, minutes or seconds."""
    if gpu_seconds >= 3600:
        return f"{_number(gpu_seconds / 3600)} GPU hours"
    if gpu_seconds >= 60:
        return f"{_number(gpu_seconds / 60)} GPU minutes"
    return f"{_number(gpu_seconds)} GPU seconds"


def costs(gpu_seconds: float, covered_seconds: float, price: ComputePrice) -> str:
    """GPU time and price per day as text; of the covered time if that is too short to extrapolate."""
    daily = per_day(gpu_seconds, covered_seconds)
    shown = gpu_seconds if daily is None else daily
    money = price.of(shown)
    amount = gpu_time(shown) + ("" if money is None else f" ({_money(money)} {price.currency})")
    return f"costs {amount} a day" if daily is not None else f"cost {amount} in {covered_seconds:.0f} s"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _shown(cause: Cause, cost: Cost, covered_seconds: float, price: ComputePrice) -> dict[str, object]:
    text = REASONS[cause.reason]
    daily = per_day(cost.gpu_seconds, covered_seconds)
    return {
        "sentence": f"{_subject(cause)} ({cause.key.source}) {costs(cost.gpu_seconds, covered_seconds, price)}.",
        **cause.key._asdict(),
        "reason": cause.reason,
        "title": text.title,
        "detail": cause.detail,
        "path": cause.path,
        "line": cause.line,
        "requests": cost.requests,
        "tokens": cost.tokens,
        "covered_seconds": round(covered_seconds, 3),
        "gpu_seconds": round(cost.gpu_seconds, 6),
        "gpu_seconds_per_day": None if daily is None else round(daily, 3),
        "money": price.of(cost.gpu_seconds),
        "money_per_day": None if daily is None else price.of(daily),
        "remedy": text.remedy,
        "said": cost.said,
        "advice": advice_for(cause.reason, cause.detail, role=cost.role, applied=cost.applied),
        "rules": rules_for(cause.reason, cause.detail, cost.role),
        "hint": hint_shown(cause.detail, cost.tokens),
        "example": cost.example,
    }


def hint_shown(detail: str, tokens: int) -> dict[str, object] | None:
    """The hint of a detail, JSON-ready; None if it has none. ``tokens``: those missed for it."""
    hint = HINTS.get(detail)
    if hint is None:
        return None
    return {"code": detail, "tokens": tokens, "gain": hint.gain.format(tokens=f"{tokens:,}"), "advice": hint.advice}


def _subject(cause: Cause) -> str:
    place = f"{cause.path}, line {cause.line}" if cause.line else cause.path
    text, hint = REASONS[cause.reason], HINTS.get(cause.detail)
    subject = hint.subject if hint else text.subject
    return f"{subject or f'“{text.title}”'} in {place}" if place else f"“{text.title}”"


def _slot_shown(place: Cause, cost: Cost, reasons: Counter[Reason], prompt_tokens: int) -> dict[str, object]:
    # ``request`` requires that the value was seen changing within conversations: otherwise the value of one customer
    # might come back in the conversation of another.
    varies = "conversation" if cost.kept or not cost.changed or Reason.USER_DATA in reasons else "request"
    return {
        "name": cost.said,
        "regex": place.path,
        "varies": varies,
        "reason": reasons.most_common(1)[0][0],
        "model": place.key.model,
        "tenant": place.key.tenant,
        "source": place.key.source,
        "requests": cost.requests,
        "tokens": cost.tokens,
        "points": points(cost.tokens, prompt_tokens),
        "yaml": _yaml(cost.said, place.path, varies, place.key.model),
    }


def _yaml(name: str, regex: str, varies: str, model: str) -> str:
    """The setting as YAML, ready for the configuration."""
    quoted = "'" + regex.replace("'", "''") + "'"
    slot = f"{{name: {name}, regex: {quoted}, varies: {varies}, models: [{json.dumps(model)}]}}"
    return f"canon:\n  dynamic_suffix:\n    slots:\n      - {slot}\n"
