"""What a feed says to the operator: loudly, and not with every batch."""

import time

import structlog

from gateway.core.ids import Target

_REMIND_SECONDS = 60.0

_log = structlog.get_logger("gateway.kv_events")


class LogLimiter:
    """One target's.

    Args:
        target: Whose.
        standing: A problem known beforehand; None for none.
        fix: What to change when nothing comes, as half a sentence.

    Attributes:
        problem: What keeps the events from coming, if anything does.
        fix: As above.
    """

    def __init__(self, target: Target, standing: str | None, fix: str) -> None:
        self.problem = standing
        self._standing = standing
        self._target = target
        self.fix = fix
        self._said_at: dict[str, float] = {}

    def warn(self, event: str, **facts: object) -> None:
        """Something that may happen with every batch."""
        if self._is_due(event):
            _log.warning(event, replica=self._target.replica, rank=self._target.rank, **facts)

    def raise_(self, problem: str, *, instead: str) -> None:
        """Events do not come as they should."""
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
        """They come again."""
        self.problem = self._standing
        self._said_at.pop("kv_events_silent", None)

    def _is_due(self, event: str) -> bool:
        now = time.monotonic()
        if now - self._said_at.get(event, -_REMIND_SECONDS) < _REMIND_SECONDS:
            return False
        self._said_at[event] = now
        return True
