"""Gets the token ids of a request from the engine.

vLLM has two ways: ``…/render`` returns the ids exactly as it will use them, but only when started with
``--enable-scale-out`` (403 otherwise); ``/tokenize`` is always there and ignores a few template arguments. SGLang has
``/tokenize``, which takes chat requests from 0.5.12 on and encodes them as for an answer.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gateway.core.engine_facts import EngineKind
from gateway.core.ids import ModelId
from gateway.core.json_portions import InvalidJson, JsonLimits, TooMuchJson, parsed
from gateway.core.portions import finished
from gateway.core.ports import EngineCaller, EngineUnavailable, LongTexts
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.request import ChatRequest, Endpoint
from gateway.engines import ChatRules, parse_media
from gateway.engines.vllm_prompts import VllmRules
from gateway.tasks import in_task
from gateway.tokenize.backends import pack
from gateway.tokenize.conversation import media_variant, written

_REFUSALS = (403, 404, 405)
"""Statuses of an engine that does not have an endpoint."""

_RETRY_AFTER_SECONDS = 60.0

_MAX_PROMPTS = 16
"""Prompts of one request that are tokenized by a call each. More prompts get placeholder tokens: the
calls would delay the request for longer than a good placement saves, and load the engine."""

_PATIENCE = 2
"""All calls for one request take at most this many times the timeout of one, so that a replica that does not answer
leaves time to ask another."""

_SHORT_BYTES = 256 * 1024
"""Requests and answers up to this size are written and read on the event loop; others in a thread, in portions."""

_ANSWER_LIMITS = JsonLimits(depth=512, containers=200_000, members=1_000_000, values=20_000_000)

T = TypeVar("T")


class EngineTokenizer:
    """Token ids from the best endpoint that the engine has.

    An endpoint the engine refuses to have (403, 404, 405) is not asked again for a minute; an engine that does not
    answer is asked again with the next request.

    Attributes:
        rules: The rules that the engine follows.
        takes_chats: Whether it makes tokens of chat requests.
    """

    def __init__(self, model: ModelId, engines: EngineCaller, threads: LongTexts, timeout_seconds: float) -> None:
        self._model = model
        self._engines = engines
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._refused_until: dict[str, float] = {}
        self.rules: ChatRules = VllmRules()
        self.takes_chats = True

    async def encode(self, request: ChatRequest) -> TokenizedPrompt:
        """Token ids of a request.

        Raises:
            EngineUnavailable: no endpoint gave an answer that can be used in time.
            Overloaded: too many of the tenant's long texts wait for a thread.
        """
        await in_task()
        try:
            async with asyncio.timeout(_PATIENCE * self._timeout_seconds):
                return await self._encode(request)
        except TimeoutError as error:
            raise EngineUnavailable("the engine takes too long to count the prompt's tokens") from error

    async def encode_text(self, request: ChatRequest, text: str) -> bytes:
        """Token ids of text that was generated for a request; raises as ``encode``."""
        await in_task()
        return await self._tokens(request, {"prompt": text, "add_special_tokens": False}, len(text))

    async def _encode(self, request: ChatRequest) -> TokenizedPrompt:
        variant = await self._work(request, len(request.body), lambda: media_variant(request.fields))
        if self.rules.engine is EngineKind.VLLM:
            try:
                return _rendered(await self._ask(request, f"{request.endpoint}/render", request.body), variant)
            except EngineUnavailable as error:
                if error.status not in _REFUSALS:
                    raise
        return TokenizedPrompt(await self._tokenize(request), TokenSource.ENGINE_TOKENIZE, variant=variant)

    async def _tokenize(self, request: ChatRequest) -> tuple[bytes, ...]:
        if request.endpoint is Endpoint.CHAT:
            fields = self.rules.tokenize_fields
            if not self.takes_chats or ("input_ids" in request.fields and "tool_choice" in fields):
                raise EngineUnavailable("the engine cannot tokenize this chat")
            body = {key: request.fields[key] for key in request.fields if key in fields}
            if self.rules == VllmRules(excludes_tools=True) and request.fields.get("tool_choice") == "none":
                body.pop("tools", None)
            return (await self._tokens(request, body, len(request.body)),)
        prompt = request.fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        if not prompts or not all(isinstance(item, str) for item in prompts):
            raise EngineUnavailable("only text can be tokenized by the engine")
        if len(prompts) > _MAX_PROMPTS:
            raise EngineUnavailable(f"more than {_MAX_PROMPTS} prompts, each of which would be a call")
        return tuple([await self._tokens(request, {"prompt": item}, len(request.body)) for item in prompts])

    async def _tokens(self, request: ChatRequest, fields: dict[str, Any], size: int) -> bytes:
        asked = await self._work(request, size, lambda: written({"model": self._model} | fields))
        return _ids(await self._ask(request, "/tokenize", asked), "tokens")

    async def _ask(self, request: ChatRequest, path: str, body: bytes) -> Any:
        now, regions = request.received_at, request.caller.tenant.regions
        if now < self._refused_until.get(path, 0.0):
            raise EngineUnavailable(f"the engine does not offer {path}", _REFUSALS[0])
        try:
            answer = await self._engines.ask(self._model, path, body, self._timeout_seconds, regions)
        except EngineUnavailable as error:
            if error.status in _REFUSALS:
                self._refused_until[path] = now + _RETRY_AFTER_SECONDS
            raise
        reading = parsed(answer, _ANSWER_LIMITS)
        try:
            return await self._work(request, len(answer), lambda: finished(reading))
        except (InvalidJson, TooMuchJson) as error:
            raise EngineUnavailable(f"{path} answered something that is not JSON") from error

    async def _work(self, request: ChatRequest, size: int, function: Callable[[], T]) -> T:
        """Call a function, in a thread if its input is large."""
        if size <= _SHORT_BYTES:
            return function()
        return await self._threads.run(request.caller.tenant, size, function)


def _rendered(answer: Any, variant: str) -> TokenizedPrompt:
    """Chat renders to one object, completions to a list with one object per prompt.

    Args:
        answer: The engine's answer.
        variant: Digest of the media, if the answer does not locate them.
    """
    items = answer if isinstance(answer, list) else [answer]
    if not items:
        raise EngineUnavailable("the engine rendered nothing")
    parts = tuple(_ids(item, "token_ids") for item in items)
    media = tuple(parse_media(item.get("features")) or () for item in items)
    known = any(media)
    return TokenizedPrompt(parts, TokenSource.ENGINE_RENDER, media if known else (), "" if known else variant)


def _ids(answer: Any, key: str) -> bytes:
    ids = answer.get(key) if isinstance(answer, Mapping) else None
    if not isinstance(ids, list):
        raise EngineUnavailable(f"the engine's answer holds no {key}")
    try:
        return pack(ids)
    except (TypeError, OverflowError) as error:
        raise EngineUnavailable(f"the engine's {key} are no token ids") from error
