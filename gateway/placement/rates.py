"""How fast each replica is, learned from its own answers.

The time to first token is taken as a straight line: a base, plus seconds per token times the uncached tokens that had
to be prefilled first (those in flight at dispatch and the request's own). The line is a least-squares fit over recent
observations, old ones fading out. The start values take part as two pseudo-observations that never fade, so one odd
answer at the beginning, or traffic whose prompts are all of one length, cannot turn the line over.
Replicas of a model learn together: what one teaches, the others believe until their own answers clearly say otherwise.
Without that, the first replica to be faster than the start value would look better than its idle twins, and every cold
prompt would go there.
"""

from gateway.values.load import Rates

_FADE = 0.98
"""Weight an observation keeps with each later one: the last 50 count for two thirds."""

_PRIOR_WEIGHT = 0.5
_PRIOR_TOKENS = 2000.0
_CLEARLY = 1.5
"""A replica counts as slower or faster than the others of its model from this ratio on. Smaller differences are noise,
and following noise would spread cold prompts unevenly."""

_BASE_NOISE_SECONDS = 0.05
_BASE_NOISE_SHARE = 0.25
"""Bases that differ by less than this, or by less than this share of the model's mean time to first token, count as
equal: the base is where the line meets the axis, and moves with every odd answer."""

_ENOUGH = 20.0
"""Weight of a replica's own observations below which they are no reason to set it apart."""

_EVIDENCE_TOKENS = 64
"""Below this, the time of a prefill says more about the network than about the engine's speed."""


class LearnedRates:
    """The rates of one replica.

    Args:
        start: What to believe before the first answer.
        pool: What the replicas of the same model taught together; every observation is passed on to it.
    """

    def __init__(self, start: Rates, pool: "LearnedRates | None" = None) -> None:
        self._start = start
        self._pool = pool
        self._rates = start
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def rates(self) -> Rates:
        """The present belief."""
        own = self._rates
        if self._pool is None:
            return own
        pooled = self._pool.rates
        if self._weight < _ENOUGH:
            return pooled
        ratio = own.prefill_seconds_per_token / pooled.prefill_seconds_per_token
        alike = 1 / _CLEARLY < ratio < _CLEARLY
        mean = self._pool._y / self._pool._weight
        near = abs(own.base_seconds - pooled.base_seconds) < max(_BASE_NOISE_SECONDS, _BASE_NOISE_SHARE * mean)
        return Rates(
            pooled.base_seconds if near else own.base_seconds,
            pooled.prefill_seconds_per_token if alike else own.prefill_seconds_per_token,
            own.decode_seconds_per_token,
            own.request_seconds,
        )

    def observe_first_token(self, prefill_tokens: int, seconds: float) -> None:
        """A first token came ``seconds`` after dispatch, ``prefill_tokens`` having been prefilled meanwhile."""
        if self._pool is not None:
            self._pool.observe_first_token(prefill_tokens, seconds)
        x = float(prefill_tokens)
        self._weight = self._weight * _FADE + 1.0
        self._x = self._x * _FADE + x
        self._y = self._y * _FADE + seconds
        self._xx = self._xx * _FADE + x * x
        self._xy = self._xy * _FADE + x * seconds
        self._fit()

    def observe_decode(self, completion_tokens: int, seconds: float) -> None:
        """``completion_tokens`` after the first took ``seconds``."""
        if self._pool is not None:
            self._pool.observe_decode(completion_tokens, seconds)
        if completion_tokens > 0:
            old = self._rates.decode_seconds_per_token
            self._replace(decode_seconds_per_token=old + 0.1 * (seconds / completion_tokens - old))

    def observe_request(self, prefill_tokens: int, completion_tokens: int, seconds: float, *, streamed: bool) -> None:
        """A whole request took ``seconds``.

        An answer that was not streamed shows its first token only with its last, so its prefill time is what remains
        once the decode time is taken off; it is used only where decoding is the smaller part.
        """
        self._replace(request_seconds=self._rates.request_seconds + 0.1 * (seconds - self._rates.request_seconds))
        if streamed or prefill_tokens < _EVIDENCE_TOKENS:
            return
        decode = max(completion_tokens - 1, 0) * self.rates.decode_seconds_per_token
        if decode < seconds / 2:
            self.observe_first_token(prefill_tokens, seconds - decode)

    def _fit(self) -> None:
        base, rate = self._start.base_seconds, self._start.prefill_seconds_per_token
        # Not far outside of what was seen: a start value far out would turn the line like a long lever.
        prior = min(_PRIOR_TOKENS, max(2 * self._x / self._weight, _EVIDENCE_TOKENS))
        weight = self._weight + 2 * _PRIOR_WEIGHT
        x = self._x + _PRIOR_WEIGHT * prior
        y = self._y + _PRIOR_WEIGHT * (2 * base + rate * prior)
        xx = self._xx + _PRIOR_WEIGHT * prior**2
        xy = self._xy + _PRIOR_WEIGHT * prior * (base + rate * prior)
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        if slope * x > y:  # the line would meet the axis below zero: go through the origin instead
            slope = xy / xx
        if slope <= rate / 1000:  # a slower or faster machine is one thing, a prefill that takes no time another
            slope = max(y / x, rate / 1000)
        intercept = max((y - slope * x) / weight, 0.0)
        self._replace(base_seconds=intercept, prefill_seconds_per_token=slope)

    def _replace(
        self,
        base_seconds: float | None = None,
        prefill_seconds_per_token: float | None = None,
        decode_seconds_per_token: float | None = None,
        request_seconds: float | None = None,
    ) -> None:
        old = self._rates
        self._rates = Rates(
            old.base_seconds if base_seconds is None else base_seconds,
            old.prefill_seconds_per_token if prefill_seconds_per_token is None else prefill_seconds_per_token,
            old.decode_seconds_per_token if decode_seconds_per_token is None else decode_seconds_per_token,
            old.request_seconds if request_seconds is None else request_seconds,
        )
