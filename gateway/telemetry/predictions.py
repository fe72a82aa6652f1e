"""Accuracy of cache predictions per replica over the last 15 minutes."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.ids import ReplicaId
from gateway.core.settlement import Refusal, Settlement

_STEP_SECONDS = 30
_STEPS = 30


@dataclass(slots=True)
class PredictionFigures:
    """Sums over answers of one replica for which the engine reported cached tokens.

    Attributes:
        requests: Number of answers.
        prompt_tokens: Prompt tokens.
        predicted_tokens: Tokens predicted to be cached.
        confirmed_tokens: Tokens reported as cached.
        over_tokens: Predicted but not reported tokens, summed over answers with fewer than predicted.
        under_tokens: Reported but not predicted tokens, summed over answers with more than predicted.
    """

    requests: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    confirmed_tokens: int = 0
    over_tokens: int = 0
    under_tokens: int = 0

    def add(self, other: "PredictionFigures") -> None:
        """Add other figures."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.predicted_tokens += other.predicted_tokens
        self.confirmed_tokens += other.confirmed_tokens
        self.over_tokens += other.over_tokens
        self.under_tokens += other.under_tokens


class RecentPredictions:
    """An ``Observer`` that compares predictions with engines' reports, without warm-up requests.

    Args:
        clock: Monotonic seconds.

    Attributes:
        window_seconds: Length of the window: the current step of 30 seconds and the steps before it.
    """

    window_seconds = _STEPS * _STEP_SECONDS

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: dict[ReplicaId, deque[tuple[int, PredictionFigures]]] = {}

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        s = settlement
        if s.warming or s.status != 200 or s.decision is None or s.cached_tokens is None:
            return
        replica, present = s.decision.target.replica, int(self._clock() // _STEP_SECONDS)
        steps = self._steps.get(replica)
        if not steps or steps[-1][0] != present:
            steps = self._current_steps(replica)
            steps.append((present, PredictionFigures()))
        figures = steps[-1][1]
        figures.requests += 1
        figures.prompt_tokens += s.prompt_tokens
        figures.predicted_tokens += s.predicted_tokens
        figures.confirmed_tokens += s.cached_tokens
        if s.predicted_tokens > s.cached_tokens:
            figures.over_tokens += s.predicted_tokens - s.cached_tokens
        else:
            figures.under_tokens += s.cached_tokens - s.predicted_tokens

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""

    def figures(self, replica: ReplicaId) -> PredictionFigures:
        """Figures of a replica within the window."""
        total = PredictionFigures()
        for _, figures in self._current_steps(replica):
            total.add(figures)
        return total

    def forget(self, replica: ReplicaId) -> None:
        """Drop the figures of a replica that has left."""
        self._steps.pop(replica, None)

    def _current_steps(self, replica: ReplicaId) -> deque[tuple[int, PredictionFigures]]:
        """A replica's steps within the window."""
        steps = self._steps.setdefault(replica, deque())
        first = int(self._clock() // _STEP_SECONDS) - _STEPS + 1
        while steps and steps[0][0] < first:
            steps.popleft()
        return steps
