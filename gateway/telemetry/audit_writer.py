"""Audit lines on their way to the disk: nobody who hands one in waits for it.

One thread writes what has come together in a twentieth of a second. While the disk is full or away, lines wait; those
there is no room for are counted, and an ``audit_gap`` line stands where they are missing.
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

_MOST_LINES = 20_000
"""That may wait: some 10 MB, and ten seconds of a busy gateway."""
_GATHER_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 1.0

_log = structlog.get_logger("gateway.audit")


class AuditWriter:
    """Writes records in the order they were handed in, one JSON line each, from a thread of its own.

    Args:
        target: Where to.
        on_error: Called, from any thread, when writing failed and when lines begin to be lost.
        most_lines: How many may wait.
        retry_seconds: How long after a failure it is tried again.
    """

    def __init__(
        self,
        target: AuditTarget,
        on_error: Callable[[], None],
        *,
        most_lines: int = _MOST_LINES,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._target = target
        self._on_error = on_error
        self._most_lines = most_lines
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._batch: deque[bytes] = deque()
        self._lost = 0
        self._lost_since: datetime | None = None
        self._failing = False
        self._came = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, event: str, fields: Mapping[str, object]) -> None:
        """Hand in one record; it is given the present time. From any thread; what is not JSON becomes text."""
        now = datetime.now(UTC)
        line = _line({"time": now, "event": event, **fields})
        with self._lock:
            full = len(self._waiting) + len(self._batch) >= self._most_lines
            first = full and not self._lost
            if full:
                self._lost += 1
                self._lost_since = self._lost_since or now
            else:
                self._tell_of_lost()
                self._waiting.append(line)
        if first:
            self._on_error()
        if not self._came.is_set():
            self._came.set()

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Write what waits, and end. A disk that does not answer is not waited for longer than a few seconds."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ending.set()
        self._came.set()
        await in_daemon_thread(lambda: thread.join(_STOP_SECONDS), name="audit-end")
        with self._lock:
            left = len(self._waiting) + len(self._batch) + self._lost
        if left:
            _log.error("audit_lost", lines=left, problem="they could not be written before the gateway ended")

    def _run(self) -> None:
        ending = False
        while not ending:
            if not self._failing:
                self._came.wait()
            # Asked before the last writing, so that it takes whatever was handed in before the end.
            ending = self._ending.wait(self._retry_seconds if self._failing else _GATHER_SECONDS)
            self._came.clear()
            self._write()
        self._target.close()

    def _write(self) -> None:
        try:
            while self._next_batch():
                self._target.write(self._batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again, and requests go on
            self._on_error()
            if not self._failing:
                _log.error(
                    "audit_failing",
                    problem=str(error) if isinstance(error, OSError) else repr(error),
                    instead="requests go on; audit lines wait, and are counted where there is no room",
                    fix="make room on the disk of audit.file, and see that its folder is there and can be written to",
                )
            self._failing = True
            self._target.close()
            return
        if self._failing:
            _log.info("audit_recovered")
        self._failing = False

    def _next_batch(self) -> bool:
        """Whether there is anything to write; it is in ``_batch`` then."""
        with self._lock:
            if not self._batch:
                if not self._waiting:
                    self._tell_of_lost()
                self._batch, self._waiting = self._waiting, self._batch
            return bool(self._batch)

    def _tell_of_lost(self) -> None:
        if self._lost:
            gap = {"time": datetime.now(UTC), "event": "audit_gap", "lines": self._lost, "since": self._lost_since}
            self._waiting.append(_line(gap))
            self._lost, self._lost_since = 0, None


_FORM = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


def _line(record: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(record, default=_plain, option=_FORM)
    except TypeError:  # keys that are no text, text that is not valid Unicode: the standard library has a way
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
