"""The budget of repeated warm-up: requests and prefill tokens of the last hour."""

from collections import deque

HOUR_SECONDS = 3600.0


class Expense:
    """One request that was sent.

    Attributes:
        at: When, in monotonic seconds.
        tokens: Prompt tokens that it may compute; corrected once the engine has answered.
    """

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at = at
        self.tokens = tokens


class HourlyBudget:
    """What may be sent within any hour. Holds one entry for each request of the last hour.

    Attributes:
        tokens: Prefill tokens an hour.
        requests: Requests an hour.
    """

    def __init__(self, tokens: int, requests: int) -> None:
        self.tokens = tokens
        self.requests = requests
        self._spent: deque[Expense] = deque()
        self._spent_tokens = 0

    def spend(self, tokens: int, now: float) -> Expense | None:
        """Reserve a request with so many prompt tokens; None if it exceeds what is left."""
        used_tokens, used_requests = self.used(now)
        if used_requests >= self.requests or used_tokens + tokens > self.tokens:
            return None
        expense = Expense(now, tokens)
        self._spent.append(expense)
        self._spent_tokens += tokens
        return expense

    def correct(self, expense: Expense, tokens: int, now: float) -> None:
        """Set the tokens that a request has computed."""
        if now - expense.at < HOUR_SECONDS:
            self._spent_tokens += tokens - expense.tokens
            expense.tokens = tokens

    def used(self, now: float) -> tuple[int, int]:
        """Tokens and requests of the last hour."""
        while self._spent and now - self._spent[0].at >= HOUR_SECONDS:
            self._spent_tokens -= self._spent.popleft().tokens
        return self._spent_tokens, len(self._spent)
