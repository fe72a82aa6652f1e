"""What the operator looks at, and does: the admin port."""

from gateway.admin.access import AdminAccess
from gateway.admin.admin_app import AdminState, build_admin
from gateway.admin.live_feed import LiveFeed

__all__ = ["AdminAccess", "AdminState", "LiveFeed", "build_admin"]
