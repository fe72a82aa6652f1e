"""What an attempt's end says about the replica."""

from http import HTTPStatus

import structlog

from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.fleet.replica import Replica

_BUSY_SECONDS = 1.0
"""How long a replica that has too many requests is passed over, where there are others."""

_UNAVAILABLE = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)

_log = structlog.get_logger("gateway.proxy")


def failure_stage(ending: Ending, status: int | None, *, started: bool) -> FailureStage | None:
    """When a replica failed a request; None if it did not.

    Args:
        ending: How the attempt ended.
        status: What the replica answered; None if nothing.
        started: Whether the client had got anything of an answer that broke off.
    """
    if ending is Ending.NOT_CONNECTED:
        return FailureStage.CONNECT
    if ending in (Ending.BROKEN, Ending.TIMED_OUT):
        return FailureStage.STREAM if started else FailureStage.FIRST_BYTE
    if ending is Ending.COMPLETE and status == HTTPStatus.TOO_MANY_REQUESTS:
        return FailureStage.BUSY
    return FailureStage.STATUS if ending is Ending.COMPLETE and status in _UNAVAILABLE else None


def take_note(replica: Replica, outcome: Outcome, sent_at: float, now: float) -> None:
    """Leave a replica out that fails requests, and give it its share again once it answers them.

    Args:
        replica: Where the request was sent.
        outcome: What came of it.
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
        elif breaker.answered(sent_at):
            _log.info("replica_recovered", replica=replica.id)
    if news:
        tell_left_out(replica, now)


def tell_left_out(replica: Replica, now: float) -> None:
    """A replica is left out for failing requests, as of ``now`` (monotonic seconds)."""
    breaker = replica.breaker
    _log.warning(
        "replica_ejected" if breaker.ejected else "replica_suspect",
        replica=replica.id,
        failures=breaker.failures,
        seconds=round(breaker.until - now, 1),
    )
