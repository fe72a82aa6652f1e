"""The admin port: metrics for Prometheus, and what the gateway knows of its replicas."""

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

_log = structlog.get_logger("gateway.ui")

MetricsPage = Callable[[str], tuple[bytes, str]]
"""From an ``accept`` header to the metrics page and its content type."""


@dataclass(frozen=True, slots=True)
class AdminState:
    """What the admin port shows.

    Attributes:
        metrics: Renders the metrics page.
        replicas: One object per replica.
        config: The configuration in force, secrets masked.
    """

    metrics: MetricsPage
    replicas: Callable[[], Sequence[Mapping[str, Any]]]
    config: Mapping[str, Any]


def build_admin(state: AdminState, token: str | None) -> FastAPI:
    """The FastAPI application.

    Args:
        state: What to show.
        token: Bearer token every request must carry; None where the port is reached from this machine only.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.middleware("http")
    async def require_token(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        if token is not None and request.url.path != "/healthz":
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return _problem(
                    401, "A token is required: send `authorization: Bearer <server.admin_token>`.", "unauthorized"
                )
        return await proceed(request)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        page, content_type = state.metrics(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    @app.get("/admin/api/replicas")
    async def replicas() -> Response:
        return JSONResponse({"replicas": list(state.replicas())})

    @app.get("/admin/api/config")
    async def config() -> Response:
        return JSONResponse(dict(state.config))

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def process_lives() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/")
    async def front() -> Response:
        return JSONResponse({"see": ["/metrics", "/admin/api/replicas", "/admin/api/config", "/healthz"]})

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            told = f"There is nothing at {request.url.path[:200]}; GET / lists what there is."
            return _problem(404, told, "unknown_path")
        return _problem(
            error.status_code, f"{request.method} is not possible here.", "method_not_allowed", error.headers
        )

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("admin_request_failed", path=request.url.path, exc_info=error)
        return _problem(500, "The gateway failed; its log has the reason.", "internal_error")

    return app


def _problem(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "internal_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status, dict(headers or {}))
