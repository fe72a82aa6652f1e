"""Chained block hashes: ``h0 = xxh3_64(space)``, ``h(i) = xxh3_64(h(i-1) + tokens of block i)``.

Hashes are little-endian u64, tokens little-endian u32. A hash stands for everything up to the end of its block, so two
chains that share ``h(i)`` share the whole prefix. The hash only steers routing; the engine decides with its own, so a
collision can cost time and never leak anything.
"""

import dataclasses

from xxhash import xxh3_64_intdigest

from gateway.values.blocks import BlockChain
from gateway.values.ids import BlockHash
from gateway.values.prompt import TOKEN_BYTES
from gateway.values.space import PrefixSpace

_RUN_BLOCKS = 32
"""Blocks hashed (and remembered) in one go. Longer runs remember less of a prompt that is only partly known."""

_MEMO_RUNS = 4096
"""Runs remembered: about 12 MiB with blocks of 16 tokens."""


def space_root(space: PrefixSpace) -> int:
    """The hash every chain of a space starts from. Tags and lengths keep its parts apart."""
    encoded = bytearray()
    for field in dataclasses.fields(space):
        value = str(getattr(space, field.name)).encode()
        for part in (field.name.encode(), value):
            encoded += len(part).to_bytes(4, "little") + part
    return xxh3_64_intdigest(bytes(encoded))


class ChainHasher:
    """Hashes prompts, remembering runs of blocks: the beginning of most prompts was hashed a moment ago."""

    def __init__(self) -> None:
        # Two generations: when the young one is full it becomes the old one, and what is still in use moves back.
        self._young: dict[tuple[int, bytes], list[BlockHash]] = {}
        self._old: dict[tuple[int, bytes], list[BlockHash]] = {}

    def chain(self, root: int, tokens: bytes, block_size: int) -> BlockChain:
        """Block chain of one prompt.

        Args:
            root: ``space_root`` of the prompt's space.
            tokens: Token ids, little-endian u32.
            block_size: Tokens per block.
        """
        block = block_size * TOKEN_BYTES
        end = len(tokens) // block * block
        run = block * _RUN_BLOCKS
        hashes: list[BlockHash] = []
        previous = root
        for start in range(0, end, run):
            part = tokens[start : min(start + run, end)]
            if len(part) < run:
                hashes += _hash_run(previous, part, block)
                break
            key = (previous, part)
            known = self._young.get(key)
            if known is None:
                known = self._old.get(key) or _hash_run(previous, part, block)
                if len(self._young) >= _MEMO_RUNS // 2:
                    self._old, self._young = self._young, {}
                self._young[key] = known
            hashes += known
            previous = known[-1]
        return BlockChain(hashes, block_size, len(tokens) // TOKEN_BYTES)

    def extended(self, root: int, chain: BlockChain, tokens: bytes) -> BlockChain:
        """Chain of a longer prompt that begins with one already hashed; only what is new is hashed.

        Args:
            root: As in ``chain``.
            chain: The beginning's chain.
            tokens: All token ids, the beginning's included.
        """
        block = chain.block_size * TOKEN_BYTES
        start = len(chain.hashes) * block
        previous = chain.hashes[-1] if chain.hashes else root
        added = _hash_run(previous, tokens[start : len(tokens) // block * block], block)
        return BlockChain([*chain.hashes, *added], chain.block_size, len(tokens) // TOKEN_BYTES)


def _hash_run(previous: int, part: bytes, block: int) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    for start in range(0, len(part), block):
        previous = xxh3_64_intdigest(previous.to_bytes(8, "little") + part[start : start + block])
        hashes.append(BlockHash(previous))
    return hashes
