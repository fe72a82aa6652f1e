"""What requests add up to, read from a row of figures."""

from collections.abc import Mapping, Sequence

from gateway.core.canonical import RuleMode
from gateway.core.reasons import Reason
from gateway.stats import columns
from gateway.stats.histogram import BINS, Bins

_NUMBERS = {reason: number for number, reason in enumerate(columns.REASONS)}


class Totals:
    """Sums over requests. Prompt tokens are hits plus the tokens of all reasons.

    Args:
        figures: One for each column, or for those that series need: then only requests, hits and tokens can be read.
    """

    __slots__ = ("_figures",)

    def __init__(self, figures: Sequence[float]) -> None:
        self._figures = figures

    @property
    def requests(self) -> int:
        """How many."""
        return self._count(columns.REQUESTS)

    @property
    def skipped(self) -> int:
        """Of those, how many were explained without their text."""
        return self._count(columns.SKIPPED)

    @property
    def prompt_tokens(self) -> int:
        """Of all."""
        return self._count(columns.PROMPT_TOKENS)

    @property
    def confirmed(self) -> int:
        """Hits that engines reported."""
        return self._count(columns.CONFIRMED)

    @property
    def predicted(self) -> int:
        """Hits of requests for which the engine reported nothing."""
        return self._count(columns.PREDICTED)

    @property
    def hits(self) -> int:
        """Prompt tokens that were not computed again."""
        return self.confirmed + self.predicted

    @property
    def rungs(self) -> Sequence[int]:
        """Lengths of the ladder's prefixes, in tokens."""
        return [self._count(columns.LADDER + number) for number in range(len(columns.RUNGS))]

    @property
    def missed_tokens(self) -> Mapping[Reason, int]:
        """Tokens by reason, in the order of ``Reason``; only reasons that have tokens."""
        figures = self._figures[columns.MISSED : columns.SERIES]
        return {reason: int(tokens) for reason, tokens in zip(columns.REASONS, figures, strict=True) if tokens}

    @property
    def missed(self) -> Mapping[Reason, tuple[int, float]]:
        """Tokens and GPU seconds, likewise."""
        return {
            reason: (tokens, self._figures[columns.LOST_GPU_SECONDS + _NUMBERS[reason]])
            for reason, tokens in self.missed_tokens.items()
        }

    @property
    def saved_seconds(self) -> float:
        """Prefill that hits made unnecessary."""
        return self._figures[columns.SAVED_SECONDS]

    @property
    def saved_gpu_seconds(self) -> float:
        """The same times the GPUs of a replica."""
        return self._figures[columns.SAVED_GPU_SECONDS]

    @property
    def lost_seconds(self) -> float:
        """Prefill of what was missed."""
        return self._figures[columns.LOST_SECONDS]

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU seconds of all reasons."""
        return sum(self._figures[columns.LOST_GPU_SECONDS : columns.LOST_GPU_SECONDS + len(columns.REASONS)])

    @property
    def cold(self) -> Bins:
        """Times to first token of requests of which less than half was reused."""
        return self._bins(columns.COLD)

    @property
    def warm(self) -> Bins:
        """Those of requests of which at least half was."""
        return self._bins(columns.WARM)

    @property
    def turns(self) -> Mapping[int, tuple[int, int]]:
        """Prompt tokens and hits, by turn; only turns that have any."""
        return {
            number + 1: (tokens, self._count(columns.TURN_HITS + number))
            for number in range(columns.TURNS)
            if (tokens := self._count(columns.TURN_TOKENS + number))
        }

    @property
    def observed(self) -> tuple[int, int]:
        """Requests for which it was worked out what rules save, and their prompt tokens."""
        return self._count(columns.OBSERVED), self._count(columns.OBSERVED_TOKENS)

    @property
    def rules(self) -> Mapping[tuple[str, RuleMode], tuple[int, int, int]]:
        """By rule and mode: requests it changes, tokens saved, tokens lost; only those that have any."""
        found = {
            rule: (
                self._count(columns.CHANGED_BY_RULE + number),
                self._count(columns.SAVED_BY_RULE + number),
                self._count(columns.LOST_BY_RULE + number),
            )
            for number, rule in enumerate(columns.RULES)
        }
        return {rule: figures for rule, figures in found.items() if any(figures)}

    @property
    def gpu_seconds_per_token(self) -> float:
        """What computing a prompt token takes, on an average."""
        spent = self.saved_gpu_seconds + self.lost_gpu_seconds
        return spent / self.prompt_tokens if self.prompt_tokens else 0.0

    def tokens_of(self, *reasons: Reason) -> int:
        """Tokens missed for any of some reasons."""
        return sum(self._count(columns.MISSED + _NUMBERS[reason]) for reason in reasons)

    def _count(self, column: int) -> int:
        return int(self._figures[column])

    def _bins(self, first: int) -> Bins:
        counts = self._figures[first : first + BINS]
        return {number: int(count) for number, count in enumerate(counts) if count}
