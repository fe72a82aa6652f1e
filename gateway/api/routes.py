"""The public port's other routes, on Starlette: models, health, version, and errors of paths that are not served."""

import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import __version__
from gateway.admission import Authenticator
from gateway.api.dialects import Dialect
from gateway.api.dialects.messages_answer import model_entry, model_page
from gateway.api.error_responses import problem_headers, problem_response
from gateway.api.parse import unknown_model
from gateway.core.api_keys import may_be_key, redacted, shown_path
from gateway.core.errors import GatewayError, MethodNotAllowed, NoReplica, NotFound
from gateway.core.http_methods import HttpRoutes, allowed_methods
from gateway.core.ids import RequestId
from gateway.core.ports import Grant, Observer
from gateway.core.request import ENGINE_PATHS, Endpoint
from gateway.core.settlement import OTHER_ENDPOINT, Refusal
from gateway.core.tenant import Caller
from gateway.explain.worker import ExplainClient

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]
Dialects = Mapping[str, Dialect]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
MoreRoutes = Callable[[HttpRoutes, Callable[[Request, str], Caller], Callable[[Request, str], Grant]], None]
"""Adds routes; is given functions that authenticate a request, named by the path of its route in the log. The second
one counts it in the limits of its tenant, too."""

_MODELS = "/v1/models"
MESSAGES = "/v1/messages"
_ANTHROPIC = "anthropic-version"
"""Header that SDKs of Anthropic's API send with every request."""

_POSTED = (*Endpoint, *ENGINE_PATHS)
_EXPLANATIONS = "/v1/gateway/explanations"
_METHODS_SHOWN = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

_IDS_AT_ONCE = 256
_unused_ids: list[RequestId] = []
"""Ids for the next requests: a call of the operating system for each would take longer than the rest of admission."""

os.register_at_fork(after_in_child=_unused_ids.clear)  # or two processes would give the same ids

_log = structlog.get_logger("gateway.api")


@dataclass(frozen=True, slots=True)
class ServedCatalog:
    """The served models and their state.

    Attributes:
        models: Ids of the models.
        card: The engine's entry of a model; None until a replica has reported it.
        ready: Whether a model has a replica that is up.
        started_at: Unix seconds, for entries made by the gateway.
        public: Whether the models are listed without a key: in open mode.
        stopping: Whether the gateway is about to take no more requests.
    """

    models: Sequence[str]
    card: Callable[[str], Mapping[str, Any] | None]
    ready: Callable[[str], bool]
    started_at: int
    public: Callable[[], bool]
    stopping: Callable[[], bool] = lambda: False


def build_routes(
    catalog: ServedCatalog,
    gate: Authenticator,
    observer: Observer,
    *,
    explains: ExplainClient,
    dialects: Dialects,
    more: Sequence[MoreRoutes] = (),
) -> HttpRoutes:
    """The application.

    Args:
        catalog: The served models.
        gate: Authenticates clients.
        observer: Gets refused requests.
        explains: Explains requests.
        dialects: See ``PublicApp``.
        more: Adds further routes.
    """
    app = HttpRoutes()

    def _checked(request: Request, path: str, check: Callable[[Headers, str], T]) -> T:
        peer = peer_of(request.scope)
        try:
            return check(request.scope["headers"], peer)
        except GatewayError as error:
            # The path of the route: the request's path may contain any text as a model id.
            refusal = Refusal(_request_id(request), path, error.status, error.code, peer, error.caller)
            observer.on_refused(refusal)
            raise

    def _caller(request: Request, path: str) -> Caller:
        return _checked(request, path, lambda headers, peer: gate.identify(headers, peer, time.time()))

    def _admitted(request: Request, path: str) -> Grant:
        now = time.time(), time.monotonic()
        return _checked(request, path, lambda headers, peer: gate.admit(headers, dict(headers), peer, *now))

    def _allowed(request: Request) -> list[str]:
        caller = _caller(request, _MODELS)
        return [model for model in catalog.models if caller.may_use(model)]

    # An id is any text that clients send as x-request-id, also with slashes.
    @app.get(f"{_EXPLANATIONS}/{{id:path}}")
    async def show_explanation(request: Request) -> Response:
        tenant = _caller(request, _EXPLANATIONS).tenant.id
        named = {"tenant": tenant, "id": redacted(request.path_params["id"])}
        return Response(await explains.ask("explanation", named), media_type="application/json")

    @app.get(_MODELS)
    async def list_models(request: Request) -> Response:
        allowed = _allowed(request)
        if _ANTHROPIC in request.headers:
            entries = [model_entry(_card(catalog, model)) for model in allowed]
            return JSONResponse(model_page(entries, request.query_params))
        return JSONResponse({"object": "list", "data": [_card(catalog, model) for model in allowed]})

    @app.get("/v1/models/{model:path}")
    async def show_model(request: Request) -> Response:
        model = request.path_params["model"]
        allowed = _allowed(request)
        if model not in allowed:
            raise unknown_model(model, allowed)
        if _ANTHROPIC in request.headers:
            return JSONResponse(model_entry(_card(catalog, model)))
        return JSONResponse(_card(catalog, model))

    @app.get("/healthz")
    async def process_lives(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def some_model_is_served(_request: Request) -> Response:
        if catalog.stopping() or not any(catalog.ready(model) for model in catalog.models):
            raise NoReplica("No replica of any model can take a request now.", code="no_replica")
        return Response()

    # The engines' own paths: benchmark tools and managed platforms ask there before their first request.
    app.add_route("/health", some_model_is_served, methods=["GET"])
    app.add_route("/ping", some_model_is_served, methods=["GET", "POST"])

    @app.get("/version")
    async def version(_request: Request) -> Response:
        return JSONResponse({"version": __version__})

    @app.get("/readyz")
    async def can_serve(_request: Request) -> Response:
        models = {model: catalog.ready(model) for model in catalog.models}
        stopping = catalog.stopping()
        # A platform takes a gateway that is not ready out of service for all models.
        ready = (any(models.values()) or not models) and not stopping
        status = "stopping" if stopping else "ready" if ready else "not ready"
        return JSONResponse(
            {"status": status} | ({"models": models} if catalog.public() else {}),
            200 if ready else 503,
            None if ready else {"retry-after": "2"},
        )

    for path in (*map(str, _POSTED), *dialects):
        # POST is handled before. The route answers every other method with a 405 that names POST.
        app.add_route(path, _answered_elsewhere, methods=["POST"])
    for add in more:
        add(app, _caller, _admitted)

    _add_problem_handlers(app, observer, dialects)
    return app


async def _answered_elsewhere(_request: Request) -> Response:
    raise AssertionError("generation requests do not get to these routes")


def _add_problem_handlers(app: HttpRoutes, observer: Observer, dialects: Dialects) -> None:
    """Answer every failure in the format of the API; count and log paths and methods that are not served."""
    posted = ", ".join(f"POST {path}" for path in (*map(str, _POSTED), *dialects))

    def _shaped(request: Request, error: GatewayError, extra: Mapping[str, str] | None = None) -> Response:
        dialect = dialects.get(request.scope["path"]) or (
            dialects.get(MESSAGES) if _ANTHROPIC in request.headers else None
        )
        request_id = _request_id(request)
        if dialect is None:
            return problem_response(error, request_id, extra)
        status, body = dialect.refusal(error, request_id)
        return Response(body, status, problem_headers(error, request_id) | dict(extra or {}))

    def _refuse(request: Request, error: GatewayError, extra: Mapping[str, str] | None = None) -> Response:
        refusal = refused_path(request.scope, error, _request_id(request))
        observer.on_refused(refusal)
        return _shaped(request, error, extra)

    @app.on_error(GatewayError)
    async def own(request: Request, error: GatewayError) -> Response:
        return _shaped(request, error)

    @app.on_error(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        # The header lists the methods; without it the path is not served.
        if error.status_code == 405:
            allowed = allowed_methods(error)
            message = f"{_method(request.scope)} is not allowed here; use {allowed}."
            return _refuse(request, MethodNotAllowed(message, code="method_not_allowed"), {"allow": allowed})
        if error.status_code == 404:
            message = f"{_method(request.scope)} {shown_path(request.scope['path'])} is not served here."
            message += f" Use {posted} and GET {_MODELS}."
            return _refuse(request, NotFound(message, code="unknown_path"))
        raise error

    @app.on_error(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("request_failed", path=shown_path(request.scope["path"]), exc_info=error)
        return problem_response(GatewayError("The gateway failed; its log has the reason.", code="internal_error"))


def refused_path(scope: MutableMapping[str, Any], error: GatewayError, request_id: RequestId) -> Refusal:
    """A request that belongs to no endpoint, for the log and the metrics. The path goes into the log only."""
    path = shown_path(scope["path"])
    return Refusal(
        request_id, OTHER_ENDPOINT, error.status, error.code, peer_of(scope), method=_method(scope), path=path
    )


def _method(scope: MutableMapping[str, Any]) -> str:
    """The method, one of the HTTP parser's list."""
    return scope["method"] if scope["method"] in _METHODS_SHOWN else "OTHER"


def request_id_of(header: bytes) -> RequestId:
    """The client's ``x-request-id``, or a new id if it sent none or an invalid one."""
    if header:
        given = header.decode("latin-1")
        if _REQUEST_ID.fullmatch(given) and not may_be_key(given):  # the id appears in logs, the engine's included
            return RequestId(given)
    if not _unused_ids:
        digits = os.urandom(16 * _IDS_AT_ONCE).hex()
        _unused_ids.extend(RequestId(digits[at : at + 32]) for at in range(0, len(digits), 32))
    return _unused_ids.pop()


def _request_id(request: Request) -> RequestId:
    """The request's id, the same in the answer, logs and traces."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = request_id_of(request.headers.get("x-request-id", "").encode("latin-1"))
    request_id: RequestId = request.state.request_id
    return request_id


def peer_of(scope: MutableMapping[str, Any]) -> str:
    """Address that an ASGI scope's connection comes from; empty if unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def _card(catalog: ServedCatalog, model: str) -> dict[str, Any]:
    own = {"id": model, "object": "model", "created": catalog.started_at, "owned_by": "prefix-gateway"}
    return own | dict(catalog.card(model) or {})
