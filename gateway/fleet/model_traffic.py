"""What this gateway's own traffic to a model says about that of others."""

_START_UNCACHED_TOKENS = 512.0
"""Start value: prompt tokens that a request leaves to compute. About what one turn of a conversation adds."""

_REQUEST_FADE = 0.95
"""Weight a request keeps with each later one: the last 20 count for two thirds."""

_LOOK_FADE = 0.98
"""Weight a look at one rank keeps with each later one."""

_SMALLEST_SHARE = 0.125
"""A gateway answers for at least this share: one that has only begun to send has to see what is in its way."""


class ModelTraffic:
    """One model's traffic as this gateway sees it; all replicas of the model share it."""

    def __init__(self) -> None:
        self._uncached = _START_UNCACHED_TOKENS
        self._own = self._foreign = 0.0

    @property
    def uncached_tokens(self) -> float:
        """Mean prompt tokens that a request leaves to compute."""
        return self._uncached

    @property
    def share(self) -> float:
        """This gateway's share of the requests in the engines, ``_SMALLEST_SHARE`` to 1."""
        return max(_SMALLEST_SHARE, (self._own + 1) / (self._own + self._foreign + 1))

    def sent(self, uncached_tokens: int) -> None:
        """A request was sent that leaves that many tokens to compute."""
        self._uncached += (1 - _REQUEST_FADE) * (uncached_tokens - self._uncached)

    def seen(self, own: int, foreign: int) -> None:
        """A look at one rank showed so many requests of this gateway and of others."""
        self._own = _LOOK_FADE * self._own + own
        self._foreign = _LOOK_FADE * self._foreign + foreign
