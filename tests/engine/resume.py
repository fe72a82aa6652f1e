"""Checks: a replica is killed in the middle of a stream, and another one goes on as if nothing had been.

``python -m tests.engine.report --only resume`` runs them alone. Each of ten streams kills a replica, so this
takes as long as ten starts.
"""

import json
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.engine.cases import CHAT, user
from tests.engine.client import TIMEOUT, post
from tests.engine.findings import Finding
from tests.engine.gateway import Gateway, start_gateway
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.replica import MODEL, START_SECONDS, Process

_QUESTIONS = (
    "Why is the sky blue?",
    "Explain how bread is made.",
    "Write a short story about a lighthouse.",
    "What is a prime number?",
    "List the planets, and say something about each.",
    "How does a bicycle stay upright?",
    "Describe the water cycle.",
    "What should I pack for a trip to the mountains?",
    "Write a poem about autumn.",
    "Why do cats purr?",
)
_TOKENS = 72
_FEWEST_SAME = 9
_READY_SECONDS = 60.0


@dataclass
class _Watched:
    """A stream during which its replica died.

    Attributes:
        text: What it said.
        ids: The ids of its chunks.
        reasons: Its finish reasons.
        usage: Its usage.
        ends: How many end marks it had.
        replica: The one that was killed.
        pause_seconds: From the kill to the next piece of text.
    """

    text: str = ""
    ids: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    ends: int = 0
    replica: str = ""
    pause_seconds: float = 0.0


async def resume(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """Ten streams, each undisturbed first, then with the death of the replica that writes it."""
    relay = {"resume": True, "slow_start_seconds": 0, "health_interval_seconds": 0.5}
    gateway = start_gateway(folder, replicas, DEMO_TEMPLATE, "gateway-resume", relay=relay)
    same, whole = 0, 0
    pauses: list[float] = []
    different: list[str] = []
    broken: list[str] = []
    try:
        gateway.wait_ready("/readyz", _READY_SECONDS)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
            for number, question in enumerate(_QUESTIONS):
                body = {"messages": [user(question)], "max_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
                plain = await post(client, CHAT, body)
                _wait_until_all_are_ready(gateway)
                seen = await _killed_after(client, replicas, body, pieces=4 + 6 * number)
                pauses.append(seen.pause_seconds)
                if seen.text == plain.text:
                    same += 1
                else:
                    different.append(f"{question} {_TOKENS} tokens: {_where_apart(plain.text, seen.text)}")
                if problem := _problem(seen, plain.usage):
                    broken.append(f"{question} {problem}")
                else:
                    whole += 1
                killed = next(replica for replica in replicas if replica.name == seen.replica)
                killed.start_again()
                killed.wait_ready("/health", START_SECONDS)
                _wait_until_all_are_ready(gateway)
    finally:
        gateway.stop()
    count = len(_QUESTIONS)
    yield Finding(
        "a replica is killed (SIGKILL) in the middle of a stream, temperature 0: the whole text",
        f"{same} of {count} as undisturbed",
        f"at least {_FEWEST_SAME} of {count}",
        same >= _FEWEST_SAME,
        different,
        section="resume",
    )
    yield Finding(
        "what the client sees of it",
        f"{whole} of {count} streams unbroken, a pause of {statistics.median(pauses):.1f} s"
        f" (at most {max(pauses):.1f} s)",
        f"{count} with one id, one end, the usage of one answer",
        whole == count,
        broken,
        section="resume",
    )


async def _killed_after(
    client: httpx.AsyncClient, replicas: list[Process], body: dict[str, Any], *, pieces: int
) -> _Watched:
    """Stream an answer, and kill its replica after so many pieces of text."""
    seen = _Watched()
    request = {"model": MODEL, **body, "stream": True, "stream_options": {"include_usage": True}}
    killed_at = 0.0
    async with client.stream("POST", CHAT, json=request) as answer:
        seen.replica = answer.headers["x-gateway-replica"]
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                seen.ends += 1
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            seen.ids.add(chunk.get("id", "error"))
            seen.usage = chunk.get("usage") or seen.usage
            for choice in chunk.get("choices", ()):
                seen.reasons += [choice["finish_reason"]] if choice.get("finish_reason") else []
                if not (text := choice["delta"].get("content")):
                    continue
                seen.text += text
                pieces -= 1
                if killed_at and not seen.pause_seconds:
                    seen.pause_seconds = time.monotonic() - killed_at
                if pieces == 0:
                    next(replica for replica in replicas if replica.name == seen.replica).kill()
                    killed_at = time.monotonic()
    return seen


def _problem(seen: _Watched, usage: dict[str, Any]) -> str:
    """What is wrong with a stream; empty if nothing."""
    if len(seen.ids) != 1 or seen.reasons != ["length"] or seen.ends != 1:
        return f"ids {sorted(seen.ids)}, finish reasons {seen.reasons}, {seen.ends} end marks"
    # The tokens of the first part are counted by reading its text again.
    off = abs(seen.usage.get("completion_tokens", 0) - usage["completion_tokens"])
    if seen.usage.get("prompt_tokens") != usage["prompt_tokens"] or off > 1:
        return f"usage {seen.usage}, undisturbed {usage}"
    return "" if seen.pause_seconds else "nothing came after the kill"


def _where_apart(one: str, other: str) -> str:
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"apart after {same} characters: {one[same : same + 30]!r} undisturbed, {other[same : same + 30]!r} resumed"


def _wait_until_all_are_ready(gateway: Gateway) -> None:
    """A replica that has just come back is tried again."""
    deadline = time.monotonic() + _READY_SECONDS
    while any(row["state"] != "ready" for row in gateway.replicas().values()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not ready: {gateway.replicas()}")
        time.sleep(0.2)
