"""How fast each replica is, learned from its own answers.

The time to first token is taken as a straight line: a base, plus seconds per token times the uncached tokens that had
to be prefilled first (those in flight at dispatch and the request's own). The line is a least-squares fit over recent
observations, old ones fading out. The start values take part as two pseudo-observations that never fade, so one odd
answer at the beginning, or traffic whose prompts are all of one length, cannot turn the line over.
"""

from gateway.values.load import Rates

_FADE = 0.98
"""Weight an observation keeps with each later one: the last 50 count for two thirds."""

_PRIOR_WEIGHT = 0.5
_PRIOR_TOKENS = 2000.0
_EVIDENCE_TOKENS = 64
"""Below this, the time of a prefill says more about the network than about the engine's speed."""


class LearnedRates:
    """The rates of one replica.

    Args:
        start: What to believe before the first answer.
    """

    def __init__(self, start: Rates) -> None:
        self._start = start
        self._rates = start
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def rates(self) -> Rates:
        """The present belief."""
        return self._rates

    def observe_first_token(self, prefill_tokens: int, seconds: float) -> None:
        """A first token came ``seconds`` after dispatch, ``prefill_tokens`` having been prefilled meanwhile."""
        x = float(prefill_tokens)
        self._weight = self._weight * _FADE + 1.0
        self._x = self._x * _FADE + x
        self._y = self._y * _FADE + seconds
        self._xx = self._xx * _FADE + x * x
        self._xy = self._xy * _FADE + x * seconds
        self._fit()

    def observe_decode(self, completion_tokens: int, seconds: float) -> None:
        """``completion_tokens`` after the first took ``seconds``."""
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
        decode = max(completion_tokens - 1, 0) * self._rates.decode_seconds_per_token
        if decode < seconds / 2:
            self.observe_first_token(prefill_tokens, seconds - decode)

    def _fit(self) -> None:
        base, rate = self._start.base_seconds, self._start.prefill_seconds_per_token
        weight = self._weight + 2 * _PRIOR_WEIGHT
        x = self._x + _PRIOR_WEIGHT * _PRIOR_TOKENS
        y = self._y + _PRIOR_WEIGHT * (2 * base + rate * _PRIOR_TOKENS)
        xx = self._xx + _PRIOR_WEIGHT * _PRIOR_TOKENS**2
        xy = self._xy + _PRIOR_WEIGHT * _PRIOR_TOKENS * (base + rate * _PRIOR_TOKENS)
        slope = (weight * xy - x * y) / (weight * xx - x * x)
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
