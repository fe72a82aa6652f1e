"""ASGI middleware of the admin port: authenticates requests, and adds security headers to answers.

Plain ASGI, because answers may be streams: other middleware would delay pieces or hide a disconnect of the client.
"""

import time

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.access import AdminAccess, Operator, TokenExpired, check_host, check_role, check_same_site
from gateway.admin.admin_errors import problem_response
from gateway.admin.site import POLICY, is_dashboard
from gateway.core.api_keys import shown_path
from gateway.core.audit_event import AuditEvent
from gateway.core.errors import Forbidden, GatewayError, Unauthorized
from gateway.core.ports import Auditor

BROWSER_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of every answer of the admin port, unless it sets its own."""


class Guard:
    """Lets requests through to the application, or refuses them.

    The dashboard's pages and files, and health checks, need no token. All other requests get their ``Operator`` as
    ``request.state.operator``.

    Args:
        app: The application.
        access: Authenticates operators.
        audit: Records refused requests.
    """

    def __init__(self, app: ASGIApp, access: AdminAccess, audit: Auditor) -> None:
        self._app = app
        self._access = access
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in BROWSER_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        refusal = self._refusal(request)
        answers = self._app if refusal is None else problem_response(refusal)
        await answers(scope, receive, sealed)

    def _refusal(self, request: Request) -> GatewayError | None:
        """The error of a refused request; None if it is allowed."""
        path: str = request.scope["path"]
        if path == "/healthz":
            return None
        known = ""
        try:
            if self._access.is_open:
                check_host(request.headers.getlist("host"))
            if is_dashboard(path) and request.method in ("GET", "HEAD"):
                return None
            operator = self._access.operator(authorization_of(request), time.time())
            known = operator.id
            if request.method == "POST":
                check_same_site(request.headers)
            check_role(operator, request.method)
        except (Unauthorized, Forbidden) as error:
            self._audit.record(_audited(request, error, known))
            return error
        request.state.operator = operator
        return None


def authorization_of(request: Request) -> bytes | None:
    """The header; None also if it is repeated, which is ambiguous."""
    given = request.headers.getlist("authorization")
    return given[0].encode("latin-1") if len(given) == 1 else None


def operator_of(request: Request) -> Operator:
    """The operator of a request; None for pages, which need no token."""
    operator = request.state.operator
    assert isinstance(operator, Operator)
    return operator


def _audited(request: Request, error: GatewayError, known: str) -> AuditEvent:
    return AuditEvent(
        "admin_refused",
        by=error.token_id if isinstance(error, TokenExpired) else known,
        details={
            "peer": request.client.host if request.client else "",
            "method": request.method,
            "path": shown_path(request.scope["path"]),
            "status": error.status,
            "code": error.code,
        },
    )
