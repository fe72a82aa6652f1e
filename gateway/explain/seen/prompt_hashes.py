"""Block hashes of prompts as arrays, for the memories of computed blocks."""

from array import array

from xxhash import xxh3_128_digest

from gateway.core.block_chain import BlockChain
from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import RequestRecord, SpaceKey
from gateway.core.ids import BlockHash, ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen.block_tree import Hashes
from gateway.tokenize.block_hashes import ChainHasher

_MEMO_BYTES = 4 * 1024 * 1024
"""Memory for the hashes of the latest prompts: about 3000 prompts of 2000 tokens."""

_MEMO_ENTRY_BYTES = 400
_MEMO_ROOTS = 1000


class PromptHashes:
    """Hashes prompts from a root common to all spaces.

    The latest prompts are remembered: the blocks of each are looked up, recorded with the reply, and recorded by
    observed rules, and many prompts are sent again.

    Args:
        chains: Hashes prompts.
    """

    def __init__(self, chains: ChainHasher) -> None:
        self._chains = chains
        self._known: BoundedCache[tuple[int, int, bytes], Hashes] = BoundedCache(max_weight=_MEMO_BYTES)
        self._last: tuple[tuple[int, int, bytes], Hashes] | None = None
        # The hashes of a prompt, a reply, and the hashes with it.
        self._last_reply: tuple[Hashes, bytes, Hashes] | None = None
        self._space_roots: BoundedCache[tuple[SpaceKey, str], int] = BoundedCache(_MEMO_ROOTS)

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """The root hash of chains."""
        return self._chains.root(model, adapter, salt)

    def space_root(self, where: SpaceKey, epoch: str) -> int:
        """A root that is different for each space, and for each epoch of a space."""
        key = where, epoch
        root = self._space_roots.get(key)
        if root is None:
            root = self._chains.root(ModelId(where.model), epoch, space_name(where))
            self._space_roots.put(key, root)
        return root

    def of(self, record: RequestRecord, tokens: bytes, reply: bytes = b"") -> Hashes:
        """The hashes of the full blocks of a prompt; not to be changed.

        Args:
            record: The request.
            tokens: Token ids of the prompt, little-endian u32.
            reply: Token ids that follow it.
        """
        root, size = self._chains.root(ModelId(""), "", record.where.variant), record.block_size
        hashes = self._prompt(root, tokens, size)
        rest = tokens[len(hashes) * size * TOKEN_BYTES :] + reply
        if len(rest) < size * TOKEN_BYTES:
            return hashes
        last = self._last_reply
        if last is not None and last[0] is hashes and last[1] == reply:
            return last[2]
        chain = BlockChain([BlockHash(hashes[-1] if hashes else root)], size, len(tokens) // TOKEN_BYTES)
        longer = self._chains.extended(root, chain, rest, (len(tokens) + len(reply)) // TOKEN_BYTES)
        replied = hashes + array("Q", longer.hashes[1:])
        self._last_reply = hashes, reply, replied
        return replied

    def _prompt(self, root: int, tokens: bytes, block_size: int) -> Hashes:
        last = self._last
        if last is not None and last[0] == (root, block_size, tokens):
            return last[1]
        # A digest of the tokens: as a part of the key themselves, they would be kept.
        key = root, block_size, xxh3_128_digest(tokens)
        known = self._known.get(key)
        if known is None:
            known = array("Q", self._chains.chain(root, tokens, block_size).hashes)
            self._known.put(key, known, weight=_MEMO_ENTRY_BYTES + known.itemsize * len(known))
        self._last = (root, block_size, tokens), known
        return known


def space_name(where: SpaceKey) -> str:
    """A text that is different for each space."""
    return "\0".join(str(getattr(where, name)) for name in where.__struct_fields__)
