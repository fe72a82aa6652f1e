"""The audit log: requests, refusals and administrative actions by caller. JSON lines, separate from the log.

Every line has ``time`` (UTC) and ``event``:

* ``request``: an ended request. ``tenant``, ``key_id``, ``scope``, ``peer``, ``request_id``, ``model``, ``endpoint``,
  ``space``, ``replica``, ``decision``, ``status``, ``code`` of the gateway's own error, ``prompt_tokens``,
  ``cached_tokens``, ``warming``.
* ``access_refused``: a request was refused, at any stage: an invalid key, a limit, personal data, an invalid body, an
  unknown path or method. ``peer``, ``status``, ``code``, ``tenant``, ``key_id``,
  ``request_id``, ``endpoint`` (``other`` for an unknown path or method, with ``method`` and ``path``), and
  ``model`` and ``space`` if known. Without a caller also ``count``, ``first`` and ``last``: see below.
* ``space_end``: an epoch of a prefix space ended. ``cause``, ``by``, ``space``, and the space's ``parts``.
* ``personal_data``: a new finding of personal data. ``tenant``, ``key_id``, ``request_id``, ``space``,
  ``kind``, ``path``, ``start``, ``length``, ``shared``.
* ``audit_gap``: ``lines`` lines are missing here, the first of them from ``since``.
* events of ``AuditLog.record``: ``by``, ``tenant``, and the event's details.

It never contains prompt text or keys.

What clients cause never pushes out what operators did: lines of ``AuditLog.record`` have a share of the queue, and are
also in ``FILE.operators``, which rotates apart. Refusals without a caller are merged: one line a minute for each
address (IPv6: each /64) and code, with the fields of the first refusal. A crash loses these.

A background thread writes the lines of 50 ms at a time, so that requests do not wait for the disk. While the disk is
full or unavailable, lines wait in a bounded queue; further lines are counted, and an ``audit_gap`` line replaces them.
"""

import asyncio
import dataclasses
import json
import os
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.config.telemetry_settings import AuditSettings
from gateway.core.canonical import PersonalFinding
from gateway.core.errors import ConfigInvalid
from gateway.core.ports import AuditEvent
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import SpaceEnd
from gateway.core.tenant import Tenant
from gateway.tasks import in_daemon_thread
from gateway.telemetry.audit_file import RotatedFile, StandardOutput, open_for_append

_MAX_LINES = 20_000
"""Capacity of the queue: about 10 MB, ten seconds of a busy gateway."""
_MERGE_SECONDS = 60.0
_MAX_MERGED = 250
"""Merged lines in that time: they fill the default files in ten days. Further addresses share a line for each code."""
_OTHER = "other"
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
        target: RotatedFile | StandardOutput,
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
        self._merged: dict[tuple[object, ...], dict[str, Any]] = {}
        self._merged_until = time.monotonic() + _MERGE_SECONDS
        self._failing = False
        self._has_lines = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, event: str, fields: Mapping[str, object], *, reserved: bool = False) -> None:
        """Enqueue a record with the current time. Thread-safe; values that are not JSON are converted to text."""
        # Reserved records may take the capacity a second time, which other records cannot fill.
        now = datetime.now(UTC)
        line = _line({"time": now, "event": event, **fields})
        with self._lock:
            full = len(self._waiting) + len(self._batch) >= self._max_lines * (1 + reserved)
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

    def merge(self, event: str, fields: Mapping[str, object]) -> None:
        """Count a refusal into the line of its ``peer``, ``status`` and ``code``, a closed set. Thread-safe."""
        now = datetime.now(UTC)
        same = {"event": event, "status": fields["status"], "code": fields["code"]}
        key = (_site(str(fields["peer"])), *same.values())
        with self._lock:
            if key not in self._merged and len(self._merged) >= _MAX_MERGED:
                key, fields = (_OTHER, *same.values()), {"peer": _OTHER}
            line = self._merged.setdefault(key, {**fields, **same, "count": 0, "first": now})
            line.update(count=line["count"] + 1, last=now)

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
            left = len(self._waiting) + len(self._batch) + self._lost + len(self._merged)
        if left:
            _log.error("audit_lost", lines=left, problem="they could not be written before the gateway ended")

    def _run(self) -> None:
        ending = False
        while not ending:
            if not self._failing:
                self._has_lines.wait(max(self._merged_until - time.monotonic(), 0.0))
            # Checked before the last write, so that it includes all lines enqueued before the end.
            ending = self._ending.wait(self._retry_seconds if self._failing else _GATHER_SECONDS)
            self._has_lines.clear()
            if ending or time.monotonic() >= self._merged_until:
                self._merged_until = time.monotonic() + _MERGE_SECONDS
                with self._lock:
                    merged, self._merged = self._merged, {}
                for line in merged.values():
                    self.put(line["event"], line)
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


def _site(peer: str) -> str | bytes:
    """The address; of an IPv6 address its first 64 bits, as one client chooses among the others."""
    peer = peer.removeprefix("::ffff:")  # an IPv4 address at a socket for both
    return socket.inet_pton(socket.AF_INET6, peer.partition("%")[0])[:8] if ":" in peer else peer


_STANDARD_OUTPUT = "stdout"
_FIRST_SERVER_ERROR = 500


class AuditLog:
    """An ``Observer``, ``SpaceObserver`` and ``PersonalDataObserver`` that writes lines. Neither raises nor waits.

    Requests neither wait for the disk nor fail because of it: see ``AuditWriter``. Without a file nothing is written.

    Args:
        settings: File and content.
        on_error: Called when writing failed, from any thread.
    """

    def __init__(self, settings: AuditSettings, on_error: Callable[[], None]) -> None:
        self._requests = settings.requests
        self._writers = [AuditWriter(target, on_error) for target in _targets(settings)]

    def start(self) -> None:
        """Start writing, including the records so far."""
        for writer in self._writers:
            writer.start()

    async def stop(self) -> None:
        """Write the waiting records. Do not record any more afterwards."""
        await asyncio.gather(*(writer.stop() for writer in self._writers))

    def record(self, event: AuditEvent) -> None:
        """Write one event of the gateway or of an operator; what a client can cause does not belong here."""
        fields = {**event.details, "by": event.by, "tenant": event.tenant, "time": datetime.now(UTC)}
        for writer in self._writers:
            writer.put(event.event, fields, reserved=True)

    def record_refused(self, event: AuditEvent) -> None:
        """Write a refusal of the admin port; without an operator it is merged by ``peer``, ``status`` and ``code``."""
        self._put(event.event, {**event.details, "by": event.by, "tenant": event.tenant}, merged=not event.by)

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``. A settlement with an error of the gateway below 500 is recorded as ``access_refused``."""
        if not self._writers:
            return
        s = settlement
        if s.code is not None and s.status < _FIRST_SERVER_ERROR:
            refusal = Refusal(s.request_id, s.endpoint, s.status, s.code, s.peer, s.caller)
            self._refused(refusal, {"model": s.model, "space": s.space})
            return
        if not self._requests:
            return
        self._put(
            "request",
            {
                "tenant": s.caller.tenant.id,
                "key_id": s.caller.key_id,
                "scope": s.caller.scope,
                "peer": s.peer,
                "request_id": s.request_id,
                "model": s.model,
                "endpoint": s.endpoint,
                "space": s.space,
                "replica": s.decision.replica if s.decision else None,
                "decision": s.decision.kind if s.decision else None,
                "status": s.status,
                "code": s.code,
                "prompt_tokens": s.prompt_tokens,
                "cached_tokens": s.cached_tokens,
                "warming": s.warming,
            },
        )

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``. Server errors are not refusals."""
        if refusal.status < _FIRST_SERVER_ERROR:
            self._refused(refusal, {"method": refusal.method, "path": refusal.path} if refusal.path else {})

    def _refused(self, refusal: Refusal, more: dict[str, object]) -> None:
        caller = refusal.caller
        self._put(
            "access_refused",
            {
                "peer": refusal.peer,
                "status": refusal.status,
                "code": refusal.code,
                "tenant": caller.tenant.id if caller else "",
                "key_id": caller.key_id if caller else "",
                "request_id": refusal.request_id,
                "endpoint": refusal.endpoint,
            }
            | more,
            merged=caller is None,
        )

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        parts = dataclasses.asdict(end.space)
        self._put("space_end", {"cause": end.cause, "by": end.by, "space": end.id, "parts": parts})

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """See ``PersonalDataObserver``. Only a metric counts them."""

    def on_detector_failed(self, tenant: Tenant, *, refused: bool) -> None:
        """See ``PersonalDataObserver``. Only a metric counts them."""

    def on_personal_data(
        self, request: ChatRequest, space: str, finding: PersonalFinding, *, shared: bool, new: bool
    ) -> None:
        """See ``PersonalDataObserver``."""
        if not new:
            return
        who = {
            "tenant": request.caller.tenant.id,
            "key_id": request.caller.key_id,
            "request_id": request.request_id,
            "space": space,
        }
        self._put("personal_data", who | dataclasses.asdict(finding) | {"shared": shared})

    def _put(self, event: str, fields: dict[str, object], *, merged: bool = False) -> None:
        for writer in self._writers[:1]:
            (writer.merge if merged else writer.put)(event, fields)


def check_writable(settings: AuditSettings) -> None:
    """Check that the audit log can be written, and its files renamed. Creates the files, but no folder.

    Raises:
        ConfigInvalid: it cannot.
    """
    for path in _files(settings):
        try:
            descriptor = open_for_append(path)
            try:
                is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a path"
            fix = "create its folder, and let the gateway's user write there"
            raise ConfigInvalid([f"audit.file: {path} cannot be written: {why} ({fix})"]) from error
        if is_file and not os.access(path.parent, os.W_OK | os.X_OK):
            fix = "let the gateway's user write there"
            raise ConfigInvalid([f"audit.file: {path.parent} is not writable, so it cannot be rotated ({fix})"])


def _targets(settings: AuditSettings) -> list[RotatedFile] | list[StandardOutput]:
    if settings.file == _STANDARD_OUTPUT:
        return [StandardOutput()]
    return [RotatedFile(path, settings.max_bytes, settings.keep) for path in _files(settings)]


def _files(settings: AuditSettings) -> list[Path]:
    """The file, and that of operators' lines; of a pipe or a device only the first, of standard output none."""
    if settings.file is None or settings.file == _STANDARD_OUTPUT:
        return []
    path = Path(settings.file)
    return [path] if path.exists() and not path.is_file() else [path, path.with_name(f"{path.name}.operators")]
