"""In front of everything on the admin port: who is let in, and what keeps a browser from making more of an answer.

Plain ASGI, because answers may be streams: nothing stands between the stream and the client's connection that would
hold pieces back, or not tell that the client has left.
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
"""On everything the admin port answers, unless the answer has its own."""


class Guard:
    """Lets requests through to the application, or refuses them.

    Those of the dashboard's pages and files, and of the process's health, need no token. Everything else gets its
    ``Operator`` as ``request.state.operator``.

    Args:
        app: The application.
        access: Who may look, and who may do something.
        audit: Told of who was not let in.
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
        """Why a request may not go on; None if it may."""
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
    """The header; None also for several, of which nobody can say which one counts."""
    given = request.headers.getlist("authorization")
    return given[0].encode("latin-1") if len(given) == 1 else None


def operator_of(request: Request) -> Operator:
    """Who asks; not for requests of pages, which anybody may make."""
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
