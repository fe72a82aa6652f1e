"""Which tokens of a prompt an engine reports as cached, if one cache that never evicts computes all prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.tokenize.load_tokenizer import load_local

TOKENIZER = "builtin:demo"
_BLOCK = 16


class HeldBlocks:
    """The blocks computed so far.

    Attributes:
        encoder: Encodes prompts and answers, as a gateway with this tokenizer does.
    """

    def __init__(self) -> None:
        self.encoder = load_local(TOKENIZER)
        self._held: set[int] = set()

    def compute(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """The tokens of a chat, and how many of them were held before; all of its blocks are held afterwards."""
        (ids,) = self.encoder.encode(Endpoint.CHAT, {"messages": messages})
        return len(ids) // TOKEN_BYTES, self.compute_tokens(ids)

    def compute_tokens(self, ids: bytes, answer: bytes = b"") -> int:
        """As ``compute``, of token ids (little-endian u32); afterwards the blocks of the answer are held as well.

        The last token of a prompt is computed in any case, and that of an answer never is.
        """
        size = _BLOCK * TOKEN_BYTES
        reusable, whole = (len(ids) - TOKEN_BYTES) // size, ids + answer[:-TOKEN_BYTES]
        held, known, chain = 0, True, 0
        for number in range(len(whole) // size):
            chain = hash((chain, whole[number * size : (number + 1) * size]))
            known = known and chain in self._held
            held += known and number < reusable
            self._held.add(chain)
        return held * _BLOCK
