"""Structured logs: JSON lines for collectors, coloured text for people. Prompt text is never logged, at no level."""

import logging
import sys
import traceback
from typing import Any

import orjson
import structlog


def configure_logs(format: str, level: str, worker: int | None = None) -> None:  # noqa: A002 - the setting's name
    """Set up structlog, and send the standard library's loggers (uvicorn, transformers) the same way.

    Args:
        format: ``json``, ``console``, or ``auto``: console on a terminal.
        level: Least severe level that is written.
        worker: Which of several processes this is, to stand in every line; None where there is but one.
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
    """An exception as its type and where it came from.

    Neither its message nor the variables around it: a library's message may quote what it choked on, a prompt.
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
    """A standard library record as one structured event."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
