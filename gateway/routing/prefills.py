"""Prompts that a target still has to compute: how many of their tokens are left. No I/O, no clock."""

from collections import OrderedDict

_LATE = 1.25
"""Multiple of a prompt's expected time from which on it counts in full again: the rate does not hold for it, and the
replica may hang. Counted as nearly done, it would draw all requests to that replica."""


class PrefillsInFlight:
    """Prompts sent to one target whose first token is not known to be there, in the order in which they were sent.

    Engines compute prompts first come, first served. So the time since the oldest of them was begun has gone into that
    one, as far as its tokens reach; counted in full until its first token, it would look like work that a new request
    has to wait for. Once that first token is late, it counts in full again. Later prompts always do.

    Attributes:
        tokens: Uncached tokens of all of them, in full.
    """

    __slots__ = ("_began_at", "_oldest_tokens", "_sent", "_tokens_of", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self._sent = 0
        self._tokens_of: OrderedDict[int, int] = OrderedDict()
        self._oldest_tokens = 0
        self._began_at = 0.0

    def add(self, tokens: int, now: float) -> int:
        """A prompt is sent with so many uncached tokens, at ``now`` in seconds. Returns its number for ``done``."""
        self._sent = number = self._sent + 1
        if not self._tokens_of:
            self._oldest_tokens, self._began_at = tokens, now
        self._tokens_of[number] = tokens
        self.tokens += tokens
        return number

    def done(self, number: int, now: float) -> None:
        """The prompt's first token is there at ``now``, or none will come. Once for each number."""
        oldest = next(iter(self._tokens_of))
        self.tokens -= self._tokens_of.pop(number)
        if number == oldest:
            self._oldest_tokens = next(iter(self._tokens_of.values()), 0)
            self._began_at = now

    def left(self, now: float, seconds_per_token: float) -> int:
        """Tokens that are left to compute at ``now``, at a learned rate; never negative."""
        if not self.tokens:
            return 0
        # In tokens, at the learned rate.
        computed = (now - self._began_at) / seconds_per_token
        if computed > _LATE * self._oldest_tokens:
            return self.tokens
        if computed >= self._oldest_tokens:
            return self.tokens - self._oldest_tokens
        return self.tokens - round(computed) if computed > 0 else self.tokens
