"""Request bodies for the overhead benchmark: seeded, so that every run sends the same.

Each has the usage that the mock engines report for it: its tokens, and those that one cache for all of them would hold
when it is sent. They stand in ``stop_token_ids``, a list of two numbers that all APIs pass on.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.held_blocks import HeldBlocks

WORDS = """
account balance booking branch cancel change charge claim confirm contact cover customer
date delay deliver deposit discount email exchange expect extend family format guarantee
insurance invoice letter limit locate manager member message notice number offer option
order package parcel partner payment period phone policy postage price product question
receipt refund register renew repair replace report return review sample schedule service
""".split()


ONCE = {"turns", "cold", "stream", "first", "agent", "long"}
"""Kinds whose bodies are each sent once."""

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
PATHS["stored"] = PATHS["responses"]
"""APIs, with their paths; ``stored`` are responses that the gateway keeps."""

_SESSIONS, _LONG_TURNS, _LONG_MESSAGES, _LONG_WORDS = 6, 5, 50, 2_000

CONVERSATIONS = 200
TURNS = 8


def write_bodies(folder: Path, rounds: int = 1) -> None:
    """Write ``chat.jsonl``, and for each round bodies that no earlier one has: ``turns-0.jsonl`` and so on."""
    rng, cache = random.Random(11), HeldBlocks()
    shared = _shared()
    chat = [_messages(rng, shared) for _ in range(200)]
    for messages in chat:
        cache.compute(messages)
    sets = {"chat": [_encoded(messages, cache) for messages in chat]}
    for number in range(rounds):
        sets[f"turns-{number}"] = _turns(rng, shared, cache)
        sets[f"cold-{number}"] = [_encoded(_messages(rng, _fresh(rng)), cache) for _ in range(2000)]
        sets[f"stream-{number}"] = [_encoded(_messages(rng, shared), cache, stream=True) for _ in range(200)]
    for name, bodies in sets.items():
        (folder / f"{name}.jsonl").write_text("\n".join(bodies))


def write_long_bodies(folder: Path, rounds: int) -> None:
    """Write for each round bodies of about 100,000 tokens: the ``first`` turns of an agent's sessions, their next turns
    (``agent``), and prompts like no other (``long``)."""
    rng, cache = random.Random(13), HeldBlocks()
    for number in range(rounds):
        sessions = [_long(rng) for _ in range(_SESSIONS)]
        sets = {"first": [_encoded(messages, cache) for messages in sessions], "agent": []}
        for messages in sessions * _LONG_TURNS:
            for role, words in ("assistant", 100), ("user", 400):
                messages.append({"role": role, "content": " ".join(rng.choices(WORDS, k=words))})
            sets["agent"].append(_encoded(messages, cache))
        sets["long"] = [_encoded(_long(rng), cache) for _ in range(2 * _SESSIONS)]
        for name, bodies in sets.items():
            (folder / f"{name}-{number}.jsonl").write_text("\n".join(bodies))


def write_turns(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files with conversations turn by turn without end, and how many bodies each has; two files take turns."""
    rng, cache = random.Random(12), HeldBlocks()
    shared = _shared()
    for number in itertools.count():
        bodies = _turns(rng, shared, cache)
        path = folder / f"turns-{number % 2}.jsonl"
        path.write_text("\n".join(bodies))
        yield path, len(bodies)


def body_for(api: str, chat: bytes) -> bytes:
    """A chat request as one of another API."""
    if api == "chat":
        return chat
    fields: dict[str, Any] = json.loads(chat)
    system, *messages = fields.pop("messages")
    if api == "messages":
        fields |= {"system": system["content"], "messages": messages}
    else:
        fields |= {"instructions": system["content"], "input": messages, "store": api == "stored"}
        fields["max_output_tokens"] = fields.pop("max_tokens")
    return json.dumps(fields).encode()


def _shared() -> str:
    return " ".join(f"Guideline {n}: stay friendly and quote paragraph {n * 7} when asked." for n in range(105))


def _turns(rng: random.Random, system: str, cache: HeldBlocks) -> list[str]:
    """The first turn of each conversation, then the second of each, and so on; they share the system prompt."""
    conversations = [_messages(rng, system) for _ in range(CONVERSATIONS)]
    bodies = []
    for turn in range(TURNS):
        for messages in conversations:
            bodies.append(_encoded(messages, cache))
            messages.append({"role": "assistant", "content": f"Then {turn}: " + " ".join(rng.choices(WORDS, k=40))})
            messages.append({"role": "user", "content": f"Also {turn}: " + " ".join(rng.choices(WORDS, k=9))})
    return bodies


def _fresh(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=920)) + f" {rng.random()}"


def _messages(rng: random.Random, system: str) -> list[dict[str, str]]:
    # The random text of a fresh conversation stands at its very beginning, so nothing of it was seen before.
    messages = [{"role": "system", "content": system}]
    for turn in range(6):
        messages.append({"role": "user", "content": f"Point {turn}: " + " ".join(rng.choices(WORDS, k=9))})
        messages.append({"role": "assistant", "content": f"Re {turn}: " + " ".join(rng.choices(WORDS, k=40))})
    return [*messages, {"role": "user", "content": "At last " + " ".join(rng.choices(WORDS, k=6))}]


def _long(rng: random.Random) -> list[dict[str, str]]:
    """Tool results of an agent that has read 50 files."""
    roles = itertools.cycle(("user", "assistant"))
    return [
        {"role": role, "content": f"{rng.random()} " + " ".join(rng.choices(WORDS, k=_LONG_WORDS))}
        for role, _ in zip(roles, range(_LONG_MESSAGES + 1), strict=False)
    ]


def _encoded(messages: Sequence[dict[str, str]], cache: HeldBlocks, *, stream: bool = False) -> str:
    fields = {"model": "m", "messages": messages, "max_tokens": 8, "stream": stream}
    return json.dumps({**fields, "stop_token_ids": cache.compute(messages)})
