"""Structured logs: JSON lines for collectors, coloured text for people. Prompt text is never logged at any level.

``RequestLog`` logs one line per request. JSON lines of one iteration of the event loop are written together.
"""

import asyncio
import contextlib
import logging
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import orjson
import structlog

from gateway.core.settlement import Refusal, Settlement

_REFUSED = frozenset({"request_refused", "connection_refused"})
_REFUSED_A_MINUTE = 100
"""Lines of refusals without a tenant, so that clients without a key do not fill the disk."""


class RequestLog:
    """An ``Observer`` that logs ``request_settled`` and ``request_refused``: decisions and counts, no prompt text."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("gateway.request")

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        s = settlement
        # Taking ``info`` from ``_log`` itself would fail, and be looked up by ``__getattr__``, for every request.
        self._log.bind().info(
            "request_settled",
            request_id=s.request_id,
            tenant=s.caller.tenant.id,
            key_id=s.caller.key_id,
            model=s.model,
            space=s.space,
            endpoint=str(s.endpoint),
            api=s.dialect or None,
            status=s.status,
            code=s.code,
            ending=str(s.ending) if s.ending else "unrouted",
            replica=s.decision.target.replica if s.decision else None,
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
        where |= {"api": refusal.dialect} if refusal.dialect else {}
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
    threshold = logging.getLevelNamesMapping()[level.upper()]
    of_process = {} if worker is None else {"worker": worker}
    if console:
        processors: list[Any] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _exception_without_values,
            lambda _logger, _method, event: event | of_process,
            structlog.dev.ConsoleRenderer(),
        ]
        factory: Any = structlog.PrintLoggerFactory(sys.stderr)
        flush: Callable[[], None] = sys.stderr.flush
    else:
        processors = [_json_renderer(of_process)]
        lines = LogLines(sys.stderr.buffer)
        factory, flush = lambda *_: lines, lines.flush
    structlog.configure(
        processors=processors,
        wrapper_class=_logger_class(threshold),
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Forward(flush)]
    root.setLevel(max(threshold, logging.WARNING))


def _logger_class(threshold: int) -> Any:
    """The class of bound loggers: structlog's, with a direct ``info``, which logs a line for every request.

    Structlog's copies the fields three times, for bound values and positional arguments, of which there are none here.
    """
    base: Any = structlog.make_filtering_bound_logger(threshold)
    if threshold > logging.INFO:
        return base

    minute = refused = 0

    class EventLogger(base):  # type: ignore[misc]
        def info(self, event: str, **fields: Any) -> None:
            nonlocal minute, refused
            if event in _REFUSED and fields.get("tenant") is None:
                if minute != (minute := int(time.monotonic()) // 60):
                    fields["left_out"], refused = max(refused - _REFUSED_A_MINUTE, 0), 0
                refused += 1
                if refused > _REFUSED_A_MINUTE:
                    return
            fields["event"] = event
            line: Any = fields
            for process in self._processors:
                line = process(self._logger, "info", line)
            self._logger.info(line)

    return EventLogger


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


def _json_renderer(of_process: Mapping[str, object]) -> Any:
    """A processor that renders a whole line: the event's fields, its level and time, and the fields of the process."""
    option = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE

    def render(logger: Any, level: str, event: dict[str, Any]) -> bytes:
        event["level"] = level
        event["timestamp"] = datetime.now(UTC)
        if "exc_info" in event:
            _exception_without_values(logger, level, event)
        event.update(of_process)
        return orjson.dumps(event, default=str, option=option)

    return render


class LogLines:
    """Writes rendered lines to a file: those of one iteration of the event loop together, in their order.

    Warnings and errors, lines from other threads, and lines while no event loop runs are written at once, together with
    all lines before them. An unwritable file is ignored: requests are served without a log.

    Args:
        file: The file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._size = 0

    def info(self, line: bytes) -> None:
        """Write a line at the end of this iteration of the event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.warning(line)
            return
        with self._lock:
            if self._size + len(line) > select.PIPE_BUF:
                # Workers share a file. A longer write to a pipe could be mixed with theirs in the middle of a line.
                self._write()
            if not self._waiting:
                loop.call_soon(self.flush)
            self._waiting.append(line)
            self._size += len(line)

    debug = info

    def warning(self, line: bytes) -> None:
        """Write a line now."""
        with self._lock:
            self._write()
            self._waiting.append(line)
            self._write()

    error = critical = warning

    def flush(self) -> None:
        """Write the waiting lines."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        lines, self._waiting, self._size = self._waiting, [], 0
        with contextlib.suppress(OSError, ValueError):
            self._file.write(b"".join(lines))
            self._file.flush()


class _Forward(logging.Handler):
    """Forwards standard library records as structured events.

    Args:
        flush: Writes the waiting lines; ``logging`` calls it at the end of the process.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__()
        self._flush = flush

    def flush(self) -> None:
        """Write the waiting lines."""
        self._flush()

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
