"""The admin port: metrics for Prometheus, what the gateway knows, and what operators can have it do."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gateway.keys import redacted
from gateway.ui.access import AdminAccess, Operator, TokenExpired, check_host, check_role, check_same_site
from gateway.ui.explained import show_explained
from gateway.ui.orders import RESET_BYTES, WARM_BYTES, parse_selection, read_order
from gateway.ui.problems import problem_response
from gateway.values.audit import AuditEvent
from gateway.values.errors import (
    BadRequest,
    ClientGone,
    Forbidden,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
)
from gateway.values.ports import Auditor, ExplainDesk, SpaceDesk, WarmDesk
from gateway.values.space import SpaceEnd

_SHOWN_CHARS = 200
_SPACE_FILTERS = ("model", "tenant", "state", "limit")
_SPACES_AT_ONCE = 100
_SPACES_SHOWN = 1000

_log = structlog.get_logger("gateway.ui")

MetricsPage = Callable[[str], tuple[bytes, str]]
"""From an ``accept`` header to the metrics page and its content type."""


@dataclass(frozen=True, slots=True)
class AdminState:
    """What the admin port shows, and to whom it hands orders on.

    Attributes:
        metrics: Renders the metrics page.
        replicas: One object per replica.
        config: The configuration in force, secrets masked.
        personal_data: What was found in the prompts of a space, given by its id.
        named_owners: Under which names the spaces of a tenant stand.
        desk: Ends the lives of spaces.
        warm: Fills caches.
        explain: Says why tokens were computed again.
        audit: Told of what was done, and of who was not let in.
    """

    metrics: MetricsPage
    replicas: Callable[[], Sequence[Mapping[str, Any]]]
    config: Callable[[], Mapping[str, Any]]
    personal_data: Callable[[str], Sequence[Mapping[str, object]]]
    named_owners: Callable[[str], Sequence[str]]
    desk: SpaceDesk
    warm: WarmDesk
    explain: ExplainDesk
    audit: Auditor


def build_admin(state: AdminState, access: AdminAccess) -> FastAPI:
    """The FastAPI application.

    Args:
        state: What to show.
        access: Who may look, and who may do something.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    _guard(app, access, state.audit)
    _show(app, state)
    show_explained(app, state.explain)
    _operate(app, state)
    _explain(app)
    return app


def _guard(app: FastAPI, access: AdminAccess, audit: Auditor) -> None:
    @app.middleware("http")
    async def let_in(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        if _path(request) == "/healthz":
            return await proceed(request)
        known = ""
        try:
            operator = access.operator(_authorization(request), time.time())
            known = operator.id
            if access.is_open:
                check_host(request.headers.getlist("host"))
            if request.method == "POST":
                check_same_site(request.headers)
            check_role(operator, request.method)
        except (Unauthorized, Forbidden) as error:
            audit.record(_refusal(request, error, known))
            return problem_response(error)
        request.state.operator = operator
        return await proceed(request)


def _show(app: FastAPI, state: AdminState) -> None:
    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        page, content_type = state.metrics(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    @app.get("/admin/api/replicas")
    async def replicas() -> Response:
        return JSONResponse({"replicas": list(state.replicas())})

    @app.get("/admin/api/config")
    async def config() -> Response:
        return JSONResponse(dict(state.config()))

    @app.get("/admin/api/spaces")
    async def spaces(request: Request) -> Response:
        wanted = _filters(request)
        limit = _limit(wanted.pop("limit", ""))
        owners = {wanted["tenant"], *state.named_owners(wanted["tenant"])} if "tenant" in wanted else None
        found: list[Mapping[str, object]] = []
        more = False
        for number, space in enumerate(state.desk.shown()):
            if number % _SPACES_AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be thousands, and requests to answer
            if _is_wanted(space, wanted, owners):
                if more := len(found) == limit:
                    break
                found.append(dict(space) | {"personal_data": list(state.personal_data(str(space["id"])))})
        return JSONResponse({"spaces": found, "more": more})

    @app.get("/admin/api/warm/{job}")
    async def warm_job(job: str) -> Response:
        found = state.warm.job(job)
        if found is None:
            raise NotFound(
                f"There is no job {redacted(job)[:_SHOWN_CHARS]!r}: only the last ones are kept, where they were done.",
                code="unknown_job",
            )
        return JSONResponse(dict(found))

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def process_lives() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/")
    async def front() -> Response:
        return JSONResponse(
            {
                "see": [
                    "/metrics",
                    "/admin/api/summary?window=&model=&tenant=&source=",
                    "/admin/api/reasons?window=&model=&tenant=&source=&reason=",
                    "/admin/api/requests?model=&tenant=&source=&reason=&session=&limit=",
                    "/admin/api/requests/{id}",
                    "/admin/api/replicas",
                    "/admin/api/spaces?model=&tenant=&state=&limit=",
                    "/admin/api/config",
                    "/healthz",
                ],
                "do": [
                    "POST /admin/api/spaces/reset",
                    "POST /admin/api/warm, then GET /admin/api/warm/{job}",
                ],
            }
        )


def _operate(app: FastAPI, state: AdminState) -> None:
    @app.post("/admin/api/spaces/reset")
    async def reset(request: Request) -> Response:
        selection = parse_selection(await read_order(request, RESET_BYTES))
        by = _operator(request).id
        given = {key: value for key, value in asdict(selection).items() if value is not None}
        tenant = given.pop("tenant", "")
        if not given and not tenant:
            given["all"] = True
        # Before it is done: should it fail half-way, it still stands there who began it.
        state.audit.record(AuditEvent("spaces_reset_asked", by, tenant, given))
        ends = await state.desk.reset(selection, by)
        return JSONResponse({"reset": len(ends), "spaces": [_ended(end) for end in ends]})

    @app.post("/admin/api/warm")
    async def warm(request: Request) -> Response:
        order = await read_order(request, WARM_BYTES)
        by = _operator(request).id
        job = state.warm.start(order, by)
        state.audit.record(AuditEvent("warm_asked", by, details={"job": job.get("id"), "requests": job.get("total")}))
        return JSONResponse(dict(job), 202)


def _explain(app: FastAPI) -> None:
    @app.exception_handler(GatewayError)
    async def refused(_request: Request, error: GatewayError) -> Response:
        return problem_response(error)

    @app.exception_handler(ClientGone)
    async def gone(_request: Request, _error: ClientGone) -> Response:
        return Response(status_code=499)

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            told = f"There is nothing at {_path(request)[:_SHOWN_CHARS]}; GET / lists what there is."
            return problem_response(NotFound(told, code="unknown_path"))
        headers = tuple((error.headers or {}).items())
        told = f"{request.method} is not possible here."
        return problem_response(MethodNotAllowed(told, code="method_not_allowed", headers=headers))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("admin_request_failed", path=_path(request)[:_SHOWN_CHARS], exc_info=error)
        return problem_response(GatewayError("The gateway failed; its log has the reason.", code="internal_error"))


def _path(request: Request) -> str:
    """The path that is routed by. ``request.url`` is put together from the ``host`` header, too, which may hold any."""
    return redacted(request.scope["path"])


def _authorization(request: Request) -> bytes | None:
    """The header; None also for several, of which nobody can say which one counts."""
    given = request.headers.getlist("authorization")
    return given[0].encode("latin-1") if len(given) == 1 else None


def _operator(request: Request) -> Operator:
    operator = request.state.operator
    assert isinstance(operator, Operator)
    return operator


def _refusal(request: Request, error: GatewayError, known: str) -> AuditEvent:
    return AuditEvent(
        "admin_refused",
        by=error.token_id if isinstance(error, TokenExpired) else known,
        details={
            "peer": request.client.host if request.client else "",
            "method": request.method,
            "path": _path(request)[:_SHOWN_CHARS],
            "status": error.status,
            "code": error.code,
        },
    )


def _filters(request: Request) -> dict[str, str]:
    for given in request.query_params:
        name = redacted(given)
        if name not in _SPACE_FILTERS:
            raise BadRequest(
                f"There is no filter {name[:_SHOWN_CHARS]!r}; there is {', '.join(_SPACE_FILTERS)}.",
                param=name[:_SHOWN_CHARS],
                code="unknown_parameter",
            )
    return {name: value for name, value in request.query_params.items() if value}


def _limit(value: str) -> int:
    """How many spaces are shown at most."""
    if not value:
        return _SPACES_SHOWN
    if not (value.isascii() and value.isdigit() and len(value) <= 5 and int(value) > 0):
        raise BadRequest("`limit` must be a number from 1 to 99999.", param="limit", code="invalid_value")
    return int(value)


def _is_wanted(space: Mapping[str, object], wanted: Mapping[str, str], owners: Collection[str] | None) -> bool:
    """Whether a space passes the filters; ``owners`` is whose spaces ``tenant`` means."""
    return (owners is None or space["tenant"] in owners) and all(
        space.get(name) == value for name, value in wanted.items() if name != "tenant"
    )


def _ended(end: SpaceEnd) -> dict[str, str]:
    space = end.space
    return {
        "id": end.id,
        "model": space.model_id,
        "tenant": space.tenant,
        "scope": space.scope,
        "template_version": space.template_version,
    }
