"""How many conversations were tried with rules, and how far the figures of rules may be off because of the others.

Requests that are always tried (``Explanation.observed`` is 1) are counted as they are. What may vary is the sum over
the others: of their conversations some are in the sample, with a weight, and the rest counts as nothing. Whole
conversations are drawn. One more is among them, in which the rule does what it does on average where it does anything:
a sample without such a conversation does not prove that there is none.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from gateway.core.canonical import RuleMode
from gateway.core.explanation import Explanation
from gateway.stats.cluster_bootstrap import Draws, interval

MIN_CONVERSATIONS = 20
"""Conversations in the sample below which no interval is given."""

_DRAWS = 400
_GROUPS = 1_000
"""More conversations are drawn in so many groups of about the same size, which bounds time and memory of an answer."""

_Rule = tuple[str, RuleMode]


class TriedConversations:
    """The conversations of requests that the figures of rules stand for.

    Args:
        explained: Explanations with the tenants of their requests.
    """

    def __init__(self, explained: Iterable[tuple[str, Explanation]] = ()) -> None:
        self._tokens = 0
        self._weight = 1.0
        self._tried: dict[tuple[str, str], bool] = {}
        self._effects: dict[tuple[str, str], Counter[_Rule]] = {}
        self._drawn: dict[tuple[str, str], defaultdict[_Rule, float]] = {}
        self._sampled: set[tuple[str, str]] = set()
        for tenant, each in explained:
            if each.observed or each.left_out:
                self._add((tenant, each.conversation), each)

    def _add(self, conversation: tuple[str, str], explanation: Explanation) -> None:
        self._tokens += explanation.prompt_tokens
        self._tried[conversation] = bool(explanation.observed) or self._tried.get(conversation, False)
        nets = {(each.rule, each.mode): each.saved_tokens - each.lost_tokens for each in explanation.canonical}
        if nets:
            self._effects.setdefault(conversation, Counter()).update(nets)
        if explanation.observed == 1:
            return
        weighted = self._drawn.setdefault(conversation, defaultdict(float))
        for rule, net in nets.items():
            weighted[rule] += net * explanation.observed
        if explanation.observed:
            self._sampled.add(conversation)
            self._weight = max(self._weight, explanation.observed)

    @property
    def shown(self) -> dict[str, int]:
        """How many of the conversations had a request that was tried, JSON-ready."""
        return {"tried": sum(self._tried.values()), "of": len(self._tried)}

    def around(self, rule: str, mode: RuleMode, points: float | None) -> dict[str, float] | None:
        """The interval of the percentage points of a rule, JSON-ready; None if all were tried, or too few of a sample.

        Args:
            rule: The rule.
            mode: Its mode.
            points: The estimate, which the interval is put around: it may be of more requests than these.
        """
        draws = self._draws
        if draws is None or points is None:
            return None
        effects = [net for nets in self._effects.values() if (net := nets[rule, mode])]
        one_more = self._weight * sum(effects) / max(len(effects), 1)
        nets = np.array([*(nets[rule, mode] for nets in self._drawn.values()), one_more])
        sums = draws.weights @ np.bincount(np.arange(len(nets)) % draws.sessions, nets)
        sums[0] -= one_more
        found = interval(sums * (100 / self._tokens), len(self._sampled))
        if found is None:
            return None
        low, high = points + found.low - found.value, points + found.high - found.value
        return {"low": round(low, 4), "high": round(high, 4)}

    @cached_property
    def _draws(self) -> Draws | None:
        if len(self._sampled) < MIN_CONVERSATIONS or not self._tokens:
            return None
        return Draws(range(min(len(self._drawn) + 1, _GROUPS)), _DRAWS)
