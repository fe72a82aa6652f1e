"""What the index costs with 0.1, 1 and 10 million held blocks.

python -m benchmarks.index [--blocks 100000 1000000 10000000] [--replicas 8] [--json]

Every replica's blocks come as KV events, decoded already, in runs as an engine sends them: conversations of 200 blocks
of 16 tokens, of which a quarter begin with one of 64 shared system prompts of 40 blocks. Look-ups go to prompts of 200
blocks drawn at random from all that are held, so that nothing but the index is in the processor's caches; each asks for
all replicas at once. Half of the prompts are held to the end, half diverge somewhere.

Memory is the growth of the process (resident set), which includes what Python itself needs, and beside it the sum of
the index's arrays.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ModelId, ReplicaId, Target
from gateway.core.kv_events import BlockRemoved, BlockStored, Medium
from gateway.index.event_holdings import EventHoldings
from gateway.tokenize.block_hashes import ChainHasher

BLOCK_SIZE = 16
CHAIN_BLOCKS = 200
SHARED_BLOCKS = 40
SHARED_PROMPTS = 64
LOOKUPS = 4000
RUN_BLOCKS = 20
MODEL = ModelId("bench")
_WIDTHS = (12, 13, 10, 10, 11, 16, 8)


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        blocks: Blocks held, over all replicas.
        bytes_per_block: Growth of the process per held block.
        array_bytes_per_block: The index's arrays per held block.
        store_us: Microseconds of CPU per block stored.
        remove_us: Microseconds of CPU per block removed.
        lookup_p50_us: One prompt of 200 blocks, all replicas at once; as the clock shows it.
        lookup_p99_us: The same.
    """

    blocks: int
    bytes_per_block: float
    array_bytes_per_block: float
    store_us: float
    remove_us: float
    lookup_p50_us: float
    lookup_p99_us: float


def resident_bytes() -> int:
    """Memory of this process that is really in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tokens_of(seed: int, blocks: int) -> bytes:
    """Random token ids."""
    return array("I", random.Random(seed).choices(range(128_000), k=blocks * BLOCK_SIZE)).tobytes()


class Traffic:
    """The conversations of all replicas, made again from their seeds whenever they are needed: they would take more
    memory than what is measured."""

    def __init__(self, blocks: int, replicas: int) -> None:
        self.hasher = ChainHasher()
        self.root = self.hasher.root(MODEL, "", "")
        self.shared = [tokens_of(seed, SHARED_BLOCKS) for seed in range(SHARED_PROMPTS)]
        self.targets = [Target(ReplicaId(f"replica-{number}")) for number in range(replicas)]
        self.per_target = max(blocks // replicas // (CHAIN_BLOCKS - SHARED_BLOCKS // 4), 1)

    def tokens(self, target: int, number: int) -> bytes:
        """Conversation ``number`` at a target."""
        seed = 1_000_000 + target * 100_000_000 + number
        if seed % 4:
            return tokens_of(seed, CHAIN_BLOCKS)
        return self.shared[number // 4 % SHARED_PROMPTS] + tokens_of(seed, CHAIN_BLOCKS - SHARED_BLOCKS)

    def chain(self, tokens: bytes) -> list[BlockHash]:
        return self.hasher.extend(self.root, tokens, BLOCK_SIZE, None)


def measure(blocks: int, replicas: int) -> Row:
    """Fill an index with about that many blocks and use it."""
    traffic = Traffic(blocks, replicas)
    gc.collect()
    before = resident_bytes()
    index = EventHoldings(traffic.hasher, lambda _: MODEL, dict.fromkeys(Medium, 1.0), lambda *_: None)
    stored = 0
    store_seconds = 0.0
    for number in range(traffic.per_target):
        for position, target in enumerate(traffic.targets):
            tokens = traffic.tokens(position, number)
            # The engine's names: any 64 bits that say the same of the same prefix.
            names = [block ^ 0x5DEECE66D for block in traffic.chain(tokens)]
            part = index.part(target)
            known = 0
            if part is not None:
                while known < CHAIN_BLOCKS and part.blocks.find(names[known]):
                    known += 1
            events = [
                BlockStored(
                    names[start : start + RUN_BLOCKS],
                    names[start - 1] if start else None,
                    tokens[start * BLOCK_SIZE * 4 : (start + RUN_BLOCKS) * BLOCK_SIZE * 4],
                    BLOCK_SIZE,
                )
                for start in range(known, CHAIN_BLOCKS, RUN_BLOCKS)
            ]
            stored += CHAIN_BLOCKS - known
            begun = time.process_time()
            for event in events:
                index.apply(target, event)
            store_seconds += time.process_time() - begun
    held = sum(part.blocks.held for target in traffic.targets if (part := index.part(target)))
    gc.collect()
    grown = resident_bytes() - before
    looks = look_ups(traffic, index)
    remove_seconds, removed = removals(traffic, index)
    return Row(
        blocks=held,
        bytes_per_block=round(grown / held, 1),
        array_bytes_per_block=round(index.nbytes / held, 1),
        store_us=round(store_seconds / stored * 1e6, 2),
        remove_us=round(remove_seconds / removed * 1e6, 2),
        lookup_p50_us=round(statistics.median(looks) * 1e6, 1),
        lookup_p99_us=round(statistics.quantiles(looks, n=100)[98] * 1e6, 1),
    )


def look_ups(traffic: Traffic, index: EventHoldings) -> list[float]:
    """Seconds of single look-ups, the prompts hashed beforehand."""
    chooser = random.Random(7)
    seconds = []
    for number in range(LOOKUPS):
        target = chooser.randrange(len(traffic.targets))
        tokens = traffic.tokens(target, chooser.randrange(traffic.per_target))
        expected = CHAIN_BLOCKS
        if number % 2:
            expected = chooser.randrange(CHAIN_BLOCKS)
            tokens = tokens[: expected * BLOCK_SIZE * 4] + tokens_of(number, CHAIN_BLOCKS - expected)
        chain = BlockChain(traffic.chain(tokens), BLOCK_SIZE, CHAIN_BLOCKS * BLOCK_SIZE + 1)
        begun = time.perf_counter()
        depths = index.depths(chain, CHAIN_BLOCKS, traffic.targets)
        seconds.append(time.perf_counter() - begun)
        assert depths[target] == expected, (depths, expected)
    return seconds


def removals(traffic: Traffic, index: EventHoldings) -> tuple[float, int]:
    """Seconds and blocks of evictions, one block an event, as vLLM sends them."""
    seconds, removed = 0.0, 0
    for number in range(min(traffic.per_target, 50)):
        for position, target in enumerate(traffic.targets):
            chain = traffic.chain(traffic.tokens(position, number))
            names = [block ^ 0x5DEECE66D for block in reversed(chain[SHARED_BLOCKS:])]
            begun = time.process_time()
            for name in names:
                index.apply(target, BlockRemoved([name]))
            seconds += time.process_time() - begun
            removed += len(names)
    return seconds, removed


def main() -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for blocks in given.blocks:
        if not given.json:
            sys.stderr.write(f"filling an index with {blocks:,} blocks\n")
        rows.append(measure(blocks, given.replicas))
        gc.collect()
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    titles = ("blocks", "bytes/block", "(arrays)", "store us", "remove us", "look-up p50 us", "p99 us")
    print("".join(f"{title:>{width}}" for title, width in zip(titles, _WIDTHS, strict=True)))
    for row in rows:
        values = (f"{row.blocks:,}", *list(asdict(row).values())[1:])
        print("".join(f"{value:>{width}}" for value, width in zip(values, _WIDTHS, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
