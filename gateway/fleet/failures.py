"""Records the outcome of an attempt at the replica's breaker."""

from collections.abc import Mapping
from http import HTTPStatus

import structlog

from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.fleet.replica import Replica

_BUSY_SECONDS = 1.0
"""How long a replica that answered 429 gets no requests, if there are others."""

_STAGE_OF_STATUS: Mapping[int, FailureStage] = {
    HTTPStatus.TOO_MANY_REQUESTS: FailureStage.BUSY,
    HTTPStatus.BAD_GATEWAY: FailureStage.STATUS,
    HTTPStatus.SERVICE_UNAVAILABLE: FailureStage.STATUS,
    HTTPStatus.GATEWAY_TIMEOUT: FailureStage.STATUS,
}

_log = structlog.get_logger("gateway.proxy")


def failure_stage(ending: Ending, status: int | None, *, started: bool) -> FailureStage | None:
    """The stage at which a replica failed a request; None if it did not.

    Args:
        ending: How the attempt ended.
        status: Status of the answer; None without one.
        started: Whether the client had received any part of a broken answer.
    """
    if ending is Ending.COMPLETE:
        return None if status is None else _STAGE_OF_STATUS.get(status)
    if ending is Ending.NOT_CONNECTED:
        return FailureStage.CONNECT
    if ending in (Ending.BROKEN, Ending.TIMED_OUT):
        return FailureStage.STREAM if started else FailureStage.FIRST_BYTE
    return None


def record_answer(replica: Replica, sent_at: float, now: float) -> None:
    """Close the breaker of a replica that has answered a request completely.

    Args:
        replica: The replica of the attempt.
        sent_at: When it was sent, in monotonic seconds.
        now: Monotonic seconds.
    """
    replica.answered_at = now
    if replica.breaker.answered(sent_at):
        _log.info("replica_recovered", replica=replica.id)


def record_outcome(replica: Replica, outcome: Outcome, sent_at: float, now: float) -> None:
    """Open the breaker of a replica that failed a request, close it after an answer.

    Args:
        replica: The replica of the attempt.
        outcome: Its outcome.
        sent_at: When it was sent, in monotonic seconds.
        now: Monotonic seconds.
    """
    stage = failure_stage(outcome.ending, outcome.status, started=outcome.started)
    breaker = replica.breaker
    news = False
    if outcome.ending is Ending.COMPLETE:
        replica.answered_at = now
    if stage is FailureStage.BUSY:
        breaker.busy(now, _BUSY_SECONDS)
    elif stage is not None:
        news = breaker.failed(now, sent_at)
    elif outcome.ending is Ending.COMPLETE:
        if outcome.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            news = breaker.odd(now, sent_at)
        else:
            record_answer(replica, sent_at, now)
    if news:
        log_ejection(replica, now)


def log_ejection(replica: Replica, now: float) -> None:
    """Log that a replica gets no requests because of failures, as of ``now`` (monotonic seconds)."""
    breaker = replica.breaker
    _log.warning(
        "replica_ejected" if breaker.ejected else "replica_suspect",
        replica=replica.id,
        failures=breaker.failures,
        seconds=round(breaker.until - now, 1),
    )
