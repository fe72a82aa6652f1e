"""The causes of missed tokens that cost most, over time, and the slots that a rule could handle.

Findings are causes with one example request each; causes that cannot be remedied are no findings. Suggestions are slots
for the rule ``dynamic-suffix``: varying values, the tokens they cost, and the setting to add.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.core.advice import HINTS, advice_for, rules_applied, rules_for
from gateway.core.application import prompt_id
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.explanation import Attribution, Difference, Explanation
from gateway.core.reasons import REASONS, Reason, Remedy
from gateway.stats.figures import points, share
from gateway.stats.label_limiter import StatsKey, StatsLimits
from gateway.stats.prices import ComputePrice
from gateway.stats.query_arguments import Selection
from gateway.stats.time_buckets import FINDINGS, CostBuckets, CostPacking, covering_buckets

DAY_SECONDS = 86400.0
_SHORTEST_SECONDS = 60.0


class CostKey(NamedTuple):
    """A cause of missed tokens.

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
        gpu_seconds: GPU seconds of their prefill.
        requests: Number of requests.
        example: Id of the last request.
        said: What changed in that request.
        role: As in ``Difference``; None if the text is not the cause.
        applied: The rules that were on and are among those that remove the reason.
    """

    tokens: int = 0
    gpu_seconds: float = 0.0
    requests: int = 0
    example: str = ""
    said: str = ""
    role: str | None = None
    applied: tuple[RuleName, ...] = ()

    def add(self, other: "Cost") -> None:
        """Add a cost with a newer example."""
        self.tokens += other.tokens
        self.gpu_seconds += other.gpu_seconds
        self.requests += other.requests
        self.example, self.said = other.example, other.said
        self.role, self.applied = other.role, other.applied


class TopCauses:
    """Costs by time and cause.

    Args:
        limits: Bounds the causes per time bucket; the largest are kept.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self._limits = limits
        self._rings = tuple(CostBuckets(resolution, _PACKING) for resolution in FINDINGS)

    def configure(self, limits: StatsLimits) -> None:
        """Apply other bounds."""
        self._limits = limits

    def add(
        self,
        key: StatsKey,
        request_id: str,
        at: float,
        explanation: Explanation,
        gpu_seconds_per_token: float,
        *,
        modes: Sequence[RuleMode] = (),
    ) -> None:
        """Add the causes of one request. ``modes``: of the rules, as in ``Canonicalized``."""
        for missed in explanation.missed:
            differing = explanation.difference
            found = _cause(key, missed, differing)
            if found is None or not missed.tokens:
                continue
            cause, said = found
            applied = rules_applied(modes)
            cost = Cost(
                missed.tokens,
                missed.tokens * gpu_seconds_per_token,
                1,
                request_id,
                said,
                differing.role if differing is not None and differing.reason is missed.reason else None,
                tuple(rule for rule in REASONS[missed.reason].rules if rule in applied),
            )
            for ring in self._rings:
                ring.add(cause, at, cost, self._limits.findings)

    def shown(
        self, selection: Selection, now: float, *, since: float, prompt_tokens: int, price: ComputePrice
    ) -> list[dict[str, object]]:
        """The causes with the largest cost in a window, JSON-ready.

        Args:
            selection: Window and filters.
            now: Unix seconds.
            since: Start of the journal, Unix seconds.
            prompt_tokens: Prompt tokens of the selection.
            price: Price of GPU time.
        """
        rings = [each.ring for each in self._rings[selection.window.ring :]]
        covered_seconds = max(now - max(rings[0].first_start(now, selection.window.seconds), since), 0.0)
        totals: dict[CostKey, Cost] = {}
        for bucket in covering_buckets(rings, now, selection.window.seconds):
            for cause, cost in bucket.items():
                if selection.takes(*cause.key):
                    totals.setdefault(cause, Cost()).add(cost)
        top = _PACKING.largest(totals.items(), _SHOWN)
        return [
            _shown(cause, cost, covered_seconds, price) | {"share": share(cost.tokens, prompt_tokens)}
            for cause, cost in top
        ]


class SlotPlace(NamedTuple):
    """A place with a varying value.

    Attributes:
        model: As in ``StatsKey``.
        tenant: As in ``StatsKey``.
        source: As in ``StatsKey``.
        template: As in ``StatsKey``.
        prompt: As in ``StatsKey``.
        regex: Regular expression that finds the value.
        reason: Kind of the value.
    """

    model: str
    tenant: str
    source: str
    template: str
    prompt: str
    regex: str
    reason: Reason


class SlotLoss(msgspec.Struct, array_like=True):
    """The cost of a place.

    Attributes:
        tokens: Missed tokens.
        requests: Number of requests.
        kept: How often the value was the same in the next turn of a conversation.
        changed: How often it differed in the next turn of a session named by the client. Other conversations are not
            counted: two that look alike may belong to different users.
        name: Suggested name of the slot.
    """

    tokens: int = 0
    requests: int = 0
    kept: int = 0
    changed: int = 0
    name: str = ""

    def add(self, other: "SlotLoss") -> None:
        """Add a newer cost."""
        self.tokens += other.tokens
        self.requests += other.requests
        self.kept += other.kept
        self.changed += other.changed
        self.name = other.name


class Suggestions:
    """Costs by time and place.

    Args:
        limits: Bounds the places per time bucket; the largest are kept.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self._limits = limits
        self._rings = tuple(CostBuckets(resolution, _SLOT_PACKING) for resolution in FINDINGS)

    def configure(self, limits: StatsLimits) -> None:
        """Apply other bounds."""
        self._limits = limits

    def add(self, key: StatsKey, at: float, explanation: Explanation) -> None:
        """Add the varying slot of a request, if it has one."""
        slot = explanation.slot
        if slot is None:
            return
        if slot.is_kept:
            loss = SlotLoss(kept=1, name=slot.name)
        else:
            tokens = next((each.tokens for each in explanation.missed if each.reason is slot.reason), 0)
            within = explanation.reference is not None and explanation.reference.chosen_by == "session"
            loss = SlotLoss(tokens, 1, 0, int(within), slot.name)
        place = SlotPlace(*key, slot.regex, slot.reason)
        for ring in self._rings:
            ring.add(place, at, loss, self._limits.suggestions)

    def shown(self, selection: Selection, now: float, prompt_tokens: int) -> list[dict[str, object]]:
        """The suggestions for a selection, JSON-ready, largest cost first.

        Args:
            selection: Window and filters.
            now: Unix seconds.
            prompt_tokens: Prompt tokens of all requests on which rules were evaluated.
        """
        rings = [each.ring for each in self._rings[selection.window.ring :]]
        totals: dict[SlotPlace, SlotLoss] = {}
        reasons: dict[SlotPlace, Counter[Reason]] = {}
        for bucket in covering_buckets(rings, now, selection.window.seconds):
            for place, loss in bucket.items():
                if selection.takes(place.model, place.tenant, place.source, place.template, place.prompt):
                    # One suggestion for all versions of a template or application and all kinds of values.
                    same = place._replace(template="", prompt=prompt_id(place.prompt), reason=Reason.UNCLASSIFIED)
                    totals.setdefault(same, SlotLoss()).add(loss)
                    reasons.setdefault(same, Counter())[place.reason] += max(loss.tokens, 1)
        found = [(place, loss) for place, loss in totals.items() if loss.tokens]
        return [
            _slot_shown(place, loss, reasons[place], prompt_tokens)
            for place, loss in _SLOT_PACKING.largest(found, _SHOWN)
        ]


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


_SHOWN = 20
_LONGEST_PATH = 200
_LONGEST_SAID = 300
_INDEX = re.compile(r"\[\d+\]")

_MOVING = frozenset({Reason.HISTORY_TRIMMED, Reason.HISTORY_EDITED, Reason.REPLY_RERENDERED})
"""Reasons whose place moves with every turn of a conversation."""

_PACKING = CostPacking(
    msgspec.msgpack.Encoder().encode,
    msgspec.msgpack.Decoder(list[tuple[CostKey, Cost]]).decode,
    Cost,
    lambda cost: (cost.gpu_seconds, cost.tokens),
)


def _cause(key: StatsKey, missed: Attribution, difference: Difference | None) -> tuple[CostKey, str] | None:
    """The cause of missed tokens and its description; None if it cannot be remedied."""
    reason = missed.reason
    if difference is not None and difference.reason is reason:
        path, line = difference.path, difference.line
        if reason in _MOVING:
            path, line = _INDEX.sub("[…]", path), 0
        said = difference.said or REASONS[reason].meaning
        return CostKey(key, reason, difference.detail, path[:_LONGEST_PATH], line), said[:_LONGEST_SAID]
    if REASONS[reason].remedy is Remedy.NONE:
        return None
    return CostKey(key, reason, "", "", 0), (missed.note or REASONS[reason].meaning)[:_LONGEST_SAID]


def _shown(cause: CostKey, cost: Cost, covered_seconds: float, price: ComputePrice) -> dict[str, object]:
    text = REASONS[cause.reason]
    daily = per_day(cost.gpu_seconds, covered_seconds)
    return {
        "sentence": f"{_subject(cause)} ({cause.key.source}) {costs(cost.gpu_seconds, covered_seconds, price)}.",
        "model": cause.key.model,
        "tenant": cause.key.tenant,
        "source": cause.key.source,
        "template": cause.key.template,
        "prompt": cause.key.prompt,
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


def _subject(cause: CostKey) -> str:
    place = f"{cause.path}, line {cause.line}" if cause.line else cause.path
    text, hint = REASONS[cause.reason], HINTS.get(cause.detail)
    subject = hint.subject if hint else text.subject
    return f"{subject or f'“{text.title}”'} in {place}" if place else f"“{text.title}”"


_SLOT_PACKING = CostPacking(
    msgspec.msgpack.Encoder().encode,
    msgspec.msgpack.Decoder(list[tuple[SlotPlace, SlotLoss]]).decode,
    SlotLoss,
    lambda loss: (loss.tokens, loss.requests),
)


def _slot_shown(place: SlotPlace, loss: SlotLoss, reasons: Counter[Reason], prompt_tokens: int) -> dict[str, object]:
    # ``request`` requires that the value was seen changing within conversations: otherwise the value of one customer
    # might come back in the conversation of another.
    varies = "conversation" if loss.kept or not loss.changed or Reason.USER_DATA in reasons else "request"
    return {
        "name": loss.name,
        "regex": place.regex,
        "varies": varies,
        "reason": reasons.most_common(1)[0][0],
        "model": place.model,
        "tenant": place.tenant,
        "source": place.source,
        "requests": loss.requests,
        "tokens": loss.tokens,
        "points": points(loss.tokens, prompt_tokens),
        "yaml": _yaml(loss.name, place.regex, varies, place.model),
    }


def _yaml(name: str, regex: str, varies: str, model: str) -> str:
    """The setting as YAML, ready for the configuration."""
    quoted = "'" + regex.replace("'", "''") + "'"
    slot = f"{{name: {name}, regex: {quoted}, varies: {varies}, models: [{json.dumps(model)}]}}"
    return f"canon:\n  dynamic_suffix:\n    slots:\n      - {slot}\n"
