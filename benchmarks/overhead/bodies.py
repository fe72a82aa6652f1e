"""Request bodies for the overhead benchmark: seeded, so that every run sends the same."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

WORDS = """
account balance booking branch cancel change charge claim confirm contact cover customer
date delay deliver deposit discount email exchange expect extend family format guarantee
insurance invoice letter limit locate manager member message notice number offer option
order package parcel partner payment period phone policy postage price product question
receipt refund register renew repair replace report return review sample schedule service
""".split()


ONCE = {"turns", "cold", "stream"}
"""Kinds whose bodies are each sent once."""

CONVERSATIONS = 200
TURNS = 8


def write_bodies(folder: Path, rounds: int = 1) -> None:
    """Write ``chat.jsonl``, and for each round bodies that no earlier one has: ``turns-0.jsonl`` and so on."""
    rng = random.Random(11)
    shared = _shared()
    sets = {"chat": [_body(rng, shared, stream=False) for _ in range(200)]}
    for number in range(rounds):
        sets[f"turns-{number}"] = _turns(rng, shared)
        sets[f"cold-{number}"] = [_body(rng, _fresh(rng), stream=False) for _ in range(2000)]
        sets[f"stream-{number}"] = [_body(rng, shared, stream=True) for _ in range(200)]
    for name, bodies in sets.items():
        (folder / f"{name}.jsonl").write_text("\n".join(bodies))


def write_turns(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files with conversations turn by turn without end, and how many bodies each has; two files take turns."""
    rng = random.Random(12)
    shared = _shared()
    for number in itertools.count():
        bodies = _turns(rng, shared)
        path = folder / f"turns-{number % 2}.jsonl"
        path.write_text("\n".join(bodies))
        yield path, len(bodies)


def _shared() -> str:
    return " ".join(f"Guideline {n}: stay friendly and quote paragraph {n * 7} when asked." for n in range(105))


def _turns(rng: random.Random, system: str) -> list[str]:
    """The first turn of each conversation, then the second of each, and so on; they share the system prompt."""
    conversations = [_messages(rng, system) for _ in range(CONVERSATIONS)]
    bodies = []
    for turn in range(TURNS):
        for messages in conversations:
            bodies.append(_encoded(messages, stream=False))
            messages.append({"role": "assistant", "content": f"Then {turn}: " + " ".join(rng.choices(WORDS, k=40))})
            messages.append({"role": "user", "content": f"Also {turn}: " + " ".join(rng.choices(WORDS, k=9))})
    return bodies


def _fresh(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=920)) + f" {rng.random()}"


def _body(rng: random.Random, system: str, *, stream: bool) -> str:
    return _encoded(_messages(rng, system), stream=stream)


def _messages(rng: random.Random, system: str) -> list[dict[str, str]]:
    # The random text of a fresh conversation stands at its very beginning, so nothing of it was seen before.
    messages = [{"role": "system", "content": system}]
    for turn in range(6):
        messages.append({"role": "user", "content": f"Point {turn}: " + " ".join(rng.choices(WORDS, k=9))})
        messages.append({"role": "assistant", "content": f"Re {turn}: " + " ".join(rng.choices(WORDS, k=40))})
    return [*messages, {"role": "user", "content": "At last " + " ".join(rng.choices(WORDS, k=6))}]


def _encoded(messages: list[dict[str, str]], *, stream: bool) -> str:
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 8, "stream": stream})
