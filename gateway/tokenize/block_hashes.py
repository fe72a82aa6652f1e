"""Chained block hashes: ``h0 = xxh3_64(space)``, ``h(i) = xxh3_64(h(i-1) + tokens of block i + what else is in it)``.

Hashes are little-endian u64, tokens little-endian u32. A hash identifies everything up to the end of its block, so two
chains that share ``h(i)`` share the whole prefix. The hash only steers routing; the engine decides with its own, so a
collision can cost time and never leak anything.

A block's extras are the rest of its identity in the engine: the images whose placeholders it holds. Chains of requests
and chains from the engines' events must be equal.
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import iter_unpack
from typing import Any

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from gateway.core.block_chain import BlockChain
from gateway.core.bounded_cache import BoundedCache
from gateway.core.ids import BlockHash, ModelId
from gateway.core.portions import Portioned, finished
from gateway.core.prompt import TOKEN_BYTES, MediaItem
from gateway.core.space import CacheSpace
from gateway.engines import media_extra

_RUN_BLOCKS = 32
_RUN_TOKENS = 512
"""Blocks hashed (and remembered) in one go: so many at most, and of so many tokens if blocks are large. Longer runs
remember less of a prompt that is only partly known."""

_SPAN_RUNS = 4
"""Runs that are looked up together first: the beginning of a long prompt is mostly known as a whole."""

_MEMO_RUNS = 2560
_MEMO_SPANS = 512
"""Runs and spans remembered: about 7 MiB with blocks of 16 tokens."""

_MEMO_ROOTS = 1024

_PORTION_SPANS = 16
"""Spans that are hashed in one portion, in about a millisecond."""


def space_root(space: CacheSpace) -> int:
    """The hash every chain of a space starts from. Tags and lengths keep its parts apart."""
    encoded = bytearray()
    for field in dataclasses.fields(space):
        value = str(getattr(space, field.name)).encode()
        for part in (field.name.encode(), value):
            encoded += len(part).to_bytes(4, "little") + part
    return xxh3_64_intdigest(bytes(encoded))


class ChainHasher:
    """Hashes prompts, and caches runs of blocks: the beginning of most prompts was hashed recently.

    It is a ``BlockHasher`` as well: for blocks that engines describe.
    """

    def __init__(self) -> None:
        self._runs: BoundedCache[bytes, list[BlockHash]] = BoundedCache(_MEMO_RUNS)
        self._spans: BoundedCache[bytes, list[BlockHash]] = BoundedCache(_MEMO_SPANS)

    @staticmethod
    @lru_cache(maxsize=_MEMO_ROOTS)
    def root(model: ModelId, adapter: str, salt: str, variant: str = "") -> int:
        """``space_root`` of a space, remembered."""
        return space_root(CacheSpace(model, adapter, salt, variant))

    def chain(self, root: int, tokens: bytes, block_size: int, media: Sequence[MediaItem] = ()) -> BlockChain:
        """Block chain of one prompt.

        Args:
            root: ``space_root`` of the prompt's space.
            tokens: Token ids, little-endian u32.
            block_size: Tokens per block.
            media: The items inside the prompt, by offset.
        """
        if media:
            return finished(self.chained(root, tokens, block_size, media))
        block = block_size * TOKEN_BYTES
        hashes = self._of_spans(root, tokens[: len(tokens) // block * block], block)
        return BlockChain(hashes, block_size, len(tokens) // TOKEN_BYTES)

    def chained(
        self, root: int, tokens: bytes, block_size: int, media: Sequence[MediaItem] = ()
    ) -> Portioned[BlockChain]:
        """``chain`` in portions, for long prompts."""
        block = block_size * TOKEN_BYTES
        end = len(tokens) // block * block
        portion = _run_bytes(block) * _SPAN_RUNS * _PORTION_SPANS
        extras = _extras(media, block_size) if media else None
        hashes: list[BlockHash] = []
        previous = root
        for start in range(0, end, portion):
            if start:
                yield
            part = tokens[start : min(start + portion, end)]
            hashes += (
                self._of_spans(previous, part, block) if extras is None else _hashed(previous, part, block, extras)
            )
            previous = hashes[-1]
        return BlockChain(hashes, block_size, len(tokens) // TOKEN_BYTES)

    def _of_spans(self, previous: int, part: bytes, block: int) -> list[BlockHash]:
        """The hashes of a part of a prompt; those of whole spans and runs are remembered."""
        run = _run_bytes(block)
        span = run * _SPAN_RUNS
        hashes: list[BlockHash] = []
        whole = len(part) - len(part) % span
        for start in range(0, whole, span):
            tokens = part[start : start + span]
            # A digest: tokens as a part of a key would be kept. Chains of two block sizes may have the same root.
            key = xxh3_128_digest(tokens, previous ^ block)
            known = self._spans.get(key)
            if known is None:
                known = self._of_runs(previous, tokens, run, block)
                self._spans.put(key, known)
            hashes += known
            previous = known[-1]
        return hashes + self._of_runs(previous, part[whole:], run, block) if whole < len(part) else hashes

    def _of_runs(self, previous: int, part: bytes, run: int, block: int) -> list[BlockHash]:
        """The hashes of a span, or of what is behind the last one; those of whole runs are remembered."""
        hashes: list[BlockHash] = []
        whole = len(part) - len(part) % run
        for start in range(0, whole, run):
            tokens = part[start : start + run]
            key = xxh3_128_digest(tokens, previous ^ block)
            known = self._runs.get(key)
            if known is None:
                known = _hash_run(previous, tokens, block)
                self._runs.put(key, known)
            hashes += known
            previous = known[-1]
        return hashes + _hash_run(previous, part[whole:], block) if whole < len(part) else hashes

    def extended(self, root: int, chain: BlockChain, rest: bytes, tokens: int) -> BlockChain:
        """Chain of a longer prompt that begins with one already hashed; only what is new is hashed.

        Args:
            root: As in ``chain``.
            chain: The beginning's chain.
            rest: Token ids after the last block of the beginning, as far as they are known; without media.
            tokens: Number of all tokens.
        """
        block = chain.block_size * TOKEN_BYTES
        if len(rest) < block:
            return BlockChain(chain.hashes, chain.block_size, tokens)
        last = chain.hashes[-1] if chain.hashes else root
        added = _hash_run(last, rest[: len(rest) // block * block], block)
        return BlockChain([*chain.hashes, *added], chain.block_size, tokens)

    def extend(
        self, parent: int, tokens: bytes, block_size: int, extras: Iterable[bytes | None] | None
    ) -> list[BlockHash]:
        """See ``BlockHasher``."""
        block = block_size * TOKEN_BYTES
        whole = tokens[: len(tokens) // block * block]
        return _hash_run(parent, whole, block) if extras is None else _hashed(parent, whole, block, extras)


@lru_cache(maxsize=256)
def _run_bytes(block: int) -> int:
    """Bytes of a run of blocks of so many bytes."""
    return block * max(min(_RUN_BLOCKS, _RUN_TOKENS * TOKEN_BYTES // block), 1)


def _hash_run(previous: int, part: bytes, block: int) -> list[BlockHash]:
    hashes: list[Any] = []  # of ``BlockHash``: converting each would take longer than hashing it
    for (tokens,) in iter_unpack(f"{block}s", part):  # faster than slices
        previous = xxh3_64_intdigest(previous.to_bytes(8, "little") + tokens)
        hashes.append(previous)
    return hashes


def _hashed(previous: int, part: bytes, block: int, extras: Iterable[bytes | None]) -> list[BlockHash]:
    """The hashes of blocks with extras, one for each block; further extras are not taken."""
    hashes: list[Any] = []
    for start, extra in zip(range(0, len(part), block), extras, strict=False):
        previous = xxh3_64_intdigest(previous.to_bytes(8, "little") + part[start : start + block] + (extra or b""))
        hashes.append(previous)
    return hashes


def _extras(media: Sequence[MediaItem], block_size: int) -> Iterator[bytes | None]:
    """The extras of each block, in order."""
    ahead = deque(media)
    reaching: list[MediaItem] = []
    for start in itertools.count(0, block_size):
        reaching = [item for item in reaching if item.offset + item.length > start]
        while ahead and ahead[0].offset < start + block_size:
            reaching.append(ahead.popleft())
        yield media_extra([(item.identifier, item.offset - start) for item in reaching]) if reaching else None
