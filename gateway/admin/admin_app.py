"""The admin application: metrics for Prometheus, the gateway's state, and operators' orders."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from gateway.admin import orders
from gateway.admin.access import AdminAccess
from gateway.admin.deferred_app import AdminState
from gateway.admin.explained import session_of, show_explained
from gateway.admin.guard import BROWSER_HEADERS, Guard, operator_of, problem_response, read_filters
from gateway.admin.live_stream import show_live
from gateway.admin.site import show_dashboard
from gateway.core.api_keys import redacted, shown_path
from gateway.core.application import prompt_id
from gateway.core.errors import BadRequest, ClientGone, GatewayError, MethodNotAllowed, NotFound
from gateway.core.http_methods import allowed_methods
from gateway.core.ports import AuditEvent
from gateway.core.space import SpaceEnd


def build_admin(state: AdminState, access: AdminAccess) -> FastAPI:
    """The FastAPI application.

    Args:
        state: The components.
        access: Authenticates operators.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_middleware(Guard, access=access, audit=state.audit)
    _show(app, state, access)
    show_explained(app, state.explain, state.decoders)
    show_fleet(app, state.replicas, state.prefixes)
    show_live(app, state.live, access)
    show_dashboard(app)
    _operate(app, state)
    serve_head(app)
    _explain(app)
    return app


def _show(app: FastAPI, state: AdminState, access: AdminAccess) -> None:
    @app.get("/admin/api/me")
    async def me(request: Request) -> Response:
        operator = operator_of(request)
        return JSONResponse({"id": operator.id, "role": operator.role, "asks_for_token": not access.is_open})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        page, content_type = state.metrics(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    @app.get("/admin/api/config")
    async def config() -> Response:
        return JSONResponse(dict(state.config()))

    @app.get("/admin/api/spaces")
    async def spaces(request: Request) -> Response:
        wanted = read_filters(request, _SPACE_FILTERS)
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

    @app.get("/admin/api/warm")
    async def warm_desk() -> Response:
        return JSONResponse(dict(await state.warm.overview()))

    @app.get("/admin/api/warm/{job}")
    async def warm_job(job: str) -> Response:
        found = state.warm.job(job)
        if found is None:
            raise NotFound(
                f"There is no job {redacted(job)[:_SHOWN_CHARS]!r}: only the last ones are kept, where they were done.",
                code="unknown_job",
            )
        return JSONResponse(dict(found))

    @app.get("/healthz")
    async def process_lives() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/")
    async def front() -> Response:
        return JSONResponse(
            {
                "see": [
                    "/dashboard",
                    "/metrics",
                    "/admin/api/me",
                    "/admin/api/summary?window=&model=&tenant=&source=&template=&prompt=",
                    "/admin/api/reasons?window=&model=&tenant=&source=&template=&prompt=&reason=&by=",
                    "/admin/api/requests?model=&tenant=&source=&template=&prompt=&reason=&session=&limit=",
                    "/admin/api/requests/{id}",
                    "/admin/api/sessions?tenant=&limit=",
                    "/admin/api/sessions/{id}?tenant=",
                    "/admin/api/live?model=&tenant=&source=&template=&prompt=&reason=",
                    "/admin/api/replicas",
                    "/admin/api/prefixes?model=&limit=",
                    "/admin/api/experiment?model=",
                    "/admin/api/report?month=&tenant=&gateways=",
                    "/admin/api/spaces?model=&tenant=&state=&limit=",
                    "/admin/api/warm",
                    "/admin/api/config",
                    "/healthz",
                ],
                "do": [
                    "POST /admin/api/replicas",
                    "DELETE /admin/api/replicas/{id}",
                    "POST /admin/api/replicas/drain",
                    "DELETE /admin/api/sessions/{id}?tenant=",
                    "POST /admin/api/spaces/reset",
                    "POST /admin/api/warm, then GET /admin/api/warm/{job}",
                ],
            }
        )


def _operate(app: FastAPI, state: AdminState) -> None:
    @app.post("/admin/api/spaces/reset")
    async def reset(request: Request) -> Response:
        selection = orders.parse_selection(await orders.read_order(request, orders.RESET_BYTES))
        by = operator_of(request).id
        given = {key: value for key, value in asdict(selection).items() if value is not None}
        tenant = given.pop("tenant", "")
        if not given and not tenant:
            given["all"] = True
        # Recorded before it runs: if it fails midway, the log still names its operator.
        state.audit.record(AuditEvent("spaces_reset_asked", by, tenant, given))
        ends = await state.desk.reset(selection, by)
        return JSONResponse({"reset": len(ends), "spaces": [_ended(end) for end in ends]})

    @app.delete("/admin/api/sessions/{id:path}")
    async def end_session(request: Request) -> Response:
        which = session_of(request)
        details = {"session": which["id"]}
        state.audit.record(AuditEvent("session_end_asked", operator_of(request).id, which.get("tenant", ""), details))
        return Response(await state.explain.ask("end_session", which), media_type="application/json")

    @app.post("/admin/api/replicas")
    async def add_replica(request: Request) -> Response:
        added = orders.parse_replica(await orders.read_order(request, orders.DRAIN_BYTES))
        state.members.add(added)
        details = {"replica": added.id, "model": added.model, "url": added.url}
        state.audit.record(AuditEvent("replica_add_asked", operator_of(request).id, details=details))
        return JSONResponse(details)

    @app.delete("/admin/api/replicas/{id:path}")
    async def remove_replica(request: Request) -> Response:
        details = {"replica": redacted(request.path_params["id"])}
        state.members.remove(details["replica"])
        state.audit.record(AuditEvent("replica_remove_asked", operator_of(request).id, details=details))
        return JSONResponse(details)

    @app.post("/admin/api/replicas/drain")
    async def drain(request: Request) -> Response:
        replica, on = orders.parse_drain(await orders.read_order(request, orders.DRAIN_BYTES))
        done = state.fleet.drain(replica, on=on)
        details = {"replica": replica, "drain": on}
        state.audit.record(AuditEvent("replica_drain_asked", operator_of(request).id, details=details))
        return JSONResponse(dict(done))

    @app.post("/admin/api/warm")
    async def warm(request: Request) -> Response:
        order = await orders.read_order(request, orders.WARM_BYTES)
        by = operator_of(request).id
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
        path = shown_path(request.scope["path"])
        _log.info("admin_path_refused", method=request.method, path=path, status=error.status_code)
        if error.status_code == 404:
            message = f"There is nothing at {path}; GET / lists what there is."
            return problem_response(NotFound(message, code="unknown_path"))
        allowed = allowed_methods(error)
        message = f"{request.method} is not possible here; use {allowed}."
        return problem_response(MethodNotAllowed(message, code="method_not_allowed", headers=(("allow", allowed),)))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("admin_request_failed", path=shown_path(request.scope["path"]), exc_info=error)
        response = problem_response(GatewayError("The gateway failed; its log has the reason.", code="internal_error"))
        response.headers.update(BROWSER_HEADERS)  # this response does not pass the guard
        return response


def _limit(value: str) -> int:
    """The maximum number of spaces to show."""
    if not value:
        return _SPACES_SHOWN
    if not (value.isascii() and value.isdigit() and len(value) <= 5 and int(value) > 0):
        raise BadRequest("`limit` must be a number from 1 to 99999.", param="limit", code="invalid_value")
    return int(value)


def _is_wanted(space: Mapping[str, object], wanted: Mapping[str, str], owners: Collection[str] | None) -> bool:
    """Whether a space passes the filters; ``owners`` are the owner names of ``tenant``."""
    return (owners is None or space["tenant"] in owners) and all(
        space.get(name) == value or (name == "prompt" and prompt_id(str(space.get(name))) == value)
        for name, value in wanted.items()
        if name != "tenant"
    )


def _ended(end: SpaceEnd) -> dict[str, str]:
    space = end.space
    return {
        "id": end.id,
        "model": space.model_id,
        "tenant": space.tenant,
        "scope": space.scope,
        "template_version": space.template_version,
        "prompt": space.prompt,
    }


_PREFIXES_SHOWN = 20
_MAX_PREFIXES = 100


def show_fleet(
    app: FastAPI,
    replicas: Callable[[], Sequence[Mapping[str, Any]]],
    prefixes: Callable[[str, int], Mapping[str, Any]],
) -> None:
    """Add the paths.

    Args:
        app: The application.
        replicas: One object per replica.
        prefixes: The hottest prefixes of a model (empty for all), up to a number.
    """

    @app.get("/admin/api/replicas")
    async def shown_replicas() -> Response:
        return JSONResponse({"replicas": list(replicas())})

    @app.get("/admin/api/prefixes")
    async def shown_prefixes(request: Request) -> Response:
        wanted = read_filters(request, ("model", "limit"))
        return JSONResponse(dict(prefixes(wanted.get("model", ""), _prefix_limit(wanted.get("limit", "")))))


def _prefix_limit(value: str) -> int:
    """The maximum number of prefixes to show."""
    if not value:
        return _PREFIXES_SHOWN
    if not (value.isascii() and value.isdigit() and len(value) <= 3 and 0 < int(value) <= _MAX_PREFIXES):
        raise BadRequest(f"`limit` must be a number from 1 to {_MAX_PREFIXES}.", param="limit", code="invalid_value")
    return int(value)


_SHOWN_CHARS = 200
_SPACE_FILTERS = ("model", "tenant", "prompt", "state", "limit")
_SPACES_AT_ONCE = 100
_SPACES_SHOWN = 1000

_log = structlog.get_logger("gateway.admin")


def serve_head(app: FastAPI) -> None:
    """Answer HEAD wherever GET is served: the same status and headers. The HTTP layer leaves the body out.

    Args:
        app: An application that has all of its routes.
    """
    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")
