"""What the operator looks at: the admin port."""

from gateway.ui.admin import AdminState, build_admin

__all__ = ["AdminState", "build_admin"]
