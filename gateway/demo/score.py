"""Measurements of one side, in constant memory."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.core.decision import is_warm
from gateway.demo.demo_client import StreamedAnswer

_STEP = math.log(1.01)


class Times:
    """Durations, kept in steps of 1 %, so a quantile is at most half a percent off."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[round(math.log(max(seconds, 1e-6)) / _STEP)] += 1
        self._total += 1

    def quantile(self, share: float) -> float | None:
        """Seconds that ``share`` of the durations do not exceed; None without any."""
        wanted = math.ceil(share * self._total)
        for step in sorted(self._counts):
            wanted -= self._counts[step]
            if wanted <= 0:
                return math.exp(step * _STEP)
        return None


@dataclass(slots=True)
class Tokens:
    """Prompt tokens of a number of answers, as the engines report them."""

    answers: int = 0
    prompt: int = 0
    cached: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from a cache; 0 without any."""
        return self.cached / self.prompt if self.prompt else 0.0

    @property
    def computed(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt - self.cached

    def add(self, answer: StreamedAnswer) -> None:
        """Count one answer."""
        self.answers += 1
        self.prompt += answer.prompt_tokens
        self.cached += answer.cached_tokens


@dataclass(slots=True)
class Score:
    """One side's numbers.

    Attributes:
        tokens: Of all answers.
        by_application: Of each application's answers.
        replicas: Answers of each replica.
        ttft: All times to the first token.
        warm: Those of warm requests, see ``is_warm``.
        cold: Those of the others, of which less or nothing came from the cache.
        errors: Requests that failed.
        first_error: The error of the first of them.
    """

    tokens: Tokens = field(default_factory=Tokens)
    by_application: dict[str, Tokens] = field(default_factory=dict)
    replicas: Counter[str] = field(default_factory=Counter)
    ttft: Times = field(default_factory=Times)
    warm: Times = field(default_factory=Times)
    cold: Times = field(default_factory=Times)
    errors: int = 0
    first_error: str = ""

    @classmethod
    def of(cls, applications: Iterable[str]) -> "Score":
        """An empty score for these applications."""
        return cls(by_application={name: Tokens() for name in applications})

    @property
    def requests(self) -> int:
        """Requests that have ended, with an answer or an error."""
        return self.tokens.answers + self.errors

    def add(self, application: str, answer: StreamedAnswer) -> None:
        """Count an answer."""
        self.tokens.add(answer)
        self.by_application[application].add(answer)
        self.replicas[answer.replica] += 1
        self.ttft.add(answer.ttft_seconds)
        warm = is_warm(answer.cached_tokens, answer.prompt_tokens)
        (self.warm if warm else self.cold).add(answer.ttft_seconds)

    def add_error(self, message: str) -> None:
        """Count a request that failed."""
        self.errors += 1
        self.first_error = self.first_error or message
