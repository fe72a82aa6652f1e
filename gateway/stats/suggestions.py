"""Places that vary, and that the rule ``dynamic-suffix`` would move if it were told of them: what they cost, and how it
is told."""

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
from gateway.stats.time_buckets import FINDINGS, fewest

_SHOWN = 20


class SlotPlace(NamedTuple):
    """What is counted together.

    Attributes:
        model: Whose requests, as in ``StatsKey``.
        tenant: Likewise.
        source: Likewise.
        template: Likewise.
        regex: Finds it.
        reason: What varies there.
    """

    model: str
    tenant: str
    source: str
    template: str
    regex: str
    reason: Reason


class SlotLoss(msgspec.Struct, array_like=True):
    """What a place has cost.

    Attributes:
        tokens: Missed tokens.
        requests: In how many requests.
        kept: How often the value was the same in the next turn of a conversation.
        changed: How often it was another one in the next turn of a session that the client named. Conversations that
            only look alike may be those of two people.
        name: What it may be called.
    """

    tokens: int = 0
    requests: int = 0
    kept: int = 0
    changed: int = 0
    name: str = ""

    def add(self, other: "SlotLoss") -> None:
        """Count another one."""
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
    """Losses by time and place.

    Args:
        limits: How many places are told apart in one bucket of time. The largest stay.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self._limits = limits
        self._rings = tuple(CostBuckets(resolution, _PACKING) for resolution in FINDINGS)

    def configure(self, limits: StatsLimits) -> None:
        """Go by other bounds from now on."""
        self._limits = limits

    def add(self, key: StatsKey, at: float, explanation: Explanation) -> None:
        """Count one request's place, if there is one."""
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
        """What is suggested for a selection, JSON-ready, what costs most first.

        Args:
            selection: The window, and whose.
            now: The time.
            prompt_tokens: Of all requests that were looked at.
        """
        rings = [each.ring for each in self._rings[selection.window.ring :]]
        totals: dict[SlotPlace, SlotLoss] = {}
        reasons: dict[SlotPlace, Counter[Reason]] = {}
        for bucket in fewest(rings, now, selection.window.seconds):
            for place, loss in bucket.items():
                if selection.takes(place.model, place.tenant, place.source, place.template):
                    # One suggestion for all versions of a template, whatever the values looked like.
                    same = place._replace(template="", reason=Reason.UNCLASSIFIED)
                    totals.setdefault(same, SlotLoss()).add(loss)
                    reasons.setdefault(same, Counter())[place.reason] += max(loss.tokens, 1)
        found = [(place, loss) for place, loss in totals.items() if loss.tokens]
        return [_shown(place, loss, reasons[place], prompt_tokens) for place, loss in _PACKING.largest(found, _SHOWN)]


def _shown(place: SlotPlace, loss: SlotLoss, reasons: Counter[Reason], prompt_tokens: int) -> dict[str, object]:
    # Only what was seen changing within conversations is no part of them: else one customer's value might come back in
    # the conversation of another one.
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
    """The setting, to be put into the configuration as it stands."""
    quoted = "'" + regex.replace("'", "''") + "'"
    slot = f"{{name: {name}, regex: {quoted}, varies: {varies}, models: [{json.dumps(model)}]}}"
    return f"canon:\n  dynamic_suffix:\n    slots:\n      - {slot}\n"
