"""An index of KV events and questions to it, for tests."""

import hashlib
from array import array
from functools import reduce
from operator import xor

from index.engine_model import Prompt, packed

from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import BlockRemoved, BlockStored, Medium
from gateway.index.event_holdings import EventHoldings
from gateway.tokenize.block_hashes import ChainHasher

MODEL = ModelId("a-model")
TARGET = Target(ReplicaId("engine"))
HASHER = ChainHasher()
WORTH = {Medium.GPU: 1.0, Medium.CPU: 0.5, Medium.DISK: 0.25}


def event_index(lost=None):
    """Holdings that note lost blocks in a list."""
    reported = lost if lost is not None else []
    return EventHoldings(HASHER, lambda replica: MODEL, WORTH, lambda target, chain: reported.append((target, chain)))


def chain_of(prompt: Prompt, block_size: int):
    """Chain of a request, as the gateway makes it."""
    root = HASHER.root(MODEL, prompt.adapter, prompt.salt)
    return HASHER.chain(root, packed(prompt.tokens), block_size, prompt.media)


def depth(index, prompt: Prompt, block_size: int, target=TARGET) -> int:
    """Blocks of a request that a target is believed to hold."""
    chain = chain_of(prompt, block_size)
    (found,) = index.depths(chain, chain.reusable_blocks, [target])
    return found


def digest(engine) -> int:
    """XOR of the chain hashes of all that an engine holds."""
    chains = []
    for name in engine.copies():
        prompt, blocks = engine.described[name]
        chains.append(chain_of(prompt, engine.block_size).hashes[blocks - 1])
    return reduce(xor, chains, 0)


def gpu_copies(part) -> dict[int, int]:
    """GPU copies of every block that has some, by the engine's name."""
    return {name: copies for _, name, copies in part.blocks.named() if copies}


class Blocks:
    """Blocks named by the path of letters they end, for an index. Every letter is a block of 16 tokens."""

    size = 16

    def __init__(self, index, target=TARGET):
        self.index = index
        self.target = target

    @staticmethod
    def name(path):
        return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")

    def tokens(self, path):
        return array("I", [token for letter in path for token in [ord(letter)] * self.size])

    def prompt(self, path, **other):
        """A request whose whole path could be reused."""
        return Prompt((*self.tokens(path), 0), **other)

    def stored(self, path, start=0, **other):
        """The event that stores the blocks of a path from ``start`` on."""
        return BlockStored(
            [self.name(path[: n + 1]) for n in range(start, len(path))],
            self.name(path[:start]) if start else None,
            self.tokens(path[start:]).tobytes(),
            self.size,
            **other,
        )

    def store(self, path, start=0, **other):
        self.index.apply(self.target, self.stored(path, start, **other))

    def remove(self, *paths, **other):
        self.index.apply(self.target, BlockRemoved([self.name(path) for path in paths], **other))

    def depth(self, path, **other):
        return depth(self.index, self.prompt(path, **other), self.size, self.target)

    @property
    def part(self):
        return self.index.part(self.target)
