"""Block hashes of prompts as arrays, for the tables of computed blocks."""

from typing import Protocol

import numpy as np

from gateway.core.block_chain import BlockChain
from gateway.core.explanation import RequestRecord, SpaceKey
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen.block_table import Hashes


class PromptChains(Protocol):
    """Hashes prompts."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """The root hash of chains."""
        ...

    def chain(self, root: int, tokens: bytes, block_size: int) -> BlockChain:
        """The chain of a prompt."""
        ...

    def extended(self, root: int, chain: BlockChain, rest: bytes, tokens: int) -> BlockChain:
        """The chain of a longer prompt, of ``tokens`` tokens; ``rest`` are those after the last block of ``chain``."""
        ...


class PromptHashes:
    """Hashes prompts from a root common to all spaces.

    The last prompt is remembered: its blocks are looked up, recorded with the reply, and recorded by observed rules.

    Args:
        chains: Hashes prompts.
    """

    def __init__(self, chains: PromptChains) -> None:
        self._chains = chains
        self._last: tuple[tuple[str, int, bytes], BlockChain, Hashes] | None = None

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """As ``PromptChains.root``."""
        return self._chains.root(model, adapter, salt)

    def of(self, record: RequestRecord, tokens: bytes, reply: bytes = b"") -> Hashes:
        """The hashes of the full blocks of a prompt.

        Args:
            record: The request.
            tokens: Token ids of the prompt, little-endian u32.
            reply: Token ids that follow it.
        """
        key = record.where.variant, record.block_size, tokens
        if self._last is None or self._last[0] != key:
            chain = self._chains.chain(self._root(record), tokens, record.block_size)
            self._last = key, chain, np.array(chain.hashes, np.uint64)
        _, chain, hashes = self._last
        if (chain.tokens % record.block_size) * TOKEN_BYTES + len(reply) < record.block_size * TOKEN_BYTES:
            return hashes
        rest = tokens[len(chain.hashes) * record.block_size * TOKEN_BYTES :] + reply
        total = (len(tokens) + len(reply)) // TOKEN_BYTES
        longer = self._chains.extended(self._root(record), chain, rest, total)
        return np.concatenate((hashes, np.array(longer.hashes[len(chain.hashes) :], np.uint64)))

    def _root(self, record: RequestRecord) -> int:
        return self._chains.root(ModelId(""), "", record.where.variant)


def space_name(where: SpaceKey) -> str:
    """A text that is different for each space."""
    return "\0".join(str(getattr(where, name)) for name in where.__struct_fields__)
