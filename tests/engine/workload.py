"""200 requests that go through a small cache in every way: what they share, repeat, keep apart and push out.

They come in parts, and between them others use the replicas as well, past the gateway.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.engine.cases import assistant, system, user
from tests.engine.replica import BLOCK_SIZE
from tests.engine.texts import prose

REQUESTS = 200
PARTS = 3

_SALTS = ("", "", "tenant-a", "tenant-b")
_QUESTIONS = (
    "Who takes care of this?",
    "And until when, please? Answer in one sentence.",
    "Wie heißt das auf Deutsch? 😀",
    "What did I ask you first, and what did you say?",
)


@dataclass
class Session:
    """Requests that follow one another; each may need the answer to the one before.

    Attributes:
        name: What it is.
        turns: How many requests.
    """

    name: str
    turns: int

    def next_request(self, turn: int) -> dict[str, Any]:
        """The body of the next request."""
        raise NotImplementedError

    def take(self, reply: str) -> None:
        """The answer to the last request."""


@dataclass
class Conversation(Session):
    """A chat about one of six system prompts, half of them under one of two cache salts."""

    number: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)

    def next_request(self, turn: int) -> dict[str, Any]:
        if not self.messages:
            self.messages = [system(prose(60 + self.number % 6, 7))]
        self.messages.append(user(f"{_QUESTIONS[turn]} (case {self.number})"))
        # Long answers fill blocks of their own.
        tokens = 34 if self.number % 4 == 0 else 4
        salt = _SALTS[self.number // 2 % len(_SALTS)]
        more = {"cache_salt": salt} if salt else {}
        return {"messages": list(self.messages), "max_tokens": tokens, "temperature": 0, **more}

    def take(self, reply: str) -> None:
        self.messages.append(assistant(reply))


@dataclass
class WholeBlocks(Session):
    """A prompt that ends with a block, several times: its last block is computed every time, and kept every time."""

    number: int = 0

    def next_request(self, turn: int) -> dict[str, Any]:
        ids = random.Random(self.number).choices(range(100, 48_000), k=(3 + self.number % 3) * BLOCK_SIZE)
        return {"prompt": ids, "max_tokens": 1, "temperature": 0}


@dataclass
class Long(Session):
    """A long prompt: what it takes the place of is gone."""

    number: int = 0

    def next_request(self, turn: int) -> dict[str, Any]:
        messages = [system(_long(self.number)), user("What is this about?")]
        return {"messages": messages, "max_tokens": 2, "temperature": 0}


def parts() -> list[list[Session]]:
    """All sessions in the order in which they begin; those of a part when the parts before are over."""
    planned: list[Session] = []
    for number in range(40):
        planned.append(Conversation(f"conversation {number}", len(_QUESTIONS), number))
        if number % 2:
            planned.append(Long(f"long prompt {number}", 1, number))
        if number % 4 == 3:
            planned.append(WholeBlocks(f"whole blocks {number}", 2, number))
    assert sum(session.turns for session in planned) == REQUESTS
    size = -(-len(planned) // PARTS)
    return [planned[start : start + size] for start in range(0, len(planned), size)]


def from_others(part: int, replica: int) -> list[dict[str, Any]]:
    """What another client sends to one of two replicas before a part begins: its long prompts, and others."""
    mine = [session for session in parts()[part] if isinstance(session, Long)][replica::2]
    rules = [_long(session.number) for session in mine] + [_long(100 + 10 * part + 2 * replica + n) for n in range(2)]
    return [{"messages": [system(text), user("Anything new?")], "max_tokens": 2, "temperature": 0} for text in rules]


def _long(number: int) -> str:
    return prose(200 + number, 16)
