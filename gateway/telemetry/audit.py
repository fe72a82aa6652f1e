"""The audit log: who did what, in which space, and who was not let in. JSON lines, apart from the log.

Every line has ``time`` (UTC) and ``event``:

* ``request``: a request is over. ``tenant``, ``key_id``, ``scope``, ``peer``, ``request_id``, ``model``, ``endpoint``,
  ``space``, ``replica``, ``decision``, ``status``, ``code`` of the gateway's own error, ``prompt_tokens``,
  ``cached_tokens``, ``warming``.
* ``access_refused``: a request was refused, at the door or on its way: an invalid key, a limit, personal data, what
  cannot be understood, a path or method that is not served. ``peer``, ``status``, ``code``, ``tenant``, ``key_id``,
  ``request_id``, ``endpoint`` (of a path or method that is not served ``other``, and beside it ``method`` and
  ``path``), and ``model`` and ``space`` if it got as far.
* ``space_end``: the life of a prefix space ended. ``cause``, ``by``, ``space``, and the space's ``parts``.
* ``personal_data``: something was found that was not known before. ``tenant``, ``key_id``, ``request_id``, ``space``,
  ``kind``, ``path``, ``start``, ``length``, ``shared``.
* ``audit_gap``: here ``lines`` lines are missing, the first of them from ``since``.
* whatever is recorded through ``Auditor``: ``by``, ``tenant``, and its details.

Neither text of a prompt nor a key is ever part of it.
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

    Nobody waits for the disk, and nothing fails because of it: see ``audit_writer``. Without a file nothing is written.

    Args:
        settings: Where to, and what.
        on_error: Called when writing failed, from any thread.
    """

    def __init__(self, settings: AuditSettings, on_error: Callable[[], None]) -> None:
        self._requests = settings.requests
        self._writer = None if settings.file is None else AuditWriter(_target(settings), on_error)

    def start(self) -> None:
        """Begin to write. What was recorded before is written as well."""
        if self._writer is not None:
            self._writer.start()

    async def stop(self) -> None:
        """Write what is still waiting. Nothing may be recorded any more."""
        if self._writer is not None:
            await self._writer.stop()

    def record(self, event: AuditEvent) -> None:
        """See ``Auditor``."""
        self._put(event.event, {**event.details, "by": event.by, "tenant": event.tenant})

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``. What was refused on its way is told as what was refused at the door."""
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
        """See ``Observer``. A request that the gateway itself failed was not refused."""
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
        """See ``PersonalDataObserver``: a metric counts them."""

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
    """Look whether the audit log can be written, and its file renamed. Makes the file, but no folder.

    Raises:
        ConfigInvalid: It cannot.
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
        why = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ConfigInvalid(
            [f"audit.file: {path} cannot be written: {why} (make its folder, and let the gateway's user write there)"]
        ) from error
    if is_file and not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigInvalid(
            [f"audit.file: the folder of {path} cannot be written, so it could not be rotated (let the gateway's user)"]
        )


def _target(settings: AuditSettings) -> RotatedFile | StandardOutput:
    if settings.file == _STANDARD_OUTPUT:
        return StandardOutput()
    return RotatedFile(Path(str(settings.file)), settings.max_bytes, settings.keep)
