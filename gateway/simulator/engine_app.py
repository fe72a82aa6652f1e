"""The engine's HTTP API as an ASGI application."""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from gateway.core.engine_facts import EngineKind
from gateway.core.request import Endpoint
from gateway.engines.vllm_prompts import VllmRules
from gateway.simulator.answers import Author
from gateway.simulator.call import Call, ConnectionCutError, EngineError, ReplyWriter, Routes
from gateway.simulator.config import EngineConfig, Identity
from gateway.simulator.faults import Fault, FaultInjector, FaultSpec
from gateway.simulator.pooling import pooling_routes
from gateway.simulator.publisher import ListenError
from gateway.simulator.ranks import Ranks
from gateway.simulator.requests import RequestReader, sglang_salt, vllm_salt
from gateway.simulator.sglang_conversion import encode_as_sglang
from gateway.simulator.sglang_surface import SglangSurface
from gateway.simulator.surface import CONTENT_TYPE, Surface
from gateway.simulator.vllm_surface import VllmSurface
from gateway.simulator.wire import Generator
from gateway.tokenize.local import LocalEncoder

FAULT_PATH = "/simulator/fault"
"""Sets the faults in force."""
MODEL_PATH = "/simulator/model"
"""Replaces what the engine serves."""
CACHE_PATH = "/simulator/cache"
"""Lists the contents of the caches."""
_CONTROLS = {FAULT_PATH, MODEL_PATH, CACHE_PATH}
"""Endpoints of the simulation, not of the engine: faults do not apply to them, and they are not recorded."""

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
    """One engine's endpoints.

    Args:
        config: The engine's configuration.
        ranks: Its caches and schedulers.
        encoder: Tokenizer and chat template of its model.
        faults: Which fault shows when.
        set_fault: Puts a fault spec in force; raises ValueError for a bad one.
    """

    def __init__(
        self,
        config: EngineConfig,
        ranks: Ranks,
        encoder: LocalEncoder,
        faults: FaultInjector,
        set_fault: Callable[[str], Awaitable[None]],
    ) -> None:
        self.requests: deque[RecordedRequest] = deque(maxlen=config.record_requests)
        self._config = config
        self._faults = faults
        self._set_fault = set_fault
        sglang = config.flavor == EngineKind.SGLANG
        adapters = {name: name for name in config.adapters}
        if sglang:
            adapters |= {f"{config.model}:{name}": name for name in config.adapters}
        self._identity = Identity(config)
        self._ranks = ranks
        self._reader = RequestReader(
            encoder,
            model=config.model,
            adapters=adapters,
            identity=self._identity,
            read_salt=_salt_reader(config),
            encode=partial(encode_as_sglang, encoder)
            if sglang
            else partial(encoder.encode, other=VllmRules(excludes_tools=config.excludes_tools)),
        )
        self._surface: Surface = (SglangSurface if sglang else VllmSurface)(config, self._identity, ranks, self._reader)
        self._generator = Generator(Author(encoder), ranks, self._surface, config.keep_alive_seconds)
        self._routes: Routes = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("POST", Endpoint.CHAT): self._chat,
            ("POST", Endpoint.COMPLETIONS): self._completion,
            ("POST", FAULT_PATH): self._fault,
            ("POST", MODEL_PATH): self._model,
            ("GET", CACHE_PATH): self._cache,
            **pooling_routes(self._reader, encoder),
            **self._surface.routes(),
        }
        self._paths = {path for _, path in self._routes}

    def replace_model(
        self, *, root: str = "", version: str = "", max_model_len: int | None = None, restart: bool = False
    ) -> None:
        """Change the served files, the release or the context limit; empty or None leaves a value as it is.

        Args:
            root: Where the model's files are.
            version: Release of the engine.
            max_model_len: Context limit in tokens.
            restart: Act as a new process: the cache is empty, events count from 0, the start time is new.

        Raises:
            ValueError: The cache cannot hold ``max_model_len`` tokens; nothing is changed.
        """
        self._identity.change(root=root, version=version, max_model_len=max_model_len)
        if restart:
            self._ranks.restart()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; if the client disconnects, its work is cancelled."""
        transport: asyncio.Transport = scope["state"]["transport"]
        body = await _read(receive)
        if body is None:
            return
        request_id = _request_id(scope["headers"])
        path = scope["path"]
        if scope["method"] == "POST" and path not in _CONTROLS:
            self.requests.append(RecordedRequest(path, tuple(scope["headers"]), body))
        fault = self._faults.draw(path) if path not in _CONTROLS else None
        reply = ReplyWriter(
            send, transport, request_id, fault, self._surface.error, clock_seconds=self._config.clock_seconds
        )
        call = Call(dict(scope["headers"]), scope["query_string"], body, reply, request_id)
        work = asyncio.ensure_future(self._answer(scope, call, fault))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            await asyncio.wait({work})
            if not work.cancelled() and isinstance(work.exception(), ConnectionCutError):
                # The server reports a missing answer as an error unless the client has disconnected.
                await gone
            gone.cancel()
        if (
            not work.cancelled()
            and (error := work.exception()) is not None
            and not isinstance(error, ConnectionCutError)
        ):
            raise error

    async def _answer(self, scope: Scope, call: Call, fault: FaultSpec | None) -> None:
        try:
            if fault is not None:
                await _show(fault, call.reply)
            route = self._routes.get((scope["method"], scope["path"]))
            if route is None:
                known = scope["path"] in self._paths
                raise EngineError(405, "Method Not Allowed") if known else EngineError(404, "Not Found")
            await route(call)
        except EngineError as error:
            await call.reply.error(error)

    async def _health(self, call: Call) -> None:
        await call.reply.text("", "text/plain; charset=utf-8")

    async def _models(self, call: Call) -> None:
        base = self._config.model
        cards = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": self._surface.owner,
                "root": self._surface.root if name == base else name,
                "parent": None if name == base else base,
                "max_model_len": self._identity.context if name == base else None,
            }
            for name in (base, *self._config.adapters)
        ]
        await call.reply.json({"object": "list", "data": cards})

    async def _metrics(self, call: Call) -> None:
        await call.reply.text(self._surface.metrics(), CONTENT_TYPE)

    async def _chat(self, call: Call) -> None:
        await self._generate(Endpoint.CHAT, call)

    async def _completion(self, call: Call) -> None:
        await self._generate(Endpoint.COMPLETIONS, call)

    async def _generate(self, endpoint: Endpoint, call: Call) -> None:
        request = self._reader.generation(endpoint, call.fields())
        await self._generator.answer(request, call.reply, call.request_id, call.rank())

    async def _fault(self, call: Call) -> None:
        spec = call.fields().get("spec")
        if not isinstance(spec, str):
            raise EngineError(400, "spec must be a string; an empty one ends all faults", "spec")
        try:
            await self._set_fault(spec)
        except ValueError as error:
            raise EngineError(400, str(error), "spec") from error
        except ListenError as error:
            raise EngineError(500, str(error)) from error
        await call.reply.json({"spec": spec})

    async def _model(self, call: Call) -> None:
        fields = call.fields()
        kinds = {"root": str, "version": str, "max_model_len": int, "restart": bool}
        for name, value in fields.items():
            if name not in kinds or type(value) is not kinds[name]:
                raise EngineError(400, f"expected {', '.join(f'{n} ({k.__name__})' for n, k in kinds.items())}", name)
        try:
            self.replace_model(**fields)
        except ValueError as error:
            raise EngineError(400, str(error), "max_model_len") from error
        served = {"root": self._identity.root, "version": self._identity.version}
        await call.reply.json(served | {"max_model_len": self._identity.context})

    async def _cache(self, call: Call) -> None:
        await call.reply.json(
            {
                "ranks": [
                    [
                        {"tokens": block.tokens, "copies": block.copies, "salt": block.salt, "adapter": block.adapter}
                        for block in rank.content()
                    ]
                    for rank in self._ranks.all
                ]
            }
        )


def _salt_reader(config: EngineConfig) -> Callable[[Mapping[str, Any]], str]:
    """Takes the cache salt from a request's body."""
    if config.ignores_salt:
        return lambda _: ""
    read = sglang_salt if config.flavor == EngineKind.SGLANG else vllm_salt
    return _refused_salt if config.refuses_salt else read


def _refused_salt(fields: Mapping[str, Any]) -> str:
    if "cache_salt" in fields:
        raise EngineError(400, "cache_salt is not supported", "cache_salt")
    return ""


async def _show(fault: FaultSpec, reply: ReplyWriter) -> None:
    """Show those faults that come before any work."""
    match fault.fault:
        case Fault.HANG | Fault.CONNECT_HANG:
            await reply.hang()
        case Fault.SLOW:
            await asyncio.sleep(fault.value)
        case Fault.TOO_MANY_REQUESTS:
            raise EngineError(429, "Too many requests.")
        case Fault.SERVER_ERROR | Fault.BAD_GATEWAY | Fault.UNAVAILABLE | Fault.GATEWAY_TIMEOUT:
            status = HTTPStatus(int(fault.fault))
            raise EngineError(status, f"{status.phrase}.")
        case Fault.DIE_BEFORE_FIRST_BYTE | Fault.REFUSE:
            reply.cut()
        case Fault.RESET | Fault.CONNECT_RESET:
            reply.reset()
        case Fault.GARBAGE:
            reply.garbage()


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None if the client disconnected before it was complete."""
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
