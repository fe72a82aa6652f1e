"""How fast each replica is, learned from its own answers.

The time to first token is taken as a straight line: a base, plus seconds per token times the uncached tokens that had
to be prefilled first (those left to compute at dispatch and the request's own). The line is a least-squares fit over
recent observations, old ones fading out. The line of the start values, scaled to the last few observations, takes part
as two pseudo-observations, so traffic whose prompts are all of one length cannot turn the line over. Prompts that are
too short to show the prefill time only update the base as long as there are no others.

One observation has a bounded influence. An engine that compiles its first graph, or a process that was paused, takes
30 s for ten tokens, and a line through that would be wrong for hundreds of answers. So a time counts as no more than
twice, and no less than half, of what the median of the last few suggests. Once that median itself disagrees with the
line, the replica has become slower or faster for good, and what was observed before fades quickly.

Replicas of a model share what they learn until a replica's own observations clearly differ from the shared rates.
Without that, the first replica to be faster than the start value would look better than its idle twins, and every cold
prompt would go there.
"""

import math
from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from gateway.core.replica_state import Rates

_FADE = 0.98
"""Weight an observation keeps with each later one: the last 50 count for two thirds."""

_FADE_ON_CHANGE = 0.7
"""The same while the last few disagree with all before them."""

_RECENT = 9
"""Observations of which the median is taken: up to four of them can be absurd."""

_CERTAIN = 3
"""With fewer observations, the current estimate replaces the missing ones."""

_SHORTEST = 1e-6
"""Least base of an expected time to a first token, so that ratios stay finite."""

_ROUNDS = 6
"""How often the first few observations are bounded and fitted: by then the line does not move any more."""

_ABSURD = 4.0
"""Ratio to the median from which on one of the first few observations is left out."""

_MAX_APART = 2.0
"""An observation counts as no further from the median than by this factor."""

_FAR_BEYOND = 8
"""Multiple of the mean prompt up to which the line holds."""

_FAR_WEIGHT = 0.05
"""Weight of an observation that is further from it: with many tokens, a full one would turn the line."""

_CHANGED = 1.5
"""Ratio of the median to the estimate from which on the estimate is out of date."""

_LEAST_SHARE = 0.1
"""Share of the mean time to first token that prefill takes at least, however flat the line looks among noise."""

_PRIOR_WEIGHT = 0.5
_PRIOR_TOKENS = 2000.0
_CLEARLY = 1.4
"""A replica counts as slower or faster than the others of its model from this ratio on. Smaller differences are noise,
and following noise would spread cold prompts unevenly."""

_BASE_NOISE_SECONDS = 0.05
_BASE_NOISE_SHARE = 0.25
"""Bases that differ by less than this, or by less than this share of the model's mean time to first token, count as
equal: the base is where the line meets the axis, and moves with every answer."""

_ENOUGH = 20.0
"""Weight of a replica's own observations below which they are no reason to set it apart."""

_EVIDENCE_TOKENS = 64
"""Below this, the time of a prefill says more about the network than about the engine's speed."""

_DECODE_SHARE = 0.25
"""Of an answer that was not streamed, decoding may take this share if its time is to teach the prefill."""

_GAIN, _GAIN_ON_CHANGE = 0.1, 0.3
"""How far a mean moves towards an observation."""

_REQUEST_APART = 4.0
"""As ``_MAX_APART``, for whole requests: these do differ."""


class LearnedRates:
    """The rates of one replica. Times that are not positive and finite are ignored.

    Args:
        start: Rates before the first answer.
        pool: Rates shared by the replicas of a model, which have no pool themselves; every observation is passed on to
            it.
    """

    def __init__(self, start: Rates, pool: "LearnedRates | None" = None) -> None:
        self._start = start
        self._start_base = max(start.base_seconds, _SHORTEST)
        self._pool = pool
        self._rates = start
        self._combined = start, start, start  # own rates, the pool's, and what both together say
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._of_start: deque[float] = deque(maxlen=_RECENT)  # ratio of the observed to the start value
        self._observed = 0
        self._evidence = 0.0
        self._long = _Sums()
        self._short = _Sums()
        self._decode = _Mean(start.decode_seconds_per_token, _MAX_APART)
        self._request = _Mean(start.request_seconds, _REQUEST_APART)

    @property
    def rates(self) -> Rates:
        """The current estimate."""
        own, pool, combined = self._rates, self._pool, self._combined
        if pool is None:
            return own
        if combined[0] is not own or combined[1] is not pool._rates:
            combined = self._combined = own, pool._rates, self._combine(own, pool)
        return combined[2]

    def longest_first_content(self, prefill_tokens: int, *, streamed: bool) -> float:
        """Seconds to the first content of an answer behind so many tokens, rather too long than too short; infinite
        before the first few answers of the model's replicas."""
        pool, rates = self._pool or self, self.rates
        if (pool._observed if streamed else len(pool._request.recent)) < _CERTAIN:
            return math.inf
        seconds = rates.base_seconds + prefill_tokens * rates.prefill_seconds_per_token
        seconds += 0.0 if streamed else rates.request_seconds
        tokens, weight = pool._long.x + pool._short.x, pool._long.weight + pool._short.weight
        if prefill_tokens * weight <= _FAR_BEYOND * tokens:
            return seconds
        # Far beyond all that was seen the line shows little: perhaps all the time was prefill.
        return max(seconds, prefill_tokens * (pool._long.y + pool._short.y) / max(tokens, 1.0))

    def _combine(self, own: Rates, pool: "LearnedRates") -> Rates:
        """The rates of a replica that learns beside others of its model."""
        pooled = pool._rates
        if self._evidence < _ENOUGH:
            return pooled
        weight = pool._long.weight + pool._short.weight
        mean_seconds = (pool._long.y + pool._short.y) / weight if weight else 0.0
        ratio = own.prefill_seconds_per_token / pooled.prefill_seconds_per_token
        alike = 1 / _CLEARLY < ratio < _CLEARLY
        near = abs(own.base_seconds - pooled.base_seconds) < max(_BASE_NOISE_SECONDS, _BASE_NOISE_SHARE * mean_seconds)
        # Of the two lines one as a whole: one's base with the other's slope would fit no observation.
        line = pooled if near and alike else own
        return Rates(
            line.base_seconds, line.prefill_seconds_per_token, own.decode_seconds_per_token, own.request_seconds
        )

    def observe_first_token(self, prefill_tokens: int, seconds: float) -> None:
        """A first token came ``seconds`` after dispatch, ``prefill_tokens`` having been prefilled meanwhile."""
        if prefill_tokens < 0 or not 0 < seconds < math.inf:
            return
        tokens = float(prefill_tokens)
        if self._pool is not None:
            self._pool._learn_prefill(tokens, seconds)
        self._learn_prefill(tokens, seconds)

    def observe_decode(self, completion_tokens: int, seconds: float) -> None:
        """``completion_tokens`` after the first took ``seconds``."""
        if completion_tokens <= 0 or not 0 < seconds < math.inf:
            return
        if self._pool is not None:
            self._pool.observe_decode(completion_tokens, seconds)
        old, decode = self._rates, self._decode.observe(seconds / completion_tokens)
        self._rates = Rates(old.base_seconds, old.prefill_seconds_per_token, decode, old.request_seconds)

    def observe_request(self, prefill_tokens: int, completion_tokens: int, seconds: float, *, streamed: bool) -> None:
        """A whole request took ``seconds``.

        An answer that was not streamed shows its first token only with its last, so its prefill time is what remains
        once the decode time is taken off; it is used only where decoding is a small part.
        """
        if not 0 < seconds < math.inf:
            return
        for learner in (self, self._pool) if self._pool is not None else (self,):
            old, whole = learner._rates, learner._request.observe(seconds)
            learner._rates = Rates(old.base_seconds, old.prefill_seconds_per_token, old.decode_seconds_per_token, whole)
        if streamed or prefill_tokens < _EVIDENCE_TOKENS:
            return
        decode = max(completion_tokens - 1, 0) * self.rates.decode_seconds_per_token
        if decode < seconds * _DECODE_SHARE:
            self.observe_first_token(prefill_tokens, seconds - decode)

    def _learn_prefill(self, tokens: float, seconds: float) -> None:
        """Move the line by an observation. Called twice for every stream: helpers would take longer than its sums."""
        self._recent.append((tokens, seconds))
        self._of_start.append(seconds / (self._start_base + tokens * self._start.prefill_seconds_per_token))
        self._observed += 1
        self._evidence = self._evidence * _FADE + 1.0
        if self._observed <= _RECENT:
            self._fit_anew()
            return
        base, rate = max(self._rates.base_seconds, _SHORTEST), self._rates.prefill_seconds_per_token
        median = sorted([other / (base + count * rate) for count, other in self._recent])[_RECENT // 2]
        fade = _FADE if 1 / _CHANGED < median < _CHANGED else _FADE_ON_CHANGE
        sums = self._long if tokens >= _EVIDENCE_TOKENS else self._short
        sums.add(tokens, seconds, median * (base + tokens * rate), fade)
        self._rates = self._fitted()

    def _fit_anew(self) -> None:
        """Fit all observations while they are still at hand: what bounded the first was not learned from the others."""
        self._rates = replace(
            self._rates,
            base_seconds=self._start.base_seconds,
            prefill_seconds_per_token=self._start.prefill_seconds_per_token,
        )
        for number in range(_ROUNDS):
            self._long, self._short = _Sums(), _Sums()
            base, rate = max(self._rates.base_seconds, _SHORTEST), self._rates.prefill_seconds_per_token
            median = _median([seconds / (base + tokens * rate) for tokens, seconds in self._recent], 1.0)
            for tokens, seconds in self._recent:
                expected = median * (base + tokens * rate)
                if number < _ROUNDS // 2 or expected / _ABSURD < seconds < expected * _ABSURD:
                    sums = self._long if tokens >= _EVIDENCE_TOKENS else self._short
                    sums.add(tokens, seconds, expected, _FADE)
            self._rates = self._fitted()

    def _fitted(self) -> Rates:
        long, short = self._long, self._short
        base, rate = self._start.base_seconds, self._start.prefill_seconds_per_token
        if not long.weight:
            y = short.y - rate * short.x + _PRIOR_WEIGHT * base
            base = max(y / (short.weight + _PRIOR_WEIGHT), 0.0)
            return replace(self._rates, base_seconds=base, prefill_seconds_per_token=rate)
        scale = _median(self._of_start, 1.0)
        base, rate = scale * base, scale * rate
        # Not far outside of what was seen: a start value far out would turn the line like a long lever.
        prior = 2 * long.x / long.weight
        if prior > _PRIOR_TOKENS:
            prior = _PRIOR_TOKENS
        elif prior < _EVIDENCE_TOKENS:
            prior = _EVIDENCE_TOKENS
        weight = long.weight + short.weight + 2 * _PRIOR_WEIGHT
        x = long.x + short.x + _PRIOR_WEIGHT * prior
        y = long.y + short.y + _PRIOR_WEIGHT * (2 * base + rate * prior)
        xx = long.xx + short.xx + _PRIOR_WEIGHT * prior * prior
        xy = long.xy + short.xy + _PRIOR_WEIGHT * prior * (base + rate * prior)
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        if slope * x > y:  # the line would meet the axis below zero: go through the origin instead
            slope = xy / xx
        # A slower or faster machine is one thing, a prefill that takes no time another.
        slope = max(slope, _LEAST_SHARE * y / x, rate / 1000)
        intercept = max((y - slope * x) / weight, 0.0)
        old = self._rates
        return Rates(intercept, slope, old.decode_seconds_per_token, old.request_seconds)


class _Sums:
    """Sums of a least-squares fit over observations that fade.

    Attributes:
        weight: Weight of the observations.
        x: Sum of the tokens.
        y: Sum of the seconds.
        xx: Sum of the squares of the tokens.
        xy: Sum of the products.
    """

    __slots__ = ("weight", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.weight = self.x = self.y = self.xx = self.xy = 0.0

    def add(self, x: float, y: float, expected: float, fade: float) -> None:
        """Add an observation; those before fade.

        Args:
            x: Its tokens.
            y: Its seconds.
            expected: What the last few and the belief suggest; bounds its seconds.
            fade: Factor of the observations before.
        """
        weight = 1.0
        if y < expected / _MAX_APART:
            y, weight = expected / _MAX_APART, _FAR_WEIGHT
        elif y > expected * _MAX_APART:
            y, weight = expected * _MAX_APART, _FAR_WEIGHT
        self.weight = self.weight * fade + weight
        self.x = self.x * fade + weight * x
        self.y = self.y * fade + weight * y
        self.xx = self.xx * fade + weight * x * x
        self.xy = self.xy * fade + weight * x * y


class _Mean:
    """A mean of recent observations, each bounded by the median of the last few.

    Args:
        start: Value before the first observation.
        max_apart: By which factor an observation may differ from the median.

    Attributes:
        recent: The last few observations.
    """

    __slots__ = ("_max_apart", "_value", "recent")

    def __init__(self, start: float, max_apart: float) -> None:
        self._value = start
        self._max_apart = max_apart
        self.recent: deque[float] = deque(maxlen=_RECENT)

    def observe(self, value: float) -> float:
        """Take in an observation above 0; returns the mean."""
        self.recent.append(value)
        mean, apart = self._value, self._max_apart
        median = _median(self.recent, mean or value)
        if value < median / apart:
            value = median / apart
        elif value > median * apart:
            value = median * apart
        gain = _GAIN if mean / _CHANGED < median < mean * _CHANGED else _GAIN_ON_CHANGE
        self._value = mean = mean + gain * (value - mean)
        return mean


def _median(values: Iterable[float], belief: float) -> float:
    """The median; ``belief`` replaces missing values up to ``_CERTAIN``. Of two in the middle, the smaller."""
    ordered = sorted(values)
    if len(ordered) < _CERTAIN:
        ordered = sorted([*ordered, *[belief] * (_CERTAIN - len(ordered))])
    return ordered[(len(ordered) - 1) // 2]
