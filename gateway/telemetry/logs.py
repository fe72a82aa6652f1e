"""Structured logs: JSON lines for collectors, coloured text for people. Prompt text is never logged at any level.

``RequestLog`` writes one line per request.
"""

import logging
import sys
import traceback
from typing import Any

import orjson
import structlog

from gateway.core.settlement import Refusal, Settlement


class RequestLog:
    """An ``Observer`` that logs ``request_settled`` and ``request_refused``: decisions and counts, no prompt text."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("gateway.request")

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        s = settlement
        self._log.info(
            "request_settled",
            request_id=s.request_id,
            tenant=s.caller.tenant.id,
            key_id=s.caller.key_id,
            model=s.model,
            space=s.space,
            endpoint=str(s.endpoint),
            status=s.status,
            code=s.code,
            ending=str(s.ending) if s.ending else "unrouted",
            replica=s.decision.replica if s.decision else None,
            decision=str(s.decision.kind) if s.decision else None,
            tokens_from=str(s.token_source),
            prompt_tokens=s.prompt_tokens,
            predicted_tokens=s.predicted_tokens,
            cached_tokens=s.cached_tokens,
            completion_tokens=s.completion_tokens,
            parity=s.parity,
            ttft_ms=None if s.ttft_seconds is None else round(s.ttft_seconds * 1e3, 2),
            ms=round(s.seconds * 1e3, 2),
            warming=s.warming,
            canonical=list(s.canonical),
            resumed=s.resumed,
        )

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""
        caller = refusal.caller
        where = {"method": refusal.method, "path": refusal.path} if refusal.path else {}
        self._log.info(
            "request_refused",
            request_id=refusal.request_id,
            tenant=caller.tenant.id if caller else None,
            key_id=caller.key_id if caller else None,
            endpoint=str(refusal.endpoint),
            status=refusal.status,
            code=refusal.code,
            **where,
        )


def configure_logs(format: str, level: str, worker: int | None = None) -> None:  # noqa: A002 - the setting's name
    """Set up structlog, and forward the standard library's loggers (uvicorn, transformers) to it.

    Args:
        format: ``json``, ``console``, or ``auto``: console on a terminal.
        level: Minimum level.
        worker: Number of this worker process, added to every line; None with a single process.
    """
    console = format == "console" or (format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exception_without_values,
    ]
    if worker is not None:
        shared.append(lambda _logger, _method, event: {**event, "worker": worker})
    threshold = logging.getLevelNamesMapping()[level.upper()]
    if console:
        render: list[Any] = [structlog.dev.ConsoleRenderer()]
        factory: Any = structlog.PrintLoggerFactory(sys.stderr)
    else:
        render = [structlog.processors.JSONRenderer(serializer=_dumps)]
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(threshold, logging.WARNING))


def _exception_without_values(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Replace an exception by its type and stack frames.

    Leaves out its message and local variables, because a library's message may quote a prompt.
    """
    given = event.pop("exc_info", None)
    if given:
        error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
        if error is not None:
            frames = "".join(traceback.format_tb(error.__traceback__))
            event["exception"] = f"{frames}{type(error).__name__} (message left out)"
    return event


def _dumps(value: Any, **_options: Any) -> bytes:
    return orjson.dumps(value, default=str)


class _Forward(logging.Handler):
    """Forwards standard library records as structured events."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
