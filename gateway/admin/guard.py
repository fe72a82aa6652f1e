"""What every request to the admin port passes: authentication, security headers, query parameters, error bodies.

The middleware is plain ASGI, because answers may be streams: other middleware would delay pieces or hide a
disconnect.
"""

import time
from collections.abc import Collection

import orjson
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.access import AdminAccess, Operator, TokenExpired, check_host, check_role, check_same_site
from gateway.admin.site import POLICY, is_dashboard
from gateway.core.api_keys import redacted, shown_path
from gateway.core.application import OTHER_APPLICATION
from gateway.core.errors import BadRequest, Forbidden, GatewayError, Unauthorized
from gateway.core.ports import AuditEvent
from gateway.core.tenant import APPLICATION_FORM, is_application
from gateway.telemetry import AuditLog

_SHOWN_CHARS = 200


def read_filters(request: Request, known: Collection[str]) -> dict[str, str]:
    """The parameters that are given and not empty; API keys in values are masked.

    Raises:
        BadRequest: A parameter is unknown, or ``prompt`` cannot be an application: without an error it would look like
            one without traffic.
    """
    for given in request.query_params:
        if given not in known:
            name = redacted(given)[:_SHOWN_CHARS]
            raise BadRequest(
                f"There is no filter {name!r}; there is {', '.join(known) or 'none here'}.",
                param=name,
                code="unknown_parameter",
            )
    filters = {name: redacted(value) for name, value in request.query_params.items() if value}
    if (prompt := filters.get("prompt")) is not None and prompt != OTHER_APPLICATION and not is_application(prompt):
        raise BadRequest(
            f"`prompt` must be an application ({APPLICATION_FORM}) or {OTHER_APPLICATION}, not"
            f" {prompt[:_SHOWN_CHARS]!r}.",
            param="prompt",
            code="invalid_value",
        )
    return filters


def problem_response(error: GatewayError) -> Response:
    """The whole response."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return Response(
        orjson.dumps({"error": body}), error.status, {"content-type": "application/json", **dict(error.headers)}
    )


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

    def __init__(self, app: ASGIApp, access: AdminAccess, audit: AuditLog) -> None:
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
            if request.method not in ("GET", "HEAD"):
                check_same_site(request.headers)
            check_role(operator, request.method)
        except (Unauthorized, Forbidden) as error:
            self._audit.record_refused(_audited(request, error, known))
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
