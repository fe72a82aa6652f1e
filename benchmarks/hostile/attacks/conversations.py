"""Conversations that grow from request to request, and prompts that differ in one place."""

import asyncio
from collections import Counter

from benchmarks.hostile.attacks.attack import Attack, Run, Target, chat, message, sending
from benchmarks.hostile.wire import asked, head

_TURNS = 50
_TURN_BYTES = 300_000
_LONGEST_SECONDS = 60.0
_MOST_CONVERSATIONS = 1000


def _turn(number: int, at: int) -> bytes:
    text = b"turn %d of conversation %d, and what is said in it. " % (at, number)
    return message(text * (_TURN_BYTES // len(text)), b"assistant" if at % 2 else b"user")


def _growing(target: Target) -> Run:
    # Only the turns are made here: all requests of a conversation would be 400 MB.
    turns = [_turn(0, at) for at in range(_TURNS)]

    async def one(number: int, target: Target, ends: Counter[str]) -> None:
        for again in range(_MOST_CONVERSATIONS):
            begin = message(b"conversation %d.%d" % (number, again), b"system")
            for last in range(0, _TURNS, 2):
                body = chat(messages=b",".join((begin, *turns[: last + 1])))
                end = "unanswered"
                try:
                    end = await asked(target.port, head(target.key, len(body)) + body, _LONGEST_SECONDS)
                finally:
                    ends[end] += 1

    async def run(target: Target, ends: Counter[str]) -> None:
        await asyncio.gather(*(one(number, target, ends) for number in range(2)))

    del target
    return run


def _variants(target: Target) -> list[bytes]:
    """A prompt of 450 KB with one word changed, in another place each time."""
    words = [b"word%d" % ((target.seed + n * n) % 5000) for n in range(50_000)]
    made = []
    for number in range(24):
        at = number * 2000
        changed = [*words[:at], b"changed%d" % number, *words[at + 1 :]]
        made.append(chat(messages=message(b" ".join(changed), b"system") + b"," + message(b"Hi")))
    return made


def _spread(target: Target) -> list[bytes]:
    """A prompt of 450 KB in which every tenth word is another one each time: many small differences."""
    made = []
    for number in range(24):
        words = (
            b"w%d" % (target.seed + number * 7 + n) if n % 10 == 0 else b"word%d" % (n % 5000) for n in range(50_000)
        )
        made.append(chat(messages=message(b" ".join(words), b"system") + b"," + message(b"Hi")))
    return made


ATTACKS = (
    Attack("conversations", "conversations of 50 turns of 300 KB, a message more each time", _growing),
    sending("variants", "a system prompt of 450 KB with one word changed each time", _variants),
    sending("variants-spread", "a system prompt of 450 KB with every tenth word changed each time", _spread),
)
