"""What happened to replicas, and to the lives of prefix spaces."""

from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause

_ENDS_KEPT = 20_000
_REPLICAS_KEPT = 10_000
"""Where pods get new names, every roll-out brings new replicas, and those before them never come back."""

_OF_TIME = frozenset({ResetCause.IDLE_TTL, ResetCause.MAX_AGE, ResetCause.CROWDED_OUT})


class LossCauses:
    """Takes what happened, and says what became of a block that was computed before.

    Events come in the order in which they happened, and before the requests that came after them.
    """

    def __init__(self) -> None:
        self._restarted: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._ends: dict[str, ResetCause] = {}

    def take(self, event: CacheEvent) -> None:
        """Something happened."""
        match event.what:
            case CacheHistory.RESTARTED:
                _keep(self._restarted, event)
            case CacheHistory.LEFT:
                _keep(self._left, event)
            case CacheHistory.RETURNED:
                self._left.pop(event.name, None)
            case CacheHistory.LIFE_ENDED:
                if len(self._ends) >= _ENDS_KEPT:
                    del self._ends[next(iter(self._ends))]
                self._ends[event.name] = ResetCause(event.cause)

    def of_replica(self, replica: str, at: float) -> Reason:
        """Why a block that a replica computed at a time is held by nobody any more."""
        if replica in self._left:
            return Reason.REPLICA_LEFT
        return Reason.REPLICA_RESTARTED if self._restarted.get(replica, 0.0) > at else Reason.EVICTED

    def of_life(self, life: str) -> Reason:
        """Why what was computed in a life that is over cannot be reached any more."""
        cause = self._ends.get(life)
        if cause is None or cause in _OF_TIME:
            # One that is not known was forgotten for its age.
            return Reason.EXPIRED
        if cause is ResetCause.TEMPLATE_CHANGED:
            return Reason.TEMPLATE_CHANGED
        return Reason.MODEL_CHANGED if cause is ResetCause.MODEL_UPDATE else Reason.RESET


def _keep(times: dict[str, float], event: CacheEvent) -> None:
    """Note when it happened to a replica; the one to which it happened longest ago is forgotten."""
    times.pop(event.name, None)
    if len(times) >= _REPLICAS_KEPT:
        del times[next(iter(times))]
    times[event.name] = event.at
