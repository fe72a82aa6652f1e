"""Prompts as token ids, made from the block ids of a trace: equal ids are equal tokens."""

import hashlib
from array import array
from functools import lru_cache

from gateway.evaluation.workload_trace import TraceRequest

_IDS = 4096
"""Different token ids. A block of 16 tokens or more is as good as unique among 4096 to the power of its length."""

_TEXTS = [str(number) for number in range(_IDS)]
_KEPT_BLOCKS = 4096
"""Blocks whose JSON is kept, of 2.4 KB each at 512 tokens."""


class TokenPrompts:
    """Writes the bodies of requests to ``/v1/completions``.

    Args:
        model: Id of the model.
        block_size: Tokens per block.
    """

    def __init__(self, model: str, block_size: int) -> None:
        self._model = model
        self._size = block_size
        self._block = lru_cache(_KEPT_BLOCKS)(self._texts)

    def body(self, request: TraceRequest) -> bytes:
        """The JSON of a streamed completion of exactly ``output_tokens`` tokens."""
        full = request.prompt_tokens // self._size
        pieces = [",".join(self._block(block)) for block in request.blocks[:full]]
        if rest := request.prompt_tokens - full * self._size:
            pieces.append(",".join(self._block(request.blocks[full])[:rest]))
        return (
            f'{{"model":"{self._model}","max_tokens":{request.output_tokens},"ignore_eos":true,"stream":true,'
            f'"stream_options":{{"include_usage":true}},"prompt":[{",".join(pieces)}]}}'
        ).encode()

    def ids(self, block: int) -> list[int]:
        """The token ids of a block."""
        # Little-endian u16, each reduced to 12 bits.
        drawn = array("H", hashlib.shake_128(f"block {block}".encode()).digest(2 * self._size))
        return [number % _IDS for number in drawn]

    def _texts(self, block: int) -> tuple[str, ...]:
        return tuple(_TEXTS[number] for number in self.ids(block))
