"""Bodies from a seed: random JSON, and chats with random changes."""

import json
import random
from collections.abc import Callable
from typing import Any

from benchmarks.hostile.attacks.attack import Attack, Target, chat, message, sending

_BODIES = 32
_BYTES = 2**20
_NAMES = (
    "model messages role content tools tool_calls function arguments name type text stream stream_options"
    " include_usage cache_salt n max_tokens stop prompt metadata response_format logit_bias user id image_url url"
    " parameters properties"
).split()
_LETTERS = 'ab 09.,:;\n\t"\\{}[]<>`|@+-#é中😀\u0301\u200b'


def _value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(10 if depth < 40 else 6)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.choice([0, -1, 1e300, 1.5, 2**63, 10 ** chance.randrange(1, 60)])
    if kind < 6:
        return "".join(chance.choices(_LETTERS, k=int(2 ** chance.uniform(0, 12))))
    if kind < 8:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(6))]
    return {chance.choice(_NAMES): _value(chance, depth + 1) for _ in range(chance.randrange(6))}


def _random_bodies(seed: int) -> Callable[[Target], list[bytes]]:
    def bodies(target: Target) -> list[bytes]:
        chance = random.Random(target.seed * 1000 + seed)
        return [_random_chat(chance) for _ in range(_BODIES)]

    return bodies


def _random_chat(chance: random.Random) -> bytes:
    """A chat whose further members, and whose messages' members, are random."""
    size = int(2 ** chance.uniform(10, 20))
    pieces: list[str] = []
    while sum(map(len, pieces)) < size:
        name = chance.choice(_NAMES[6:])
        pieces.append(f"{json.dumps(name)}:{json.dumps(_value(chance, 0), ensure_ascii=chance.random() < 0.5)}")
    said = {"role": chance.choice(["user", "system", "tool", "assistant"]), "content": _value(chance, 3)}
    more = {chance.choice(_NAMES[4:]): _value(chance, 3) for _ in range(3)}
    return chat(
        *(piece.encode() for piece in pieces), messages=json.dumps(said | more).encode() + b"," + message(b"Hi")
    )


def _mutated_bodies(seed: int) -> Callable[[Target], list[bytes]]:
    def bodies(target: Target) -> list[bytes]:
        chance = random.Random(target.seed * 1000 + seed)
        calls = b'{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\\"a\\":[1,2]}"}}]}'
        members = (b'"stream":true,"stream_options":{"include_usage":false}', b'"tools":[{"function":{"name":"f"}}]')
        text = b"some words, a date 2026-11-21, an address a@b.example and +49 30 1234567. " * 400
        normal = chat(
            *members, messages=b",".join((message(text, b"system"), message(b"Hi"), calls, message(b"Go on.")))
        )
        return [_mutated(chance, normal) for _ in range(_BODIES * 4)]

    return bodies


def _mutated(chance: random.Random, body: bytes) -> bytes:
    for _ in range(chance.randrange(1, 6)):
        at, end = sorted(chance.randrange(len(body) + 1) for _ in range(2))
        piece = body[at : min(end, at + chance.choice([1, 4, 100, 10_000]))]
        match chance.randrange(5):
            case 0:
                body = body[:at] + body[at + len(piece) :]
            case 1:
                body = (
                    body[:at]
                    + piece * min(chance.choice([2, 10, 10_000]), max(_BYTES // (len(piece) + 1), 1))
                    + body[at:]
                )
            case 2:
                body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
            case 3:
                body = (
                    body[:at] + chance.choice([b'"', b"\\", b"{", b"]", b",", b"\\ud800", b"NaN", b"1e999"]) + body[at:]
                )
            case _:
                name = chance.choice(_NAMES).encode()
                body = b'{"%b":%b,' % (name, json.dumps(_value(chance, 30)).encode()) + body.lstrip(b"{")
    return body[: 4 * _BYTES]


ATTACKS: tuple[Attack, ...] = (
    *(
        sending(f"random-{n}", f"random members, messages and texts, seed {n}", _random_bodies(n), at_a_time=4)
        for n in (1, 2, 3)
    ),
    *(
        sending(f"mutated-{n}", f"a chat of 30 KB with random changes, seed {n}", _mutated_bodies(n), at_a_time=4)
        for n in (1, 2, 3)
    ),
)
