"""What the operator looks at, and does: the admin port."""

from gateway.ui.access import AdminAccess
from gateway.ui.admin import AdminState, build_admin
from gateway.ui.live import LiveFeed

__all__ = ["AdminAccess", "AdminState", "LiveFeed", "build_admin"]
