"""The audit log: requests, refusals and administrative actions by caller. JSON lines, separate from the log.

Every line has ``time`` (UTC) and ``event``:

* ``request``: an ended request. ``tenant``, ``key_id``, ``scope``, ``peer``, ``request_id``, ``model``, ``endpoint``,
  ``space``, ``replica``, ``decision``, ``status``, ``code`` of the gateway's own error, ``prompt_tokens``,
  ``cached_tokens``, ``warming``.
* ``access_refused``: a request was refused, at any stage: an invalid key, a limit, personal data, an invalid body, an
  unknown path or method. ``peer``, ``status``, ``code``, ``tenant``, ``key_id``,
  ``request_id``, ``endpoint`` (``other`` for an unknown path or method, with ``method`` and ``path``), and
  ``model`` and ``space`` if known.
* ``space_end``: an epoch of a prefix space ended. ``cause``, ``by``, ``space``, and the space's ``parts``.
* ``personal_data``: a new finding of personal data. ``tenant``, ``key_id``, ``request_id``, ``space``,
  ``kind``, ``path``, ``start``, ``length``, ``shared``.
* ``audit_gap``: ``lines`` lines are missing here, the first of them from ``since``.
* events recorded through ``Auditor``: ``by``, ``tenant``, and the event's details.

It never contains prompt text or keys.
"""

import dataclasses
import os
import stat
from collections.abc import Callable
from pathlib import Path

from gateway.config.logging_settings import AuditSettings
from gateway.core.audit_event import AuditEvent
from gateway.core.errors import ConfigInvalid
from gateway.core.personal_findings import PersonalFinding
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import SpaceEnd
from gateway.core.tenant import Tenant
from gateway.telemetry.audit_file import RotatedFile, StandardOutput, open_for_append
from gateway.telemetry.audit_writer import AuditWriter

_STANDARD_OUTPUT = "stdout"
_FIRST_SERVER_ERROR = 500


class AuditLog:
    """An ``Auditor``, ``Observer``, ``SpaceObserver`` and ``PersonalDataObserver`` that writes lines.

    Requests neither wait for the disk nor fail because of it: see ``audit_writer``. Without a file nothing is written.

    Args:
        settings: File and content.
        on_error: Called when writing failed, from any thread.
    """

    def __init__(self, settings: AuditSettings, on_error: Callable[[], None]) -> None:
        self._requests = settings.requests
        self._writer = None if settings.file is None else AuditWriter(_target(settings), on_error)

    def start(self) -> None:
        """Start writing, including the records so far."""
        if self._writer is not None:
            self._writer.start()

    async def stop(self) -> None:
        """Write the waiting records. Do not record any more afterwards."""
        if self._writer is not None:
            await self._writer.stop()

    def record(self, event: AuditEvent) -> None:
        """See ``Auditor``."""
        self._put(event.event, {**event.details, "by": event.by, "tenant": event.tenant})

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``. A settlement with an error of the gateway below 500 is recorded as ``access_refused``."""
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
        )

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        parts = dataclasses.asdict(end.space)
        self._put("space_end", {"cause": end.cause, "by": end.by, "space": end.id, "parts": parts})

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
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

    def _put(self, event: str, fields: dict[str, object]) -> None:
        if self._writer is not None:
            self._writer.put(event, fields)


def check_writable(settings: AuditSettings) -> None:
    """Check that the audit log can be written, and its file renamed. Creates the file, but no folder.

    Raises:
        ConfigInvalid: it cannot.
    """
    if settings.file is None or settings.file == _STANDARD_OUTPUT:
        return
    path = Path(settings.file)
    try:
        descriptor = open_for_append(path)
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise ConfigInvalid(
            [f"audit.file: {path} cannot be written: {why} (create its folder, and let the gateway's user write there)"]
        ) from error
    if is_file and not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigInvalid(
            [f"audit.file: {path.parent} is not writable, so it cannot be rotated (let the gateway's user write there)"]
        )


def _target(settings: AuditSettings) -> RotatedFile | StandardOutput:
    if settings.file == _STANDARD_OUTPUT:
        return StandardOutput()
    return RotatedFile(Path(str(settings.file)), settings.max_bytes, settings.keep)
