"""The admin port: metrics, dashboard, admin API.

Requests of operators come in; answers show the gateway's state, orders go to the components behind ``AdminState``.
Start with ``admin_app``; ``guard`` and ``access`` authenticate, ``live_stream`` streams events.
"""

from gateway.admin.access import AdminAccess
from gateway.admin.admin_app import AdminState, build_admin
from gateway.admin.live_stream import LiveFeed

__all__ = ["AdminAccess", "AdminState", "LiveFeed", "build_admin"]
