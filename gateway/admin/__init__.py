"""The admin port: metrics, dashboard, admin API.

Requests of operators come in; answers show the gateway's state, orders go to the components behind ``AdminState``.
Start with ``admin_app``, which ``deferred_app`` builds; ``guard`` and ``access`` authenticate, ``live_stream`` streams
events.
"""

from gateway.admin.access import AdminAccess
from gateway.admin.deferred_app import AdminState, DeferredAdmin
from gateway.admin.live_stream import LiveFeed

__all__ = ["AdminAccess", "AdminState", "DeferredAdmin", "LiveFeed"]
