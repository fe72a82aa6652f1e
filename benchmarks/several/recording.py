"""The traffic: conversations of two tenants, written down with every request's bytes and the moment it is sent at.

What the simulated engines will answer follows from the prompt alone, so the histories can be written beforehand.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

import orjson

from gateway.core.request import Endpoint
from gateway.demo.applications import Fields, Message, Script, agent, prose, rag, support
from gateway.simulator.answers import AnswerRequest, Author, GeneratedAnswer, ToolChoice
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

MODEL = "demo"
TENANTS = ("acme", "bolt")
_TENANT_WEIGHTS = (3, 2)
_THINK_SECONDS = (1.5, 6.0)
"""Between two requests of a conversation; the answer to the first comes within it."""

_DAY = datetime(2026, 3, 2, 9)
_TRIMMED_HISTORY = 6
"""Messages that the application that trims its histories keeps behind the system message."""

_SHARED = random.Random("what the conversations of an application share")
_CLOCK_SYSTEM = "You write the briefing of the operations desk. What it has to contain:\n" + prose(_SHARED, 40)
_TRIMMED_SYSTEM = "You are the tutor of a school for postmen. What you teach:\n" + prose(_SHARED, 30)


@dataclass(frozen=True)
class Turn:
    """One request.

    Attributes:
        at: Seconds from the beginning of the recording.
        body: Its bytes.
        says: The answer: its text, or the arguments of its tool call.
    """

    at: float
    body: bytes
    says: str


@dataclass(frozen=True)
class Conversation:
    """One conversation.

    Attributes:
        tenant: Whose.
        source: Which application's.
        turns: Its requests.
    """

    tenant: str
    source: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Recording:
    """All of them.

    Attributes:
        conversations: In the order in which they begin.
        seed: What they, and the gateways that their requests go to, follow from.
    """

    conversations: tuple[Conversation, ...]
    seed: int

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return sum(len(conversation.turns) for conversation in self.conversations)

    @property
    def seconds(self) -> float:
        """When the last one is sent."""
        return max(conversation.turns[-1].at for conversation in self.conversations)


@dataclass
class _Clock:
    """The time in the recording, as the application that prints it sees it."""

    seconds: float = 0.0


def record(conversations: int, per_second: float, seed: int) -> Recording:
    """Write conversations down.

    Args:
        conversations: How many.
        per_second: Requests a second, on the average over the time in which conversations begin.
        seed: The same seed gives the same bytes.
    """
    chance = random.Random(f"several gateways, {seed}")
    recorder = _Recorder()
    # Of each: its name, its share of the conversations, how it asks.
    applications: list[tuple[str, int, Callable[[random.Random, _Clock], Script]]] = [
        ("support", 8, lambda rng, _: support(rng)),
        ("rag", 5, lambda rng, _: rag(rng)),
        ("agent", 4, lambda rng, _: agent(rng)),
        ("briefing", 2, _briefing),
        ("tutor", 2, lambda rng, _: _tutor(rng)),
    ]
    weights = tuple(accumulate(weight for _, weight, _ in applications))
    written = []
    for _ in range(conversations):
        source, _, script = chance.choices(applications, cum_weights=weights)[0]
        (tenant,) = chance.choices(TENANTS, _TENANT_WEIGHTS)
        written.append((tenant, source, chance.random(), recorder.write(script, random.Random(chance.random()))))
    beginning = sum(len(turns) for *_, turns in written) / per_second
    shifted = [
        Conversation(tenant, source, tuple(Turn(turn.at + at * beginning, turn.body, turn.says) for turn in turns))
        for tenant, source, at, turns in written
    ]
    return Recording(tuple(sorted(shifted, key=lambda conversation: conversation.turns[0].at)), seed)


class _Recorder:
    def __init__(self) -> None:
        self._encoder: LocalEncoder = load_local("builtin:demo")
        self._author = Author(self._encoder)
        self._calls = 0

    def write(self, application: Callable[[random.Random, _Clock], Script], rng: random.Random) -> list[Turn]:
        """One conversation, from second 0 on."""
        clock = _Clock()
        script = application(rng, clock)
        turns = []
        fields = next(script)
        while True:
            answer = self._answer(fields)
            asked = {"model": MODEL, **fields, "stream": True, "stream_options": {"include_usage": True}}
            turns.append(Turn(clock.seconds, orjson.dumps(asked), answer.text))
            clock.seconds += rng.uniform(*_THINK_SECONDS)
            try:
                fields = script.send(self._message(answer))
            except StopIteration:
                return turns

    def _answer(self, fields: Fields) -> GeneratedAnswer:
        (prompt,) = self._encoder.encode(Endpoint.CHAT, fields)
        return self._author.write(prompt, 0, AnswerRequest(max_tokens=fields["max_tokens"], tool=_asked_tool(fields)))

    def _message(self, answer: GeneratedAnswer) -> Message:
        if answer.tool is None:
            return {"role": "assistant", "content": answer.text}
        self._calls += 1
        function = {"name": answer.tool, "arguments": answer.text}
        call = {"id": f"call_{self._calls}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def _asked_tool(fields: Fields) -> ToolChoice | None:
    choice: Any = fields.get("tool_choice")
    if not isinstance(choice, dict):
        return None
    name = choice["function"]["name"]
    functions = {tool["function"]["name"]: tool["function"] for tool in fields["tools"]}
    return ToolChoice(name, functions[name]["parameters"])


def _briefing(rng: random.Random, clock: _Clock) -> Script:
    """The time stands in the first line of the system prompt, so hardly anything is ever reused."""
    began = _DAY + timedelta(seconds=rng.randrange(36_000))
    messages: list[Message] = []
    for _ in range(rng.randint(1, 3)):
        now = began + timedelta(seconds=round(clock.seconds))
        system = {"role": "system", "content": f"Current time: {now.isoformat()}\n{_CLOCK_SYSTEM}"}
        messages.append({"role": "user", "content": prose(rng, 1)})
        messages.append((yield {"messages": [system, *messages], "max_tokens": 32}))


def _tutor(rng: random.Random) -> Script:
    """A long chat of which only the latest messages are sent."""
    system = {"role": "system", "content": _TRIMMED_SYSTEM}
    messages: list[Message] = []
    for _ in range(rng.randint(5, 9)):
        messages.append({"role": "user", "content": prose(rng, rng.randint(2, 5))})
        messages = messages[-_TRIMMED_HISTORY - 1 :]
        messages.append((yield {"messages": [system, *messages], "max_tokens": 40}))
