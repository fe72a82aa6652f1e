"""What requests add up to: the figures of one bucket of time, for one model, tenant and source.

In every cell, and so in every sum of cells, prompt tokens are hits plus the tokens of all reasons.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gateway.settle.journal.histogram import Bins, bin_of
from gateway.values.explain import Explanation, Finished
from gateway.values.reasons import REASONS, Reason, Rung

TURNS = 11
"""Turns from this one on are counted together."""

_REASONS = tuple(Reason)
_NUMBERS = {reason: number for number, reason in enumerate(_REASONS)}
_RUNGS = tuple(Rung)


class Cell(msgspec.Struct, array_like=True):
    """Sums over requests.

    Attributes:
        requests: How many.
        skipped: Of those, how many were explained without their text.
        prompt_tokens: Of all.
        confirmed: Hits that engines reported.
        predicted: Hits of requests for which the engine reported nothing.
        saved_seconds: Prefill that hits made unnecessary.
        saved_gpu_seconds: The same times the GPUs of a replica.
        lost_seconds: Prefill of what was missed.
        rungs: Lengths of the ladder's prefixes, in tokens.
        tokens: Missed tokens by the reason's number.
        gpu_seconds: What they took, likewise.
        cold: Times to first token of requests without hits.
        warm: Those of requests with hits.
        turns: Prompt tokens and hits, by turn.
    """

    requests: int = 0
    skipped: int = 0
    prompt_tokens: int = 0
    confirmed: int = 0
    predicted: int = 0
    saved_seconds: float = 0.0
    saved_gpu_seconds: float = 0.0
    lost_seconds: float = 0.0
    rungs: list[int] = msgspec.field(default_factory=lambda: [0] * len(_RUNGS))
    tokens: dict[int, int] = msgspec.field(default_factory=dict)
    gpu_seconds: dict[int, float] = msgspec.field(default_factory=dict)
    cold: Bins = msgspec.field(default_factory=dict)
    warm: Bins = msgspec.field(default_factory=dict)
    turns: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)

    @property
    def hits(self) -> int:
        """Prompt tokens that were not computed again."""
        return self.confirmed + self.predicted

    @property
    def missed(self) -> Mapping[Reason, tuple[int, float]]:
        """Tokens and GPU seconds by reason, in the order of ``Reason``."""
        return {
            _REASONS[number]: (self.tokens[number], self.gpu_seconds.get(number, 0.0)) for number in sorted(self.tokens)
        }

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU seconds of all reasons."""
        return sum(self.gpu_seconds.values())

    def tokens_of(self, *reasons: Reason) -> int:
        """Tokens missed for any of some reasons."""
        return sum(self.tokens.get(_NUMBERS[reason], 0) for reason in reasons)

    def add(self, other: "Cell") -> None:
        """Count another cell's requests, too."""
        self.requests += other.requests
        self.skipped += other.skipped
        self.prompt_tokens += other.prompt_tokens
        self.confirmed += other.confirmed
        self.predicted += other.predicted
        self.saved_seconds += other.saved_seconds
        self.saved_gpu_seconds += other.saved_gpu_seconds
        self.lost_seconds += other.lost_seconds
        self.rungs = [mine + its for mine, its in zip(self.rungs, other.rungs, strict=True)]
        _count(self.tokens, other.tokens)
        for number, seconds in other.gpu_seconds.items():
            self.gpu_seconds[number] = self.gpu_seconds.get(number, 0.0) + seconds
        _count(self.cold, other.cold)
        _count(self.warm, other.warm)
        for turn, (tokens, hits) in other.turns.items():
            had = self.turns.get(turn, (0, 0))
            self.turns[turn] = (had[0] + tokens, had[1] + hits)


def cell_of(finished: Finished, explanation: Explanation, gpus: float) -> Cell:
    """One request's figures."""
    per_token = finished.prefill_seconds_per_token
    cell = _counted(
        explanation.prompt_tokens,
        explanation.hits,
        [(each.reason, each.tokens) for each in explanation.missed],
        explanation.rungs,
        per_token,
        gpus=gpus,
        confirmed=explanation.hits_confirmed,
    )
    cell.requests = 1
    cell.skipped = int(explanation.was_skipped)
    if finished.ttft_seconds is not None:
        (cell.warm if explanation.hits else cell.cold)[bin_of(finished.ttft_seconds)] = 1
    if explanation.turn:
        cell.turns[min(explanation.turn, TURNS)] = (explanation.prompt_tokens, explanation.hits)
    return cell


def cell_left_out(
    requests: int, prompt_tokens: int, hits: int, per_token: float, *, gpus: float, confirmed: bool
) -> Cell:
    """The figures of requests of which only sums are known: what was missed is not classified."""
    cut = _RUNGS.index(REASONS[Reason.UNCLASSIFIED].rung)
    rungs = [hits] * cut + [prompt_tokens] * (len(_RUNGS) - cut)
    missed = [(Reason.UNCLASSIFIED, prompt_tokens - hits)]
    cell = _counted(prompt_tokens, hits, missed, rungs, per_token, gpus=gpus, confirmed=confirmed)
    cell.requests = cell.skipped = requests
    return cell


def sum_of(cells: Iterable[Cell]) -> Cell:
    """All of some cells' requests."""
    total = Cell()
    for cell in cells:
        total.add(cell)
    return total


def _counted(
    prompt_tokens: int,
    hits: int,
    missed: Sequence[tuple[Reason, int]],
    rungs: Sequence[int],
    per_token: float,
    *,
    gpus: float,
    confirmed: bool,
) -> Cell:
    cell = Cell(prompt_tokens=prompt_tokens, rungs=list(rungs))
    if confirmed:
        cell.confirmed = hits
    else:
        cell.predicted = hits
    cell.saved_seconds = hits * per_token
    cell.saved_gpu_seconds = cell.saved_seconds * gpus
    cell.lost_seconds = (prompt_tokens - hits) * per_token
    for reason, tokens in missed:
        if tokens:
            cell.tokens[_NUMBERS[reason]] = tokens
            cell.gpu_seconds[_NUMBERS[reason]] = tokens * per_token * gpus
    return cell


def _count(counts: dict[int, int], more: Mapping[int, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count
