"""The public port's other routes, on FastAPI: models, health, and everything that does not exist."""

import re
import secrets
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gateway.api.parse import unknown_model
from gateway.api.problems import problem_response
from gateway.keys import looks_like_key, redacted
from gateway.values.errors import GatewayError, MethodNotAllowed, NotFound
from gateway.values.ids import RequestId
from gateway.values.ports import Gate, Observer
from gateway.values.request import Endpoint
from gateway.values.settlement import Refusal

_MODELS = "/v1/models"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SHOWN_CHARS = 200

_log = structlog.get_logger("gateway.api")


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is served.

    Attributes:
        models: Ids of the models.
        card: The engine's entry of a model, or None while no replica has told it.
        ready: Whether a model has a replica that is up.
        started_at: Unix seconds, for cards made here.
        public: Whether anybody may see which models there are, as long as nobody has to say who they are.
        stopping: Whether the gateway is about to take no more requests.
    """

    models: Sequence[str]
    card: Callable[[str], Mapping[str, Any] | None]
    ready: Callable[[str], bool]
    started_at: int
    public: Callable[[], bool]
    stopping: Callable[[], bool] = lambda: False


def build_routes(catalog: Catalog, gate: Gate, observers: Sequence[Observer]) -> FastAPI:
    """The FastAPI application.

    Args:
        catalog: What is served.
        gate: Who may see it.
        observers: Whom to tell of those who may not.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    def _allowed(request: Request) -> list[str]:
        peer = peer_of(request.scope)
        try:
            caller = gate.identify(request.scope["headers"], peer, time.time())
        except GatewayError as error:
            # The path as it is served: the one in the request may name a model of the client's invention.
            refusal = Refusal(_request_id(request), _MODELS, error.status, error.code, peer, error.caller)
            for observer in observers:
                observer.on_refused(refusal)
            raise
        return [model for model in catalog.models if caller.may_use(model)]

    @app.get(_MODELS)
    async def list_models(request: Request) -> Response:
        allowed = _allowed(request)
        return JSONResponse({"object": "list", "data": [_card(catalog, model) for model in allowed]})

    @app.get("/v1/models/{model:path}")
    async def show_model(request: Request, model: str) -> Response:
        allowed = _allowed(request)
        if model not in allowed:
            raise unknown_model(model, allowed)
        return JSONResponse(_card(catalog, model))

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def process_lives() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def can_serve() -> Response:
        models = {model: catalog.ready(model) for model in catalog.models}
        stopping = catalog.stopping()
        ready = all(models.values()) and not stopping
        status = "stopping" if stopping else "ready" if ready else "not ready"
        return JSONResponse(
            {"status": status} | ({"models": models} if catalog.public() else {}),
            200 if ready else 503,
            None if ready else {"retry-after": "2"},
        )

    for endpoint in Endpoint:
        # POST never gets here; what does is told which method to use.
        app.add_api_route(str(endpoint), _only_post, methods=["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])

    add_problem_handlers(app)
    return app


async def _only_post() -> Response:
    raise HTTPException(405, headers={"Allow": "POST"})


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every failure of a FastAPI application in the OpenAI error shape."""

    @app.exception_handler(GatewayError)
    async def own(request: Request, error: GatewayError) -> Response:
        return problem_response(error, _request_id(request))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        # The header names the methods; without it this is a path nobody serves.
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            return problem_response(
                MethodNotAllowed(f"{request.method} is not allowed here; use {allowed}.", code="method_not_allowed"),
                _request_id(request),
                extra={"allow": allowed},
            )
        if error.status_code == 404:
            return problem_response(
                NotFound(f"There is nothing at {request.method} {_path(request)}.", code="unknown_path"),
                _request_id(request),
            )
        raise error

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("request_failed", path=_path(request), exc_info=error)
        return problem_response(GatewayError("The gateway failed; its log has the reason.", code="internal_error"))


def request_id_of(header: bytes) -> RequestId:
    """The client's ``x-request-id``, or a new one if it sent none that can be used."""
    given = header.decode("latin-1")
    usable = _REQUEST_ID.fullmatch(given) and not looks_like_key(given)  # ids stand in every log, the engine's too
    return RequestId(given if usable else secrets.token_hex(16))


def _request_id(request: Request) -> RequestId:
    """One id for whatever is told of a request, the answer and the logs alike."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = request_id_of(request.headers.get("x-request-id", "").encode("latin-1"))
    request_id: RequestId = request.state.request_id
    return request_id


def _path(request: Request) -> str:
    """As it may be shown."""
    return redacted(request.scope["path"])[:_SHOWN_CHARS]


def peer_of(scope: MutableMapping[str, Any]) -> str:
    """Address that an ASGI scope's connection comes from; empty if unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def _card(catalog: Catalog, model: str) -> dict[str, Any]:
    own = {"id": model, "object": "model", "created": catalog.started_at, "owned_by": "prefix-gateway"}
    return own | dict(catalog.card(model) or {})
