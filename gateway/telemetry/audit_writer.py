"""Writes audit lines from a background thread, so that requests do not wait for the disk.

The thread writes the lines of 50 ms at a time. While the disk is full or unavailable, lines wait in a bounded queue;
further lines are counted, and an ``audit_gap`` line replaces them.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import orjson
import structlog

from gateway.tasks import in_daemon_thread
from gateway.telemetry.audit_file import AuditTarget

_MAX_LINES = 20_000
"""Capacity of the queue: about 10 MB, ten seconds of a busy gateway."""
_GATHER_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 1.0

_log = structlog.get_logger("gateway.audit")


class AuditWriter:
    """Writes records in order, one JSON line each, from a thread of its own.

    Args:
        target: The target.
        on_error: Called, from any thread, when writing failed and when lines begin to be lost.
        max_lines: Capacity of the queue.
        retry_seconds: Delay of a retry after a failure.
    """

    def __init__(
        self,
        target: AuditTarget,
        on_error: Callable[[], None],
        *,
        max_lines: int = _MAX_LINES,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._target = target
        self._on_error = on_error
        self._max_lines = max_lines
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._batch: deque[bytes] = deque()
        self._lost = 0
        self._lost_since: datetime | None = None
        self._failing = False
        self._has_lines = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, event: str, fields: Mapping[str, object]) -> None:
        """Enqueue a record with the current time. Thread-safe; values that are not JSON are converted to text."""
        now = datetime.now(UTC)
        line = _line({"time": now, "event": event, **fields})
        with self._lock:
            full = len(self._waiting) + len(self._batch) >= self._max_lines
            first = full and not self._lost
            if full:
                self._lost += 1
                self._lost_since = self._lost_since or now
            else:
                self._enqueue_gap()
                self._waiting.append(line)
        if first:
            self._on_error()
        if not self._has_lines.is_set():
            self._has_lines.set()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Write the waiting lines, and stop the thread; waits at most a few seconds for the disk."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ending.set()
        self._has_lines.set()
        await in_daemon_thread(lambda: thread.join(_STOP_SECONDS), name="audit-end")
        with self._lock:
            left = len(self._waiting) + len(self._batch) + self._lost
        if left:
            _log.error("audit_lost", lines=left, problem="they could not be written before the gateway ended")

    def _run(self) -> None:
        ending = False
        while not ending:
            if not self._failing:
                self._has_lines.wait()
            # Checked before the last write, so that it includes all lines enqueued before the end.
            ending = self._ending.wait(self._retry_seconds if self._failing else _GATHER_SECONDS)
            self._has_lines.clear()
            self._write()
        self._target.close()

    def _write(self) -> None:
        try:
            while self._next_batch():
                self._target.write(self._batch)
        except Exception as error:  # noqa: BLE001 - any error: retry, and do not disturb requests
            self._on_error()
            if not self._failing:
                _log.error(
                    "audit_failing",
                    problem=str(error) if isinstance(error, OSError) else repr(error),
                    instead="requests are served; audit lines wait in a queue, and are counted when it is full",
                    fix="free space on the disk of audit.file, and make sure that its folder exists and is writable",
                )
            self._failing = True
            self._target.close()
            return
        if self._failing:
            _log.info("audit_recovered")
        self._failing = False

    def _next_batch(self) -> bool:
        """Move waiting lines to ``_batch``; returns whether there are any."""
        with self._lock:
            if not self._batch:
                if not self._waiting:
                    self._enqueue_gap()
                self._batch, self._waiting = self._waiting, self._batch
            return bool(self._batch)

    def _enqueue_gap(self) -> None:
        if self._lost:
            gap = {"time": datetime.now(UTC), "event": "audit_gap", "lines": self._lost, "since": self._lost_since}
            self._waiting.append(_line(gap))
            self._lost, self._lost_since = 0, None


_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


def _line(record: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(record, default=_plain, option=_OPTIONS)
    except TypeError:  # non-string keys, lone surrogates: only the standard library can encode them
        return json.dumps(record, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return {str(key): item for key, item in value.items()}
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case set() | frozenset():
            return sorted(map(str, value))
        case _:
            return str(value)
