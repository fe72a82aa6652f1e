"""Encodes requests: with the local tokenizer, else the engine's, else as placeholder tokens made of the text.

Placeholder tokens are four bytes of text each, about the length of a real token. Two prompts with the same beginning
get the same placeholders up to there, which is sufficient for routing. They are never counted as tokens of the model.

Prompts are checked for size before they are encoded. Some steps are single calls that hold the interpreter lock until
they are done: rendering with minijinja, writing tools as JSON, parsing a call's arguments, handing the text to the
tokenizer. Within these bounds each of them takes some 10 ms at most.

``least_tokens`` is a lower bound of a prompt's tokens, before it is encoded.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from gateway.core.errors import Overloaded, TokenizerUnavailable
from gateway.core.portions import Portioned
from gateway.core.ports import EngineUnavailable, LongTexts
from gateway.core.prompt import TEXT_PARTS, TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.core.request import ChatRequest, Endpoint
from gateway.engines import ChatRules
from gateway.tokenize.conversation import written
from gateway.tokenize.engine_tokenizer import EngineTokenizer
from gateway.tokenize.local import LocalEncoder, given_ids

_CHARACTERS_PER_TOKEN = 16
"""Characters per token, more than in ordinary text (prose has four to five, deeply indented source code up to ten), so
that the estimate is a lower bound."""

_PART_TEXTS = ("text", "refusal", "thinking")


_AT_ONCE = 4096
"""Messages, parts and prompts per portion."""


def characters(endpoint: Endpoint, fields: Mapping[str, Any]) -> Portioned[int]:
    """Characters of a request's text. A prompt given as token ids has none; media and tools are left out."""
    if endpoint is Endpoint.CHAT:
        return (yield from _characters_of_messages(_list(fields.get("messages"))))
    prompt = fields.get("prompt")
    return (yield from _characters_of_prompts(prompt if isinstance(prompt, list) else [prompt]))


def _characters_of_messages(messages: Sequence[Any]) -> Portioned[int]:
    total = step = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            for part in content:
                total += _characters_of_part(part)
                step += 1
                if step % _AT_ONCE == 0:
                    yield
        step += 1
        if step % _AT_ONCE == 0:
            yield
    return total


def _characters_of_part(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    if not isinstance(part, dict):
        return 0
    return sum(len(text) for key in _PART_TEXTS if isinstance(text := part.get(key), str))


def _characters_of_prompts(prompts: Sequence[Any]) -> Portioned[int]:
    if prompts and type(prompts[0]) is int:
        return 0
    total = 0
    for step, prompt in enumerate(prompts, 1):
        total += len(prompt) if isinstance(prompt, str) else 0
        if step % _AT_ONCE == 0:
            yield
    return total


def least_tokens(endpoint: Endpoint, fields: Mapping[str, Any]) -> Portioned[int]:
    """Lower bound of a request's prompt tokens."""
    tokens = (yield from characters(endpoint, fields)) // _CHARACTERS_PER_TOKEN
    if endpoint is not Endpoint.CHAT:
        tokens += _ids(fields.get("prompt"))
    limit = fields.get("truncate_prompt_tokens")
    return min(tokens, limit) if type(limit) is int and limit > 0 else tokens


def _ids(prompt: Any) -> int:
    """Token ids in a prompt that is a list of them, or a list of such lists."""
    if not isinstance(prompt, list) or not prompt:
        return 0
    if isinstance(prompt[0], int):
        return len(prompt)
    return sum(len(each) for each in prompt if isinstance(each, list))


MAX_TEXT_BYTES = 4 * 1024 * 1024
"""Characters of a prompt's texts together, or bytes where they take more than one: about a million tokens."""

MAX_PIECES = 20_000
"""Messages, parts, tools and their members, and values in the arguments of tool calls."""

_STRUCTURE = "[{:,"


class PromptTooLarge(TokenizerUnavailable):
    """A prompt exceeds a bound. No engine is asked for its tokens: the answer would be as large."""


def check_size(endpoint: Endpoint, fields: Mapping[str, Any]) -> None:
    """Check a prompt. Token ids are not counted, nor are content parts that are no text, which only engines encode.

    Raises:
        PromptTooLarge: it exceeds a bound.
    """
    size = _Size()
    if endpoint is Endpoint.CHAT:
        for message in _list(fields.get("messages")):
            parts = message.get("content") if isinstance(message, dict) else None
            size.add([part for part in parts if _is_text(part)] if isinstance(parts, list) else parts)
            size.add({name: value for name, value in message.items() if name != "content"} if parts else message)
        for name in ("tools", "chat_template_kwargs", "documents"):
            size.add(fields.get(name))
        return
    prompt = fields.get("prompt")
    for text in prompt if isinstance(prompt, list) else (prompt,):
        if isinstance(text, str):
            size.add(text)


class _Size:
    """Size of the added values."""

    def __init__(self) -> None:
        self._pieces = 0
        self._bytes = 0

    def add(self, value: Any) -> None:
        """Add a value with all its members."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            self._pieces += 1
            if isinstance(value, str):
                self._bytes += len(value) if value.isascii() else sys.getsizeof(value)
            elif isinstance(value, dict):
                if isinstance(arguments := value.get("arguments"), str):
                    self._pieces += sum(map(arguments.count, _STRUCTURE))
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
            if self._pieces + len(waiting) > MAX_PIECES:
                raise PromptTooLarge("the prompt has too many messages, parts or values")
            if self._bytes > MAX_TEXT_BYTES:
                raise PromptTooLarge("the text of the prompt is too long")


def _is_text(part: Any) -> bool:
    return not isinstance(part, dict) or part.get("type", "text") in TEXT_PARTS


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


MAX_BYTES = 4 * 1024 * 1024
"""Bytes of a placeholder prompt: a million tokens. Longer ones are cut, and rarely differ only behind that."""


def stand_in(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    """One placeholder prompt per prompt of the request."""
    if endpoint is Endpoint.CHAT:
        # Tools first: nearly every template renders them before the conversation.
        return (_padded(_joined([fields.get("tools"), *_as_list(fields.get("messages"))])),)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return tuple(_padded(_written(item)) for item in prompt)
    return (_padded(_written(prompt)),)


def _joined(pieces: Sequence[Any]) -> bytes:
    """Join the pieces up to the maximum length."""
    texts: list[bytes] = []
    size = 0
    for piece in pieces:
        texts.append(_written(piece))
        size += len(texts[-1]) + 1
        if size > MAX_BYTES:
            break
    return b"\n".join(texts)[:MAX_BYTES]


def _written(value: Any) -> bytes:
    return written(_shortened(value))[:MAX_BYTES]


def _shortened(value: Any) -> Any:
    """A prompt, or a message with its content, without what would be cut off in any case."""
    if isinstance(value, str):
        # Other characters than ASCII take up to four bytes.
        return value[: MAX_BYTES if value.isascii() else MAX_BYTES // 4]
    if isinstance(value, dict) and isinstance(content := value.get("content"), str):
        return value | {"content": _shortened(content)}
    return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % TOKEN_BYTES)


_LOCAL = TokenSource.LOCAL  # looking up a member of an enum takes as long as several other look-ups

_SMALL_BYTES = 32 * 1024
"""A body up to this size cannot exceed the bounds of ``size``."""

_log = structlog.get_logger("gateway.tokenize")


class Encoder:
    """Encodes the requests of one model.

    Args:
        local: The model's tokenizer, or None where there is none in this process.
        engine: The engine's own tokenizer, asked when the local one is missing or cannot encode a request.
        threads: Threads for long texts.
        inline_bytes: Bodies up to this size are encoded on the event loop; encoding takes about 0.1 ms per KiB of
            text never seen before, and a hop to a thread costs about as much as one KiB.
    """

    def __init__(
        self, local: LocalEncoder | None, engine: EngineTokenizer, threads: LongTexts, inline_bytes: int
    ) -> None:
        self.local = local
        self._engine = engine
        self._threads = threads
        self._inline_bytes = inline_bytes
        self._plain_bytes = -1 if local is None else min(inline_bytes, _SMALL_BYTES)

    async def encode(self, request: ChatRequest) -> TokenizedPrompt:
        """Token ids of a request, or placeholders if it cannot be encoded.

        Raises:
            Overloaded: its text is long, and too many of the tenant's long texts wait for a thread.
        """
        try:
            if self.local is not None and len(request.body) <= self._plain_bytes:
                parts = self.local.encode(request.endpoint, request.fields)
            else:
                parts = await self._work(request, self._checked_parts)
            return TokenizedPrompt(parts, _LOCAL)
        except PromptTooLarge:
            return await self._stand_in(request)
        except TokenizerUnavailable:
            pass  # a prompt only the engine can encode
        except Overloaded:
            raise
        except Exception:  # noqa: BLE001 - a tokenizer's failure must not cost the client its answer
            _log.exception("tokenizer_failed", model=request.model, request_id=request.request_id)
        try:
            return await self._engine.encode(request)
        except EngineUnavailable:
            return await self._stand_in(request)

    @property
    def rules(self) -> ChatRules:
        """The rules of the engine, by which chat requests become prompts."""
        return self._engine.rules

    def takes_chats(self, takes: bool) -> None:
        """Whether the engine makes tokens of chat requests."""
        self._engine.takes_chats = takes

    def use(self, rules: ChatRules) -> None:
        """Follow other rules from now on."""
        self._engine.rules = rules
        if self.local is not None:
            self.local.use(rules)

    async def count(self, request: ChatRequest, fields: Mapping[str, Any], rules: Sequence[ChatRules]) -> list[int]:
        """Tokens of a request by several rules; 0 where it cannot be encoded here.

        Args:
            request: The request.
            fields: Its body, parsed anew: the request's own are gone when it is answered.
            rules: The rules.

        Raises:
            Overloaded: as ``encode``.
        """

        local = self.local
        if local is None:
            return [0 for _ in rules]

        def encoded(endpoint: Endpoint, each: ChatRules) -> bytes:
            try:
                return b"".join(local.encode(endpoint, fields, each))
            except TokenizerUnavailable:
                return b""

        parts = await self._work(request, lambda endpoint, _: tuple(encoded(endpoint, each) for each in rules))
        return [len(part) // TOKEN_BYTES for part in parts]

    def _checked_parts(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
        check_size(endpoint, fields)
        return given_ids(endpoint, fields) if self.local is None else self.local.encode(endpoint, fields)

    async def _stand_in(self, request: ChatRequest) -> TokenizedPrompt:
        return TokenizedPrompt(await self._work(request, stand_in), TokenSource.TEXT, variant="text")

    async def _work(
        self, request: ChatRequest, function: Callable[[Endpoint, Mapping[str, Any]], tuple[bytes, ...]]
    ) -> tuple[bytes, ...]:
        """The prompts that a function makes of a request: here, or for a large one in a thread."""
        if len(request.body) <= self._inline_bytes:
            return function(request.endpoint, request.fields)
        tenant = request.caller.tenant
        return await self._threads.run(tenant, len(request.body), function, request.endpoint, request.fields)

    async def encode_reply(self, text: str, request: ChatRequest, source: TokenSource) -> bytes | None:
        """Token ids of text generated for a request, by the tokenizer of its prompt; None if that does not answer."""
        try:
            if source in (TokenSource.ENGINE_RENDER, TokenSource.ENGINE_TOKENIZE):
                return await self._engine.encode_text(request, text)
            if source is not _LOCAL or self.local is None:
                return None
            if len(text) <= self._inline_bytes:
                return self.local.tokens.encode(text, add_special_tokens=False)
            return await self._threads.run(request.caller.tenant, len(text), self.local.encode_text, text)
        except (EngineUnavailable, Overloaded):
            return None
