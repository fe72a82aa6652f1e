"""Events of the audit log."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An action, or a refused one. Never holds text of a prompt or a key.

    Attributes:
        event: Its name, such as ``spaces_reset`` or ``admin_refused``.
        by: Id of a key or of an admin token; empty for the gateway itself or an unknown client.
        tenant: Id of the tenant concerned; empty for none.
        details: Further fields, JSON-ready.
    """

    event: str
    by: str = ""
    tenant: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
