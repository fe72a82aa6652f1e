"""What an attack is, and the pieces that bodies are made of."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.hostile.wire import CHAT, COMPLETIONS, asked, head

FULL = 16 * 2**20
"""Bytes of the largest body that the gateway accepts by default."""

_LONGEST_SECONDS = 60.0
_MOST_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked, and how.

    Attributes:
        port: The gateway's public port.
        key: The attacker's API key.
        seed: For what is random.
        idle: Connections that send nothing.
        slow: Requests that arrive byte by byte.
    """

    port: int
    key: str
    seed: int
    idle: int
    slow: int


Run = Callable[[Target, Counter[str]], Awaitable[None]]
"""An attack that is ready: goes on until it is cancelled, and counts how its requests end."""


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack.

    Attributes:
        name: To choose it by.
        what: One line for the table.
        make: Builds everything that takes time.
    """

    name: str
    what: str
    make: Callable[[Target], Run]


def sending(
    name: str,
    what: str,
    bodies: Callable[[Target], Sequence[bytes]],
    *lines: str,
    path: str = CHAT,
    at_a_time: int = 2,
) -> Attack:
    """Requests with these bodies, one after the other and again from the first, so many at a time."""

    def make(target: Target) -> Run:
        made = [head(target.key, len(body), *lines, path=path) + body for body in bodies(target)]

        async def one(first: int, ends: Counter[str]) -> None:
            for number in range(_MOST_REQUESTS):
                end = "unanswered"
                try:
                    end = await asked(target.port, made[(first + number) % len(made)], _LONGEST_SECONDS)
                finally:
                    ends[end] += 1

        async def run(target: Target, ends: Counter[str]) -> None:
            del target
            await asyncio.gather(*(one(first, ends) for first in range(at_a_time)))

        return run

    return Attack(name, what, make)


def body(name: str, what: str, made: Callable[[], bytes], *, path: str = CHAT, at_a_time: int = 2) -> Attack:
    """The same body again and again."""
    return sending(name, what, lambda _: [made()], path=path, at_a_time=at_a_time)


def message(content: bytes, role: bytes = b"user") -> bytes:
    """A message; the content is the inside of a JSON string."""
    return b'{"role":"%b","content":"%b"}' % (role, content)


def chat(*members: bytes, messages: bytes = message(b"Hi")) -> bytes:
    """A chat with further members in front of its messages."""
    return b"{" + b",".join((b'"model":"m","max_tokens":1', *members, b'"messages":[%b]' % messages)) + b"}"


def completion(prompt: bytes) -> bytes:
    """A completion; the prompt is JSON."""
    return b'{"model":"m","max_tokens":1,"prompt":%b}' % prompt


def repeated(piece: bytes, size: int = FULL - 4096, separator: bytes = b",") -> bytes:
    """As many pieces as fit, with separators between them."""
    return separator.join([piece] * ((size + len(separator)) // (len(piece) + len(separator))))


def joined(pieces: Iterator[bytes], size: int = FULL - 4096, separator: bytes = b",") -> bytes:
    """The first pieces, as many as fit."""
    taken: list[bytes] = []
    for piece in pieces:
        size -= len(piece) + len(separator)
        if size < 0:
            break
        taken.append(piece)
    return separator.join(taken)


__all__ = ["CHAT", "COMPLETIONS", "FULL", "Attack", "Run", "Target", "body", "chat", "completion"]
__all__ += ["joined", "message", "repeated", "sending"]
