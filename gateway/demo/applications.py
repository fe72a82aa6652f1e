"""The applications that the demo simulates. Each is a script that a user repeats, conversation after conversation.

A script is a generator: it yields the fields of a request and is sent the assistant's message. Everything else depends
on the user's random numbers, so that both sides get identical conversations.

Made-up text in the words of the built-in tokenizer: about one token a word, as with English and a real tokenizer.
"""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any

_NOUN_LIST = """account address agreement appointment box carrier category check customer delivery department device
document email exchange form guarantee invoice item label letter limit message number offer order package page
payment period plan price product receipt record refund request return room schedule service shipment sign station
store subscription supplier ticket transfer update voucher warehouse week"""
_VERB_LIST = """accept answer approve book cancel change check close confirm copy cover explain extend find forward
handle include keep mark move open pack pay prepare print receive record remove repair replace request review send
sign store track update use verify write"""
_ADJECTIVE_LIST = """available complete correct damaged different digital early empty expensive final free full late
local missing new old open original partial personal private public quick recent regular safe second separate small
special standard useful valid wrong"""
_NOUNS, _VERBS, _ADJECTIVES = _NOUN_LIST.split(), _VERB_LIST.split(), _ADJECTIVE_LIST.split()
_PATTERNS = (
    "When the {noun} is {adj}, {verb} the {other} before the next {third} and tell the customer why.",
    "Every {adj} {noun} with more than {number} items has to be checked again by the {other} team.",
    "Please {verb} the {noun} first, then the {other}, and keep the {third} for at least {number} days.",
    "There is no {noun} without a {adj} {other}; it must never {verb} the {third} of somebody else.",
    "If the {noun} cannot {verb} the {other}, it is {adj} and counts as a {third} of type {number}.",
    "According to section {number}, the {adj} {noun} may {verb} one {other} for each {third}.",
)


def sentence(rng: Random) -> str:
    """One sentence, about 20 tokens long. Two are hardly ever equal."""
    noun, other, third = rng.sample(_NOUNS, 3)
    return rng.choice(_PATTERNS).format(
        noun=noun,
        other=other,
        third=third,
        verb=rng.choice(_VERBS),
        adj=rng.choice(_ADJECTIVES),
        number=rng.randrange(2, 1000),
    )


def prose(rng: Random, sentences: int) -> str:
    """A paragraph of that many sentences."""
    return " ".join(sentence(rng) for _ in range(sentences))


Fields = dict[str, Any]
Message = dict[str, Any]
Script = Generator[Fields, Message, None]

# Content that users share has random numbers of its own, the same in every run.
_SHARED = Random("what the users of an application share")  # noqa: S311 - has to be reproducible

_SUPPORT_SYSTEM = "You are the support agent of a parcel service. House rules:\n" + prose(_SHARED, 60)

_RAG_SYSTEM = "Answer only from the passages below. If the answer is not there, say that you do not know."
_RAG_DOCUMENTS = tuple(f"Passages from handbook {n}:\n" + prose(_SHARED, 110) for n in range(1, 13))
_RAG_WEIGHTS = tuple(accumulate(1 / (rank + 2) for rank in range(len(_RAG_DOCUMENTS))))
"""Some handbooks are used more often than others."""

_AGENT_SYSTEM = "You are an agent that works on tickets by calling tools. How to work:\n" + prose(_SHARED, 20)
_AGENT_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": prose(_SHARED, 3),
            "parameters": {
                "type": "object",
                "properties": {
                    "ticket": {"type": "integer", "description": prose(_SHARED, 1)},
                    "query": {"type": "string", "description": prose(_SHARED, 1)},
                },
                "required": ["ticket", "query"],
            },
        },
    }
    for name in ("find_order", "read_ticket", "search_handbook", "check_stock", "update_record")
]

_BRIEFING_SYSTEM = "You write the briefing of the operations desk. What it has to contain:\n" + prose(_SHARED, 70)


@dataclass(frozen=True, slots=True)
class DemoApplication:
    """One application.

    Attributes:
        name: For people.
        source: The client family that its requests name.
        users: How many use it at the same time.
        script: One conversation of a user.
        note: A remark about its prompts, empty for none.
    """

    name: str
    source: str
    users: int
    script: Callable[[Random], Script]
    note: str = ""


def support(rng: Random) -> Script:
    """A chat of several turns behind the system prompt that all users share."""
    messages: list[Message] = [{"role": "system", "content": _SUPPORT_SYSTEM}]
    for _ in range(rng.randint(3, 7)):
        messages.append(_user(prose(rng, rng.randint(2, 6))))
        messages.append((yield {"messages": list(messages), "max_tokens": 40}))


def rag(rng: Random) -> Script:
    """A question about one of a few long documents, sometimes with a second one."""
    document = rng.choices(_RAG_DOCUMENTS, cum_weights=_RAG_WEIGHTS)[0]
    messages: list[Message] = [{"role": "system", "content": f"{_RAG_SYSTEM}\n\n{document}"}]
    for _ in range(rng.randint(1, 2)):
        messages.append(_user(prose(rng, 1)))
        messages.append((yield {"messages": list(messages), "max_tokens": 32}))


def agent(rng: Random) -> Script:
    """A run of tool calls; each result makes the history longer."""
    messages: list[Message] = [{"role": "system", "content": _AGENT_SYSTEM}, _user(prose(rng, 3))]
    for _ in range(rng.randint(5, 9)):
        tool = rng.choice(_AGENT_TOOLS)["function"]
        choice = {"type": "function", "function": {"name": tool["name"]}}
        reply = yield {
            "messages": list(messages),
            "tools": _AGENT_TOOLS,
            "tool_choice": choice,
            "max_tokens": 120,
        }
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            result = {"status": "ok", "found": [prose(rng, 2) for _ in range(rng.randint(2, 5))]}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    yield {"messages": list(messages), "tools": _AGENT_TOOLS, "tool_choice": "none", "max_tokens": 40}


def briefing(rng: Random) -> Script:
    """One question behind a long system prompt, equal for all users except for the time in its first line."""
    # A moment of today: canonicalization only takes times near the present for the current time.
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    now = today + timedelta(milliseconds=rng.randrange(86_400_000))
    system = f"Current time: {now.isoformat(timespec='milliseconds')}\n{_BRIEFING_SYSTEM}"
    yield {"messages": [{"role": "system", "content": system}, _user(prose(rng, 1))], "max_tokens": 32}


APPLICATIONS = (
    DemoApplication("support chat", "support-chat", 8, support),
    DemoApplication("RAG", "rag", 6, rag),
    DemoApplication("agent with tools", "agent", 4, agent),
    DemoApplication(
        "briefing",
        "briefing",
        2,
        briefing,
        "has the current time in the first line of its system prompt: everything behind it is new every time,"
        " wherever it goes.",
    ),
)
"""In the order in which they are shown."""


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
