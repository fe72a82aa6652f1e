"""A trace of made-up conversations for ``prefix-gateway simulate``, always the same for the same options.

``python -m benchmarks.conversation_trace > trace.jsonl`` writes an hour of them. Conversations begin at random times;
each starts with the system prompt of one of a few applications, and every turn adds a message and the answer to the
prompt of the turn before. Lengths vary as those of published traces do: most are short, and a few are very long.
"""

import json
import random
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import count

BLOCK_SIZE = 512

_SYSTEM_BLOCKS = (1, 2, 4, 8)
_MORE_TURNS = 0.72
"""Chance of another turn: 3.6 on average."""
_PAUSE_SECONDS = 45.0
_LONGEST = 120_000


def conversations(minutes: float, per_second: float, seed: int) -> list[dict[str, object]]:
    """The lines of a trace, in the order of their times.

    Args:
        minutes: For how long conversations begin; the last of them end later.
        per_second: How many begin in a second, on average.
        seed: Another one makes another trace.
    """
    rng = random.Random(seed)
    numbers = count()
    systems = [[next(numbers) for _ in range(blocks)] for blocks in _SYSTEM_BLOCKS]
    lines, at = [], rng.expovariate(per_second)
    while at < 60 * minutes:
        lines += _turns(rng, numbers, at, rng.choice(systems))
        at += rng.expovariate(per_second)
    return sorted(lines, key=lambda line: line["timestamp"])


def _turns(
    rng: random.Random, numbers: Iterator[int], at: float, system: list[int]
) -> Iterator[dict[str, int | list[int]]]:
    """One conversation. A block that is not full is another one when more text follows."""
    blocks, tokens = list(system), len(system) * BLOCK_SIZE
    while True:
        tokens += 1 + int(rng.lognormvariate(7.8, 1.3))
        if tokens > _LONGEST:
            return
        blocks += [next(numbers) for _ in range(tokens // BLOCK_SIZE - len(blocks))]
        rest = [next(numbers)] if tokens % BLOCK_SIZE else []
        answer = 1 + int(rng.lognormvariate(5.3, 0.8))
        yield {
            "timestamp": round(at * 1000),
            "input_length": tokens,
            "output_length": answer,
            "hash_ids": blocks + rest,
        }
        if rng.random() > _MORE_TURNS:
            return
        tokens += answer
        at += rng.expovariate(1 / _PAUSE_SECONDS)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--per-second", type=float, default=0.9, help="conversations that begin in a second")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for line in conversations(chosen.minutes, chosen.per_second, chosen.seed):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
