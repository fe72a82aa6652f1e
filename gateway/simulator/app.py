"""The engine's HTTP API as an ASGI application."""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.encode import LocalEncoder
from gateway.simulator.answers import Author
from gateway.simulator.cache import BlockCache
from gateway.simulator.config import EngineConfig
from gateway.simulator.errors import EngineError
from gateway.simulator.faults import Fault, FaultInjector, FaultSpec
from gateway.simulator.generate import Generator
from gateway.simulator.metrics import CONTENT_TYPE, render_metrics
from gateway.simulator.reply import ConnectionCutError, Reply
from gateway.simulator.requests import RequestReader
from gateway.simulator.scheduler import Scheduler
from gateway.simulator.wire import ids_of
from gateway.values.request import Endpoint

ENGINE_VERSION = "0.32.0"
"""The vLLM release whose behaviour is simulated."""

FAULT_PATH = "/simulator/fault"
"""Sets the fault in force. No fault touches this path."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A POST request as it came.

    Attributes:
        path: Where it went.
        headers: Names in lower case, in their order.
        body: The raw bytes.
    """

    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class EngineApp:
    """One engine: its cache, its scheduler and its endpoints.

    Args:
        config: What the engine is.
        encoder: Tokenizer and chat template of its model.
        faults: Which fault shows when.
        set_fault: Puts a fault spec in force; raises ValueError for a bad one.
    """

    def __init__(
        self,
        config: EngineConfig,
        encoder: LocalEncoder,
        faults: FaultInjector,
        set_fault: Callable[[str], Awaitable[None]],
    ) -> None:
        self.cache = BlockCache(config.blocks, config.block_size)
        self.scheduler = Scheduler(
            self.cache,
            slots=config.slots,
            prefill_rate=config.prefill_rate,
            decode_seconds=config.decode_ms / 1000,
        )
        self.requests: deque[RecordedRequest] = deque(maxlen=config.record_requests)
        self._config = config
        self._faults = faults
        self._set_fault = set_fault
        self._reader = RequestReader(encoder, model=config.model, context=config.context)
        self._generator = Generator(Author(encoder), self.scheduler, tell_cached=config.prompt_tokens_details)
        self._routes: dict[tuple[str, str], Callable[[bytes, Reply, str], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("POST", Endpoint.CHAT): self._chat,
            ("POST", Endpoint.COMPLETIONS): self._completion,
            ("POST", f"{Endpoint.CHAT}/render"): self._render_chat,
            ("POST", f"{Endpoint.COMPLETIONS}/render"): self._render_completion,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", FAULT_PATH): self._fault,
        }
        self._paths = {path for _, path in self._routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; a client that goes away takes its work with it."""
        transport: asyncio.Transport = scope["state"]["transport"]
        body = await _read(receive)
        if body is None:
            return
        request_id = _request_id(scope["headers"])
        path = scope["path"]
        if scope["method"] == "POST" and path != FAULT_PATH:
            self.requests.append(RecordedRequest(path, tuple(scope["headers"]), body))
        fault = self._faults.draw(path) if path != FAULT_PATH else None
        reply = Reply(send, transport, request_id, fault)
        work = asyncio.ensure_future(self._answer(scope, body, reply, request_id, fault))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            await asyncio.wait({work})
            if not work.cancelled() and isinstance(work.exception(), ConnectionCutError):
                # The server takes an answer that never came for a mistake, unless it knows that the client is gone.
                await gone
            gone.cancel()
        if (
            not work.cancelled()
            and (error := work.exception()) is not None
            and not isinstance(error, ConnectionCutError)
        ):
            raise error

    async def _answer(self, scope: Scope, body: bytes, reply: Reply, request_id: str, fault: FaultSpec | None) -> None:
        try:
            if fault is not None:
                await _show(fault, reply)
            route = self._routes.get((scope["method"], scope["path"]))
            if route is None:
                known = scope["path"] in self._paths
                raise EngineError(405, "Method Not Allowed") if known else EngineError(404, "Not Found")
            await route(body, reply, request_id)
        except EngineError as error:
            await reply.error(error)

    async def _health(self, body: bytes, reply: Reply, request_id: str) -> None:
        del body, request_id
        await reply.text("", "text/plain; charset=utf-8")

    async def _version(self, body: bytes, reply: Reply, request_id: str) -> None:
        del body, request_id
        await reply.json({"version": ENGINE_VERSION})

    async def _models(self, body: bytes, reply: Reply, request_id: str) -> None:
        del body, request_id
        model = {
            "id": self._config.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": self._config.model,
            "parent": None,
            "max_model_len": self._config.context,
        }
        await reply.json({"object": "list", "data": [model]})

    async def _metrics(self, body: bytes, reply: Reply, request_id: str) -> None:
        del body, request_id
        await reply.text(render_metrics(self._config, self.cache, self.scheduler), CONTENT_TYPE)

    async def _chat(self, body: bytes, reply: Reply, request_id: str) -> None:
        await self._generator.answer(self._reader.generation(Endpoint.CHAT, _fields(body)), reply, request_id)

    async def _completion(self, body: bytes, reply: Reply, request_id: str) -> None:
        await self._generator.answer(self._reader.generation(Endpoint.COMPLETIONS, _fields(body)), reply, request_id)

    async def _render_chat(self, body: bytes, reply: Reply, request_id: str) -> None:
        (prompt,) = self._rendered(Endpoint.CHAT, body)
        await reply.json({"request_id": request_id, "token_ids": ids_of(prompt)})

    async def _render_completion(self, body: bytes, reply: Reply, request_id: str) -> None:
        rendered = [
            {"request_id": f"{request_id}-{index}", "token_ids": ids_of(prompt)}
            for index, prompt in enumerate(self._rendered(Endpoint.COMPLETIONS, body))
        ]
        await reply.json(rendered if len(rendered) > 1 else rendered[0])

    def _rendered(self, endpoint: Endpoint, body: bytes) -> tuple[bytes, ...]:
        if not self._config.render:
            raise EngineError(403, "The render endpoints need the engine to be started with --enable-scale-out.")
        return self._reader.prompts(endpoint, _fields(body))

    async def _tokenize(self, body: bytes, reply: Reply, request_id: str) -> None:
        del request_id
        fields = _fields(body)
        endpoint = Endpoint.CHAT if "messages" in fields else Endpoint.COMPLETIONS
        tokens = [token for prompt in self._reader.prompts(endpoint, fields) for token in ids_of(prompt)]
        told = {"count": len(tokens), "max_model_len": self._config.context, "tokens": tokens, "token_strs": None}
        await reply.json(told)

    async def _reset(self, body: bytes, reply: Reply, request_id: str) -> None:
        del body, request_id
        # The engine answers 200 in any case: while sequences run it keeps its cache.
        self.cache.reset()
        await reply.text("", "text/plain; charset=utf-8")

    async def _fault(self, body: bytes, reply: Reply, request_id: str) -> None:
        del request_id
        spec = _fields(body).get("spec")
        if not isinstance(spec, str):
            raise EngineError(400, "spec must be a string; an empty one ends the fault", "spec")
        try:
            await self._set_fault(spec)
        except ValueError as error:
            raise EngineError(400, str(error), "spec") from error
        await reply.json({"spec": spec})


async def _show(fault: FaultSpec, reply: Reply) -> None:
    """Show those faults that come before any work."""
    match fault.fault:
        case Fault.HANG:
            await asyncio.Event().wait()
        case Fault.SLOW:
            await asyncio.sleep(fault.value)
        case Fault.TOO_MANY_REQUESTS:
            raise EngineError(429, "Too many requests.")
        case Fault.SERVER_ERROR:
            raise EngineError(500, "Internal server error.")
        case Fault.DIE_BEFORE_FIRST_BYTE | Fault.REFUSE:
            reply.cut()
        case Fault.GARBAGE:
            reply.garbage()


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None when the client went away before it was complete."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("latin-1")
    return uuid.uuid4().hex


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineError(400, f"The body is no valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise EngineError(400, "The body must be a JSON object")
    return fields
