"""The public port: the generation endpoints on plain ASGI, everything else on Starlette."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from gateway.admission import Authenticator
from gateway.api.client_exchange import ClientSink, HeldBytes, Receive, Scope, Send, Share, declared_length, read_body
from gateway.api.cors import Cors, is_preflight
from gateway.api.error_responses import problem_body, problem_headers
from gateway.api.parse import parse_request
from gateway.api.routes import ServedCatalog, build_routes, peer_of, refused_path, request_id_of
from gateway.core.errors import ClientGone, GatewayError, UnsupportedMediaType
from gateway.core.http_methods import HttpRoutes
from gateway.core.ids import RequestId
from gateway.core.json_portions import JsonLimits
from gateway.core.ports import Grant, Observer, Sink, Trace
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.settlement import Refusal
from gateway.telemetry import Tracing
from gateway.turns import Turns

_log = structlog.get_logger("gateway.api")


class GenerationService(Protocol):
    """Answers generation requests."""

    async def serve(self, request: ChatRequest, sink: Sink, grant: Grant, trace: Trace | None) -> None:
        """Answer one admitted request, or raise the ``GatewayError`` to send to the client."""
        ...


class PublicApp:
    """The ASGI application of the public port.

    Args:
        service: Answers generation requests.
        gate: Authenticates clients and enforces their limits.
        catalog: The served models, for ``/v1/models`` and ``/readyz``.
        observers: Get requests that were refused before the service.
        tracer: Begins traces; None if tracing is off.
        cors: Which web pages may use the port.
        max_body_bytes: Largest body accepted.
        max_sequences: Maximum sequences of one request.
        limits: Limits of a body's size and depth.
        held: Limits the memory of requests.
        turns: Runs the parsing of large bodies.
    """

    def __init__(
        self,
        service: GenerationService,
        gate: Authenticator,
        catalog: ServedCatalog,
        *,
        observers: Sequence[Observer],
        tracer: Tracing | None,
        cors: Cors,
        max_body_bytes: int,
        max_sequences: int,
        limits: JsonLimits,
        held: HeldBytes,
        turns: Turns,
    ) -> None:
        self._service = service
        self._gate = gate
        self._observers = observers
        self._tracer = tracer
        self.cors = cors
        self._open: set[ClientSink] = set()
        self._models = catalog.models
        self._max_body_bytes = max_body_bytes
        self._max_sequences = max_sequences
        self._limits = limits
        self._held = held
        self._turns = turns
        self._endpoints = {str(endpoint): endpoint for endpoint in Endpoint}
        self.routes: HttpRoutes = build_routes(catalog, gate, observers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        is_http = scope["type"] == "http"
        if is_http and self.cors:
            send = self.cors.sending(scope["headers"], send)
        endpoint = self._endpoints.get(scope["path"]) if is_http else None
        if endpoint is not None and scope["method"] == "POST":
            await self._generate(endpoint, scope, receive, send)
        elif is_http and is_preflight(scope["method"], scope["headers"]):
            await self._preflight(scope, send)
        else:
            await self.routes(scope, receive, send)

    def interrupt(self) -> None:
        """Shutdown: end every open answer with an error in the API's format."""
        for sink in list(self._open):
            sink.interrupt()

    async def _preflight(self, scope: Scope, send: Send) -> None:
        """Answer a CORS preflight. Needs no key, because browsers send none with it."""
        try:
            allowed = self.cors.preflight(scope["headers"])
        except GatewayError as error:
            request_id = request_id_of(dict(scope["headers"]).get(b"x-request-id", b""))
            self._refused(refused_path(scope, error, request_id), None)
            await _answer(send, error, request_id)
            return
        await send({"type": "http.response.start", "status": 204, "headers": allowed})
        await send({"type": "http.response.body", "body": b""})

    async def _generate(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        trace = self._tracer.begin(headers) if self._tracer is not None else None
        named = dict(headers)
        request_id = request_id_of(named.get(b"x-request-id", b""))
        peer = peer_of(scope)
        sink: ClientSink | None = None
        grant: Grant | None = None
        share: Share | None = None
        try:
            grant = self._gate.admit(headers, peer, time.time(), time.monotonic())
            if trace is not None:
                trace.end_stage("admission")
            _check_media(named, headers)
            share = self._held.share(grant.caller.tenant.id)
            request = await self._receive(scope, receive, endpoint, request_id=request_id, grant=grant, share=share)
            if trace is not None:
                trace.end_stage("parse")
            sink = ClientSink(receive, send)
            self._open.add(sink)
            await self._service.serve(request, sink, grant, trace)
        except ClientGone:
            return
        except GatewayError as error:
            if sink is None:
                self._refused(_refusal(endpoint, request_id, error, peer, grant), trace)
            await _answer(send, error, request_id)
        except asyncio.CancelledError:
            if sink is None or not sink.gone:
                raise
        except Exception:
            _log.exception("request_failed", request_id=request_id, endpoint=str(endpoint))
            if sink is not None and sink.started:
                raise
            failure = _internal(request_id)
            self._refused(_refusal(endpoint, request_id, failure, peer, grant), trace)
            await _answer(send, failure, request_id)
        finally:
            if grant is not None:
                grant.release()
            if share is not None:
                share.release()
            if sink is not None:
                sink.close()
                self._open.discard(sink)
            if trace is not None:
                trace.end()

    async def _receive(
        self,
        scope: Scope,
        receive: Receive,
        endpoint: Endpoint,
        *,
        request_id: RequestId,
        grant: Grant,
        share: Share,
    ) -> ChatRequest:
        """Read and parse a body, and account its memory in ``share``."""
        named = dict(scope["headers"])
        declared = declared_length(named.get(b"content-length", b""))
        body = await read_body(receive, declared, self._max_body_bytes, share.add)
        parsing = parse_request(
            endpoint,
            scope["query_string"],
            body,
            scope["headers"],
            models=self._models,
            limits=self._limits,
            hold=share.add,
            dropped=share.drop,
            request_id=request_id,
            session=_text(named.get(b"x-session-id")),
            received_at=time.monotonic(),
            caller=grant.caller,
            peer=peer_of(scope),
            max_sequences=self._max_sequences,
        )
        return await self._turns.run(parsing, grant.caller.tenant.id)

    def _refused(self, refusal: Refusal, trace: Trace | None) -> None:
        for observer in self._observers:
            observer.on_refused(refusal)
        if trace is not None:
            trace.refused(refusal)


def _refusal(endpoint: str, request_id: RequestId, error: GatewayError, peer: str, grant: Grant | None) -> Refusal:
    caller = error.caller if grant is None else grant.caller
    return Refusal(request_id, endpoint, error.status, error.code, peer, caller)


def _check_media(named: dict[bytes, bytes], headers: Sequence[tuple[bytes, bytes]]) -> None:
    declared = named.get(b"content-type", b"").decode("latin-1")
    kind = declared.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        found = f"not {declared[:100]!r}" if declared else "and the header is missing"
        raise UnsupportedMediaType(
            f"The body must be sent with `content-type: application/json`, {found}.", code="unsupported_media_type"
        )
    if b"content-encoding" not in named:
        return
    for name, value in headers:
        encoding = value.decode("latin-1").strip().lower()
        if name == b"content-encoding" and encoding not in ("", "identity"):
            raise UnsupportedMediaType(
                f"Request bodies cannot be compressed (content-encoding: {encoding[:40]}). Send plain JSON.",
                code="unsupported_encoding",
            )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


async def _answer(send: Send, error: GatewayError, request_id: str) -> None:
    body = problem_body(error)
    headers = problem_headers(error, request_id) | {"content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _internal(request_id: str) -> GatewayError:
    return GatewayError(
        f"The gateway failed on this request; its log has the reason under request id {request_id}.",
        code="internal_error",
    )
