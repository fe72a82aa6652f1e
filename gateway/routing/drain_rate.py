"""How fast a queue moves. No I/O, no clock."""

from collections import deque

_WINDOW_SECONDS = 10.0
_ENOUGH_SECONDS = 1.0
"""What left in less time than this says little about what will."""

_SEVERAL = 3
"""Requests from which on a further one can be compared with them."""


class DrainRate:
    """Tokens that left a queue lately.

    Args:
        now: When it began, in monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._left: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def left(self, now: float, tokens: int) -> None:
        """A request of so many tokens left it, to be computed.

        It counts no more than all that left before it: one with a million tokens says little about the others.
        """
        self._forget(now)
        if len(self._left) >= _SEVERAL:
            tokens = min(tokens, self._tokens)
        self._left.append((now, tokens))
        self._tokens += tokens

    def seconds(self, now: float, tokens: float, expected: float) -> float:
        """How long it should take until so many tokens have left.

        Args:
            now: Monotonic seconds.
            tokens: How many.
            expected: Tokens a second to go by as long as nothing could be measured; above 0.
        """
        self._forget(now)
        measured = min(now - self._began, _WINDOW_SECONDS)
        if self._tokens and measured >= _ENOUGH_SECONDS:
            return tokens * measured / self._tokens
        # What stood still for so long will hardly be done sooner.
        return max(tokens / expected, measured)

    def _forget(self, now: float) -> None:
        while self._left and self._left[0][0] <= now - _WINDOW_SECONDS:
            self._tokens -= self._left.popleft()[1]
