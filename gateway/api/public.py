"""The public port: the generation endpoints on plain ASGI, everything else on FastAPI."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog
from fastapi import FastAPI

from gateway.api.exchange import ClientSink, Receive, Scope, Send, read_body
from gateway.api.held import HeldBytes, Share
from gateway.api.parse import parse_request
from gateway.api.problems import problem_body, problem_headers
from gateway.api.routes import Catalog, build_routes, peer_of, request_id_of
from gateway.json_portions import JsonLimits
from gateway.portions import Turns
from gateway.values.errors import ClientGone, GatewayError, UnsupportedMediaType
from gateway.values.ids import RequestId
from gateway.values.ports import Gate, Grant, Observer, Sink, Trace, Tracer
from gateway.values.request import ChatRequest, Endpoint
from gateway.values.settlement import Refusal

_log = structlog.get_logger("gateway.api")


class Service(Protocol):
    """What answers generation requests."""

    async def serve(self, request: ChatRequest, sink: Sink, grant: Grant, trace: Trace | None) -> None:
        """Answer one request that was admitted, or raise the ``GatewayError`` the client should be told."""
        ...


class PublicApp:
    """The ASGI application of the public port.

    Args:
        service: What answers generation requests.
        gate: Who may ask, and how much.
        catalog: What is served, for ``/v1/models`` and ``/readyz``.
        observers: Whom to tell of requests that did not get as far as the service.
        tracer: Who is told of requests on their way; None if nobody is.
        max_body_bytes: Largest body accepted.
        limits: What a body may hold.
        held: Bounds the memory that requests take.
        turns: Where large bodies are parsed.
    """

    def __init__(
        self,
        service: Service,
        gate: Gate,
        catalog: Catalog,
        *,
        observers: Sequence[Observer],
        tracer: Tracer | None,
        max_body_bytes: int,
        limits: JsonLimits,
        held: HeldBytes,
        turns: Turns,
    ) -> None:
        self._service = service
        self._gate = gate
        self._observers = observers
        self._tracer = tracer
        self._open: set[ClientSink] = set()
        self._models = catalog.models
        self._max_body_bytes = max_body_bytes
        self._limits = limits
        self._held = held
        self._turns = turns
        self._endpoints = {str(endpoint): endpoint for endpoint in Endpoint}
        self.routes: FastAPI = build_routes(catalog, gate, observers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is not None and scope["method"] == "POST":
            await self._generate(endpoint, scope, receive, send)
            return
        await self.routes(scope, receive, send)

    def interrupt(self) -> None:
        """The gateway has to stop: end every answer that is still open, in the API's own way."""
        for sink in list(self._open):
            sink.interrupt()

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
                trace.lap("admission")
            _check_media(named, headers)
            share = self._held.share(grant.caller.tenant.id)
            request = await self._receive(scope, receive, endpoint, request_id=request_id, grant=grant, share=share)
            if trace is not None:
                trace.lap("parse")
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
        """Read and parse a body, which ``share`` holds from when it arrives."""
        named = dict(scope["headers"])
        length = named.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else None
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
        )
        return await self._turns.run(parsing)

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
        told = f"not {declared[:100]!r}" if declared else "and the header is missing"
        raise UnsupportedMediaType(
            f"The body must be sent with `content-type: application/json`, {told}.", code="unsupported_media_type"
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
