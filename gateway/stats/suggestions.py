"""Suggested slots for the rule ``dynamic-suffix``: varying values, the tokens they cost, and the setting to add."""

import json
from collections import Counter
from typing import NamedTuple

import msgspec

from gateway.core.explanation import Explanation
from gateway.core.reasons import Reason
from gateway.stats.canonicalization_totals import points
from gateway.stats.costs import CostBuckets, CostPacking
from gateway.stats.label_limiter import StatsKey
from gateway.stats.query_arguments import Selection
from gateway.stats.stats_limits import StatsLimits
from gateway.stats.time_buckets import FINDINGS, covering_buckets

_SHOWN = 20


class SlotPlace(NamedTuple):
    """A place with a varying value.

    Attributes:
        model: As in ``StatsKey``.
        tenant: As in ``StatsKey``.
        source: As in ``StatsKey``.
        template: As in ``StatsKey``.
        regex: Regular expression that finds the value.
        reason: Kind of the value.
    """

    model: str
    tenant: str
    source: str
    template: str
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


_PACKING = CostPacking(
    msgspec.msgpack.Encoder().encode,
    msgspec.msgpack.Decoder(list[tuple[SlotPlace, SlotLoss]]).decode,
    SlotLoss,
    lambda loss: (loss.tokens, loss.requests),
)


class Suggestions:
    """Costs by time and place.

    Args:
        limits: Bounds the places per time bucket; the largest are kept.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self._limits = limits
        self._rings = tuple(CostBuckets(resolution, _PACKING) for resolution in FINDINGS)

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
                if selection.takes(place.model, place.tenant, place.source, place.template):
                    # One suggestion for all versions of a template and all kinds of values.
                    same = place._replace(template="", reason=Reason.UNCLASSIFIED)
                    totals.setdefault(same, SlotLoss()).add(loss)
                    reasons.setdefault(same, Counter())[place.reason] += max(loss.tokens, 1)
        found = [(place, loss) for place, loss in totals.items() if loss.tokens]
        return [_shown(place, loss, reasons[place], prompt_tokens) for place, loss in _PACKING.largest(found, _SHOWN)]


def _shown(place: SlotPlace, loss: SlotLoss, reasons: Counter[Reason], prompt_tokens: int) -> dict[str, object]:
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
