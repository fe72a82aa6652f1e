"""What a feed reports: its state for the admin API, and log messages, each at most once a minute."""

import time
from dataclasses import dataclass

import structlog

from gateway.core.ids import Target
from gateway.core.kv_events import FeedState

_REMIND_SECONDS = 60.0

_log = structlog.get_logger("gateway.kv_events")


@dataclass(frozen=True, slots=True)
class FeedReport:
    """State of one target's events, for the admin API.

    Attributes:
        rank: Data-parallel rank.
        state: How far the indexed events can be trusted.
        address: ZeroMQ address of the live batches.
        replay_address: ZeroMQ address for replays; None without one.
        next_sequence: Sequence number of the next batch; None while it is unknown.
        batches: Batches applied.
        gaps: How often batches were missing.
        unmatched_blocks: Blocks in events that matched nothing although all blocks counted as known, or could not be
            blocks of this target.
        last_batch_age_seconds: Time since the last batch; None before the first.
        problem: Why no events arrive, if it is known.
    """

    rank: int
    state: FeedState
    address: str
    replay_address: str | None
    next_sequence: int | None
    batches: int
    gaps: int
    unmatched_blocks: int
    last_batch_age_seconds: float | None
    problem: str | None


class LogLimiter:
    """The log messages of one target's feed.

    Args:
        target: The target.
        standing: A problem known from the engine's configuration; None for none.
        fix: What to change when no events arrive, as half a sentence.

    Attributes:
        problem: Why no events arrive; None if they do.
        fix: As above.
    """

    def __init__(self, target: Target, standing: str | None, fix: str) -> None:
        self.problem = standing
        self._standing = standing
        self._target = target
        self.fix = fix
        self._said_at: dict[str, float] = {}

    def warn(self, event: str, **facts: object) -> None:
        """Log a warning that may occur with every batch."""
        if self._is_due(event):
            _log.warning(event, replica=self._target.replica, rank=self._target.rank, **facts)

    def raise_(self, problem: str, *, instead: str) -> None:
        """Log that events do not arrive."""
        self.problem = self._standing or problem
        if self._is_due("kv_events_silent"):
            _log.error(
                "kv_events_silent",
                replica=self._target.replica,
                rank=self._target.rank,
                problem=self.problem,
                instead=instead,
                fix=self.fix,
            )

    def end(self) -> None:
        """Events arrive again."""
        self.problem = self._standing
        self._said_at.pop("kv_events_silent", None)

    def _is_due(self, event: str) -> bool:
        now = time.monotonic()
        if now - self._said_at.get(event, -_REMIND_SECONDS) < _REMIND_SECONDS:
            return False
        self._said_at[event] = now
        return True
