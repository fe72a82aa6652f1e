"""Check: over a mix of conversations with the model's real replies, what is predicted is what the engine reports.

Four applications with a long prompt of their own, several sessions of each at once, streams and plain answers in turn:
a plain chat, an agent with tools, a chat whose system prompt is a list of parts, and raw completions.
"""

import asyncio
import statistics
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.engine.cases import CHAT, COMPLETIONS, TOOLS, assistant, call, system, text, user
from tests.engine.client import TIMEOUT, Seen, post, stream
from tests.engine.findings import Finding
from tests.engine.replica import Process
from tests.engine.texts import prose

SESSIONS = 4
TURNS = 5
AT_ONCE = 3
LEAST_SHARE = 0.95
LEAST_REQUESTS = 60

_QUESTIONS = (
    "Who takes care of this, and until when?",
    "Thank you. Please say the same again in one short sentence, for somebody who is new here.",
    "Wie heißt das auf Deutsch? Antworte bitte kurz. 😀",
    "List three things that may go wrong, each on a line of its own:\n1.\n2.\n3.",
    "What did I ask you first?",
)


@dataclass
class _Session:
    """One conversation: what was said so far, and how the next request looks."""

    application: int
    number: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt: str = ""

    @property
    def name(self) -> str:
        return f"{('chat', 'agent', 'parts', 'completion')[self.application]} {self.number}"

    @property
    def path(self) -> str:
        return COMPLETIONS if self.application == 3 else CHAT

    def next_request(self, turn: int) -> dict[str, Any]:
        rules = prose(self.application, 12)
        question = f"{_QUESTIONS[(turn + self.number) % len(_QUESTIONS)]} (session {self.number})"
        # Long replies fill blocks of their own while they are decoded, and the next turn finds those too.
        limits = {"max_tokens": 64 if self.number % 2 else 20, "temperature": 0}
        if self.application == 3:
            self.prompt = f"{self.prompt or rules}\n\nQ: {question}\nA:"
            return {"prompt": self.prompt, **limits}
        if not self.messages:
            self.messages = [system([text(rules), text("Be brief.")] if self.application == 2 else rules)]
        if self.application == 1 and turn == 2:
            self.messages += [
                user("Look it up."),
                assistant(None, tool_calls=[call("noop", ' {"topic":"rules" , "n": 1} ', f"c{self.number}")]),
                {"role": "tool", "tool_call_id": f"c{self.number}", "content": f'{{"rows": [1, 2, {self.number}]}}'},
            ]
        else:
            self.messages.append(user(question))
        tools = {"tools": TOOLS, "tool_choice": "none"} if self.application == 1 else {}
        return {"messages": list(self.messages), **tools, **limits}

    def take(self, reply: str) -> None:
        self.prompt += reply
        self.messages.append(assistant(reply))


async def conversations(gateway: Process) -> list[Finding]:
    """Hold all conversations; compare predicted and reported tokens of every request that follows a known one."""
    known: list[tuple[str, Seen]] = []
    gate = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:

        async def hold(session: _Session) -> None:
            async with gate:
                for turn in range(TURNS):
                    send = stream if (turn + session.number) % 2 else post
                    seen = await send(client, session.path, session.next_request(turn))
                    if seen.status != 200:
                        raise RuntimeError(f"{session.name}, turn {turn}: {seen.status} {seen.error}")
                    session.take(seen.text)
                    if session.number or turn:
                        known.append((f"{session.name}, turn {turn + 1}", seen))

        # The first session of an application makes its prompt known; the others come all together.
        await asyncio.gather(*(hold(_Session(application, 0)) for application in range(4)))
        later = [_Session(application, number) for number in range(1, SESSIONS) for application in range(4)]
        await asyncio.gather(*map(hold, later))
    return _findings(known)


def _findings(known: list[tuple[str, Seen]]) -> list[Finding]:
    wrong = [(name, seen) for name, seen in known if seen.predicted != seen.confirmed]
    share = 1 - len(wrong) / len(known)
    cached = sum(seen.confirmed for _, seen in known)
    prompts = sum(seen.usage["prompt_tokens"] for _, seen in known)
    warm = sum(seen.decision == "warm" for _, seen in known)
    places = {name: sum(seen.replica == name for _, seen in known) for name in sorted({s.replica for _, s in known})}
    uncounted = [name for name, seen in known if seen.counted != seen.usage["prompt_tokens"]]
    return [
        Finding(
            "predicted equals reported, of the requests that follow a known one",
            f"{len(known) - len(wrong)} of {len(known)} ({share:.1%})",
            f"at least {LEAST_SHARE:.0%}, of at least {LEAST_REQUESTS}",
            share >= LEAST_SHARE and len(known) >= LEAST_REQUESTS,
            [
                f"{name}: {seen.predicted} predicted, {seen.confirmed} reported, of {seen.counted} tokens"
                f" ({seen.decision} at {seen.replica})"
                for name, seen in wrong
            ],
        ),
        Finding(
            "the same requests: where they went, and what was cached",
            f"{warm} warm; {', '.join(f'{count} at {name}' for name, count in places.items())};"
            f" {cached} of {prompts} tokens cached ({cached / prompts:.0%}), median uncached"
            f" {statistics.median(seen.counted - seen.confirmed for _, seen in known):.0f} tokens",
            "both replicas used",
            len(places) == 2,
        ),
        Finding(
            "the same requests: prompt tokens equal to usage.prompt_tokens",
            f"{len(known) - len(uncounted)} of {len(known)}",
            "all",
            not uncounted,
            uncounted,
        ),
    ]
