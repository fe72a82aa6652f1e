"""Checks: on a real engine, what canonicalization brings. How much is reused is what the engine reports.

``python -m tests.engine.report --only canon`` runs them alone, with those of ``canonical_answers``.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from gateway.canon.rewrite import rewritten
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint
from tests.canon.corpus_reader import Prompt, corpus
from tests.engine.canonical_answers import TRIM, answers
from tests.engine.cases import CHAT, assistant, call, system, user
from tests.engine.client import TIMEOUT, Seen, post
from tests.engine.findings import Finding
from tests.engine.gateway import start_gateway
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.replica import BLOCK_SIZE, MODEL, Process
from tests.engine.tenants import Tenant
from tests.engine.texts import prose

_READY_SECONDS = 60.0
_REQUESTS = 10
_TURNS = 10
_TOOL_TURNS = 5
_CONTEXT_TOKENS = 4096
_AT_ONCE = 2
_LEAST_OF_UNTIMED = 0.9
_LEAST_OF_HISTORY = 0.95
_NEAR_NOTHING = 0.05

_QUESTIONS = (
    "Who takes care of this, and until when?",
    "Please say that again in one short sentence.",
    "Is there anything else that I have to bring along?",
    "What did I ask you first?",
    "And if the office is closed?",
)


async def canonical(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """All of these checks, as a section of their own."""
    async for finding in _findings(folder, replicas):
        yield dataclasses.replace(finding, section="canon")


async def _findings(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """A gateway whose tenants have other rules each, and the corpus past it."""
    plain = Tenant("plain", {"canon": dict.fromkeys(RuleName, "off")})
    suffix = Tenant("suffix", {"canon": {"dynamic-suffix": "apply"}})
    tools = Tenant("tools", {"canon": dict.fromkeys(("tool-order", "json-keys", "dynamic-suffix"), "apply")})
    single = [Tenant(f"only-{rule}", {"canon": {rule: "apply"}}) for rule in RuleName]
    tenants = [plain, suffix, tools, *single]
    gateway = start_gateway(
        folder,
        replicas,
        DEMO_TEMPLATE,
        "gateway-canonical",
        spaces={"isolation": "none"},
        tenants=[tenant.settings for tenant in tenants],
        canon={"history_trim": TRIM},
    )
    try:
        gateway.wait_ready("/readyz", _READY_SECONDS)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
            yield await _timestamps(client, plain, suffix)
            yield await _turns(client, suffix)
            yield await _tool_turns(client, plain, tools)
            async for finding in answers(client, plain, single):
                yield finding
        yield await _corpus(replicas)
    finally:
        gateway.stop()


async def _ask(client: httpx.AsyncClient, tenant: Tenant, body: Mapping[str, Any]) -> Seen:
    seen = await post(client, CHAT, {"temperature": 0, **body}, authorization=f"Bearer {tenant.key}")
    if seen.status != 200:
        raise RuntimeError(f"{tenant.id}: {seen.status} {seen.error}")
    return seen


def _clock(minutes: int) -> str:
    return f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%d %H:%M:%S}"


async def _timestamps(client: httpx.AsyncClient, plain: Tenant, suffix: Tenant) -> Finding:
    """One application three times, about another topic each time, so that none finds the blocks of another."""

    async def share(tenant: Tenant, topic: int, *, timed: bool) -> float:
        seen = []
        for number in range(_REQUESTS):
            front = f"Current time: {_clock(number)}\n" if timed else ""
            question = f"{_QUESTIONS[number % len(_QUESTIONS)]} (case {number})"
            messages = [system(f"{front}{prose(topic, 40)}"), user(question)]
            seen.append(await _ask(client, tenant, {"messages": messages, "max_tokens": 1}))
        return sum(each.confirmed for each in seen) / sum(each.usage["prompt_tokens"] for each in seen)

    as_sent = await share(plain, 400, timed=True)
    applied = await share(suffix, 410, timed=True)
    untimed = await share(suffix, 420, timed=False)
    return Finding(
        f"a system prompt of 900 tokens begins with the time, {_REQUESTS} requests: share of all tokens reused",
        f"{as_sent:.1%} as it is sent, {applied:.1%} with dynamic-suffix; {untimed:.1%} without the time"
        f" ({applied / untimed:.2f} of that)",
        f"near 0 as it is sent; then at least {_LEAST_OF_UNTIMED} of what it is without the time",
        as_sent <= _NEAR_NOTHING and applied >= _LEAST_OF_UNTIMED * untimed > 0,
    )


async def _turns(client: httpx.AsyncClient, tenant: Tenant) -> Finding:
    rules = prose(430, 12)
    messages: list[dict[str, Any]] = []
    steps: list[Seen] = []
    for turn in range(_TURNS):
        front = f"Current time: {_clock(turn)}\nRequest ID: {random.Random(turn).getrandbits(64):x}\n"
        messages.append(user(f"{_QUESTIONS[turn % len(_QUESTIONS)]} (turn {turn + 1})"))
        steps.append(await _ask(client, tenant, {"messages": [system(front + rules), *messages], "max_tokens": 14}))
        messages.append(assistant(steps[-1].text))
    shares = [_of_history(before, now) for before, now in itertools.pairwise(steps)]
    return Finding(
        f"{_TURNS} turns, another time and request id in the system prompt of each, dynamic-suffix:"
        " full blocks of the turn before, answer included, that are reused",
        f"{min(shares):.1%} at least, from turn 2 on; {steps[-1].confirmed} of"
        f" {steps[-1].usage['prompt_tokens']} tokens in the last",
        f"at least {_LEAST_OF_HISTORY:.0%} in every turn",
        min(shares) >= _LEAST_OF_HISTORY,
        [f"turn {turn}: {share:.1%}" for turn, share in enumerate(shares, 2) if share < _LEAST_OF_HISTORY],
    )


def _of_history(before: Seen, now: Seen, *, answer: bool = True) -> float:
    """How much of what the engine computed for one request the next one reused, in whole blocks.

    Args:
        before: The request before.
        now: The next one.
        answer: Whether its answer is in the next one's history; the last token of an answer is never computed.
    """
    history = before.usage["prompt_tokens"] + (before.usage["completion_tokens"] - 1 if answer else 0)
    return (now.confirmed // BLOCK_SIZE) / (history // BLOCK_SIZE)


async def _tool_turns(client: httpx.AsyncClient, plain: Tenant, tenant: Tenant) -> Finding:
    async def least(asking: Tenant, topic: int) -> tuple[float, Seen]:
        messages: list[dict[str, Any]] = []
        shares, last = [], None
        for turn in range(_TOOL_TURNS):
            messages.append(user(f"How is the weather at place {turn}?"))
            for step in ("ask", "look"):
                fields = {
                    "messages": [system(f"Current time: {_clock(turn)}\n{prose(topic, 8)}"), *messages],
                    "tools": _shuffled_tools(2 * turn + (step == "look")),
                    "tool_choice": "none",
                    "max_tokens": 8,
                }
                seen = await _ask(client, asking, fields)
                if last is not None:
                    shares.append(_of_history(last, seen, answer=step == "ask"))
                last = seen
                if step == "ask":
                    # What a larger model would have answered.
                    arguments = json.dumps({"place": turn, "days": 2, "at": {"z": 1, "a": 2}})
                    messages += [
                        assistant(None, tool_calls=[call("weather", arguments, f"c{turn}")]),
                        {"role": "tool", "tool_call_id": f"c{turn}", "content": f'{{"degrees": {turn}}}'},
                    ]
            messages.append(assistant(last.text))
        return min(shares), last

    sent, _ = await least(plain, 440)
    applied, last = await least(tenant, 450)
    return Finding(
        f"{_TOOL_TURNS} turns with a tool call each, another time in front, tools and their keys in another order"
        " every time; tool-order, json-keys, dynamic-suffix: full blocks of the request before that are reused",
        f"{applied:.1%} at least, {last.confirmed} of {last.usage['prompt_tokens']} tokens in the last;"
        f" as it is sent {sent:.1%} at least",
        f"at least {_LEAST_OF_HISTORY:.0%} in every request",
        applied >= _LEAST_OF_HISTORY,
    )


def _shuffled_tools(seed: int) -> list[dict[str, Any]]:
    """Three tools; they, and the keys in them, stand in another order for every seed."""
    order = random.Random(seed)

    def shuffled(value: Mapping[str, Any]) -> dict[str, Any]:
        entries = [(key, shuffled(each) if isinstance(each, dict) else each) for key, each in value.items()]
        order.shuffle(entries)
        return dict(entries)

    places = {"place": {"type": "integer", "description": "Number of the place."}, "days": {"type": "integer"}}
    tools = [
        shuffled(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": f"Tells the {name} of a place.",
                    "parameters": {"type": "object", "properties": places, "required": ["place"]},
                },
            }
        )
        for name in ("weather", "traffic", "tides")
    ]
    order.shuffle(tools)
    return tools


async def _corpus(replicas: Sequence[Process]) -> Finding:
    """Past the gateway: the prompts have their own times, and rules compare them with the clock."""
    prompts = corpus()
    gate = asyncio.Semaphore(_AT_ONCE)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=replica.url, timeout=TIMEOUT))
            for replica in replicas
        ]

        async def accepted(number: int, prompt: Prompt) -> tuple[str, int, int]:
            async with gate:
                client = clients[number % len(clients)]
                before = json.dumps(prompt.body | {"model": MODEL, "max_tokens": 1, "stream": False}).encode()
                status = await _status(client, prompt, _canonical_body(prompt, before))
                # Nothing is learned from how the original is taken if the canonical form is.
                return prompt.name, status, status if status == 200 else await _status(client, prompt, before)

        found = await asyncio.gather(*(accepted(number, prompt) for number, prompt in enumerate(prompts)))
    broken = [f"{name}: {now}, but {before} as it was" for name, now, before in found if now != 200 == before]
    taken = sum(now == 200 for _, now, _ in found)
    return Finding(
        f"{len(prompts)} prompts of the corpus with all rules applied, at the engine itself",
        f"{taken} answered, {len(found) - taken - len(broken)} refused as without the rules, {len(broken)} broken",
        "none broken, and most answered",
        not broken and taken > len(found) / 2,
        broken,
    )


def _canonical_body(prompt: Prompt, body: bytes) -> bytes:
    fields = json.loads(body)
    settings = CanonSettings.model_validate(dict(prompt.settings))
    given = RuleContext(now=prompt.now, endpoint=Endpoint(prompt.endpoint), context_limit=_CONTEXT_TOKENS)
    found = rulebook(settings).canonical(fields, set(RuleName), given)
    return rewritten(body, fields, found.fields) if found.fields is not fields else body


async def _status(client: httpx.AsyncClient, prompt: Prompt, body: bytes) -> int:
    answer = await client.post(prompt.endpoint, content=body, headers={"content-type": "application/json"})
    return answer.status_code
