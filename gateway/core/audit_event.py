"""What the audit log is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Somebody did something, or was not allowed to. Never holds text of a prompt or a key.

    Attributes:
        event: What, such as ``spaces_reset`` or ``admin_refused``.
        by: Who: id of a key or of an admin token; empty for the gateway itself or somebody unknown.
        tenant: On behalf of which tenant; empty for none.
        details: Whatever else belongs to it, JSON-ready.
    """

    event: str
    by: str = ""
    tenant: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
