"""From a request to its token ids: by the local tokenizer, else the engine's, else stand-ins made of the text."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gateway.core.errors import Overloaded, TokenizerUnavailable
from gateway.core.ports import EngineUnavailable, LongTexts
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import Tenant
from gateway.tokenize.engine_tokenizer import EngineTokenizer
from gateway.tokenize.local import LocalEncoder
from gateway.tokenize.stand_in import stand_in
from gateway.tokenize.text_size import PromptTooLarge, check_size

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

    async def encode(self, request: ChatRequest) -> TokenizedPrompt:
        """Token ids of a request; the last resort is a stand-in made of the text itself.

        Raises:
            Overloaded: its text is long, and too many of the tenant's long texts wait for a thread. Stand-ins would
                spare the thread, but not the work behind it.
        """
        try:
            is_small = len(request.body) <= _SMALL_BYTES
            parts = await self._work(request, self._local_parts if is_small else self._checked_parts)
            return TokenizedPrompt(parts, TokenSource.LOCAL)
        except PromptTooLarge:
            return await self._stand_in(request)
        except TokenizerUnavailable:
            pass  # a prompt only the engine can encode
        except Overloaded:
            raise
        except Exception:  # noqa: BLE001 - a tokenizer's failure must not cost the client its answer
            _log.exception("tokenizer_failed", model=request.model, request_id=request.request_id)
        try:
            return await self._engine.encode(request, now=request.received_at)
        except EngineUnavailable:
            return await self._stand_in(request)

    def _checked_parts(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
        check_size(endpoint, fields)
        return self._local_parts(endpoint, fields)

    def _local_parts(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
        if self.local is None:
            raise TokenizerUnavailable("the model has no tokenizer in this process")
        return self.local.encode(endpoint, fields)

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

    async def encode_reply(self, text: str, tenant: Tenant) -> bytes | None:
        """Token ids of text generated for a tenant; None without a local tokenizer, or without a thread for it."""
        if self.local is None:
            return None
        if len(text) <= self._inline_bytes:
            return self.local.encode_text(text)
        try:
            return await self._threads.run(tenant, len(text), self.local.encode_text, text)
        except Overloaded:
            return None
