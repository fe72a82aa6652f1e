"""Whose fault an answer's status is, and the outcome of an attempt at the replica's breaker.

A status in none of the tables is about the client's request, such as 400, or 500, which only counts if it repeats.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus

import orjson
import structlog

from gateway.core.errors import NotFound
from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.fleet.replica import Replica

_BUSY_SECONDS = 1.0
"""How long a replica that answered 429 gets no requests, if there are others."""

_STAGE_OF_STATUS: Mapping[int, FailureStage] = {
    **dict.fromkeys((408, *range(502, 600)), FailureStage.STATUS),  # 408 and 505 on: of a proxy
    **dict.fromkeys((429, 529), FailureStage.BUSY),
}
"""The replica's, or an overload: its answer reaches the client if no other replica is left."""

REFUSALS: Mapping[int, tuple[str, str]] = {
    **dict.fromkeys(range(300, 400), ("it answers with a redirect", "url of the replica")),
    401: ("it refuses the gateway's key", "api_key of the replica"),
    403: ("it refuses the gateway's key, or a firewall the request", "api_key of the replica"),
    **dict.fromkeys((404, 405, 421), ("it does not serve the path", "url of the replica")),
    407: ("a proxy in front of it wants a login", "url of the replica"),
    426: ("it wants another protocol", "url of the replica"),
}
"""The gateway's: what the replica refuses, and what to correct. The client gets a 502 if no other replica is left."""

_NO_MODEL = "it has not loaded the model", "id of the model, or the engine's own model"
_ABOUT_MODEL = re.compile(r"\W*(?:\w+\s+){0,2}model\W{1,3}(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_UNKNOWN_PATH = "not found"  # of a web framework, which newer engines put into their own shape
RETRIED = frozenset(_STAGE_OF_STATUS) | frozenset(REFUSALS)
"""Statuses after which another replica may be tried."""

_MAX_SHOWN = 200

_log = structlog.get_logger("gateway.proxy")


def not_served(path: str, model: str) -> NotFound:
    """The error for an endpoint that no replica of a model serves."""
    return NotFound(f"No replica of model {model!r} serves {path}.", code="endpoint_not_served")


def refusal(status: int, body: bytes, model: str, location: str, *, client_key: bool) -> str:
    """How an answer refuses the gateway, for the log and the operator; empty if it is about the client's request.

    Args:
        status: Its status, one of ``REFUSALS``.
        body: Its body.
        model: The model, as the request names it.
        location: Its ``location`` header; empty without one.
        client_key: Whether the replica got the client's own key.
    """
    what, where = REFUSALS[status]
    if status in (401, 403) and client_key:
        return ""
    if status == HTTPStatus.NOT_FOUND and (found := _engine_message(body)):
        message, param = found
        about = _ABOUT_MODEL.match(message)
        if param == "model" or (about and re.match(re.escape(model) + r"(?![\w/.:@-]*\w)", about["rest"])):
            what, where = _NO_MODEL
        elif message.strip(". ").lower() != _UNKNOWN_PATH:
            return ""
    if location:
        where = f"to {''.join(filter(str.isprintable, location[:_MAX_SHOWN])).partition('?')[0]}; {where}"
    return f"{status}: {what} ({where})"


def _engine_message(body: bytes) -> tuple[str, object] | None:
    """Message and ``param`` of an error in the engines' shape; None if it has another one, as of a web server."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    error = found.get("error", found if found.get("object") == "error" else None) if isinstance(found, dict) else None
    if not isinstance(error, dict) or not isinstance(message := error.get("message"), str):
        return None
    return message[:_MAX_SHOWN], error.get("param")


def failure_stage(ending: Ending, status: int | None, *, started: bool) -> FailureStage | None:
    """The stage at which a replica failed a request; None if it did not.

    Args:
        ending: How the attempt ended.
        status: Status of the answer; None without one.
        started: Whether the client had received content of a broken answer.
    """
    if ending is Ending.COMPLETE:
        return None if status is None else _STAGE_OF_STATUS.get(status)
    if ending is Ending.NOT_CONNECTED:
        return FailureStage.CONNECT
    if ending is Ending.REFUSED:
        return FailureStage.REFUSED
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
    stage = failure_stage(outcome.ending, outcome.status, started=outcome.has_content)
    breaker = replica.breaker
    news = False
    if outcome.ending is Ending.COMPLETE:
        replica.answered_at = now
    if stage is FailureStage.BUSY:
        breaker.busy(now, _BUSY_SECONDS)
    elif stage is not None:
        said = outcome.problem if stage is FailureStage.REFUSED else ""
        # As 500, a 403 may be caused by the request: by what a firewall finds in it.
        news = (breaker.odd if outcome.status == HTTPStatus.FORBIDDEN else breaker.failed)(now, sent_at, said)
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
        refusal=breaker.refusal,
    )
