"""The room's front: a request in, its token ids out, whatever has to stand in for the tokenizer."""

import asyncio
from concurrent.futures import Executor

import structlog

from gateway.encode.local import LocalEncoder
from gateway.encode.remote import EngineTokenizer
from gateway.encode.text import stand_in
from gateway.values.errors import TokenizerUnavailable
from gateway.values.ports import EngineUnavailable
from gateway.values.prompt import TokenizedPrompt, TokenSource
from gateway.values.request import ChatRequest

_log = structlog.get_logger("gateway.encode")


class Encoder:
    """Encodes the requests of one model.

    Args:
        local: The model's tokenizer, or None where there is none in this process.
        engine: The engine's own tokenizer, asked when the local one is missing or cannot encode a request.
        executor: Threads for long texts.
        inline_bytes: Bodies up to this size are encoded on the event loop; encoding takes about 0.1 ms per KiB of
            text never seen before, and a hop to a thread costs about as much as one KiB.
    """

    def __init__(
        self, local: LocalEncoder | None, engine: EngineTokenizer, executor: Executor, inline_bytes: int
    ) -> None:
        self.local = local
        self._engine = engine
        self._executor = executor
        self._inline_bytes = inline_bytes

    async def encode(self, request: ChatRequest) -> TokenizedPrompt:
        """Token ids of a request. Never fails: the last resort is a stand-in made of the text itself."""
        if self.local is not None:
            try:
                if len(request.body) <= self._inline_bytes:
                    parts = self.local.encode(request.endpoint, request.fields)
                else:
                    loop = asyncio.get_running_loop()
                    parts = await loop.run_in_executor(
                        self._executor, self.local.encode, request.endpoint, request.fields
                    )
                return TokenizedPrompt(parts, TokenSource.LOCAL)
            except TokenizerUnavailable:
                pass  # a prompt only the engine can encode
            except Exception:  # noqa: BLE001 - a tokenizer's failure must not cost the client its answer
                _log.exception("tokenizer_failed", model=request.model, request_id=request.request_id)
        try:
            return await self._engine.encode(request, now=request.received_at)
        except EngineUnavailable:
            return TokenizedPrompt(stand_in(request.endpoint, request.fields), TokenSource.TEXT, variant="text")

    async def encode_reply(self, text: str) -> bytes | None:
        """Token ids of generated text, or None without a local tokenizer."""
        if self.local is None:
            return None
        if len(text) <= self._inline_bytes:
            return self.local.encode_text(text)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.local.encode_text, text)
