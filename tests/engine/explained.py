"""Checks: on a real engine, why tokens were computed again. What the gateway says is held against the engine's reports.

``python -m tests.engine.report --only explained`` runs them alone.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.engine.cases import CHAT, assistant, system, user
from tests.engine.client import TIMEOUT, Seen, post
from tests.engine.findings import Finding
from tests.engine.gateway import Gateway, start_gateway
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.replica import BLOCK_SIZE, Process
from tests.engine.tenants import SECRET, Tenant
from tests.engine.texts import prose

_READY_SECONDS = 60.0
_EXPLAINED_SECONDS = 15.0
_IDLE_SECONDS = 12.0
_CLIENTS = 16
_SHORT = 8
"""Sentences in front of a question: about 170 tokens."""


@dataclass(frozen=True)
class Why:
    """What the gateway says of one request.

    Attributes:
        seen: Its answer.
        hits: Tokens not computed again.
        missed: Tokens per reason.
        detail: All of ``GET /admin/api/requests/{id}``.
    """

    seen: Seen
    hits: int
    missed: Mapping[str, int]
    detail: Mapping[str, Any]

    def __str__(self) -> str:
        reasons = ", ".join(f"{tokens} {reason}" for reason, tokens in self.missed.items())
        return f"{self.hits} of {sum(self.missed.values()) + self.hits} reused; {reasons}"

    def adds_up(self) -> bool:
        """Whether hits are what the engine reports, and hits and reasons are the prompt as it counts it."""
        return self.hits == self.seen.confirmed and self.hits + sum(self.missed.values()) == self.seen.counted

    def is_for(self, reason: str, tokens: int) -> bool:
        """Whether exactly so many tokens, and more than none, were missed for a reason, and all adds up."""
        return self.adds_up() and self.missed.get(reason, 0) == tokens > 0


class Asking:
    """Asks through a gateway, and asks the gateway why."""

    def __init__(self, gateway: Gateway, client: httpx.AsyncClient) -> None:
        self._gateway = gateway
        self._client = client
        self._count = 0

    async def ask(self, messages: Sequence[Mapping[str, Any]], tenant: Tenant | None = None, **fields: Any) -> Why:
        """Send one request and wait for its explanation."""
        self._count += 1
        request_id = f"why-{self._gateway.url.rsplit(':', 1)[1]}-{self._count}"
        headers = {"x-request-id": request_id} | ({"authorization": f"Bearer {tenant.key}"} if tenant else {})
        body = {"messages": messages, "max_tokens": 2, "temperature": 0} | fields
        seen = await post(self._client, CHAT, body, **headers)
        if seen.status != 200:
            raise RuntimeError(f"{seen.status} {seen.error}")
        return await why(self._gateway, request_id, seen)


async def why(gateway: Gateway, request_id: str, seen: Seen) -> Why:
    """What the gateway says of a request, as soon as it does."""
    async with httpx.AsyncClient(base_url=gateway.admin_url, timeout=TIMEOUT) as admin:
        async with asyncio.timeout(_EXPLAINED_SECONDS):
            while (answer := await admin.get(f"/admin/api/requests/{request_id}")).status_code != 200:
                await asyncio.sleep(0.05)
    detail = answer.json()
    return Why(seen, detail["hits"], {each["reason"]: each["tokens"] for each in detail["missed"]}, detail)


async def explained(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """Gateways with and without tenants and events, one after the other, in front of the same replicas."""
    a, b, idle = Tenant("a"), Tenant("b"), Tenant("idle", {"idle_ttl_seconds": _IDLE_SECONDS})
    tenants = [each.settings for each in (a, b, idle)]
    async for asking, gateway in asking_through(folder, replicas, "apart", spaces={"secret": SECRET}, tenants=tenants):
        for finding in await _kept_apart(asking, gateway, a, b, idle):
            yield finding
    async for asking, _ in asking_through(folder, replicas, "events"):
        yield await _conversation(asking)
        yield await _time(asking)
        yield await _bypassed(asking)
        yield await _many_at_once(asking)
        yield await _emptied(asking, replicas, "evicted")
    async for asking, _ in asking_through(folder, replicas, "blind", events="off"):
        yield await _emptied(asking, replicas, "stale_index")
    here, everywhere = Tenant("here", {"regions": ["here"]}), Tenant("everywhere")
    async for asking, _ in asking_through(
        folder,
        replicas,
        "regions",
        regions={replicas[0].name: "here"},
        spaces={"isolation": "none"},
        tenants=[here.settings, everywhere.settings],
    ):
        yield await _pinned(asking, here, everywhere, replicas)


async def asking_through(
    folder: Path, replicas: list[Process], name: str, **options: Any
) -> AsyncIterator[tuple[Asking, Gateway]]:
    """A gateway with these settings, and the one who asks through it; it ends behind the loop."""
    gateway = start_gateway(folder, replicas, DEMO_TEMPLATE, f"gateway-explained-{name}", **options)
    try:
        gateway.wait_ready("/readyz", _READY_SECONDS)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
            yield Asking(gateway, client), gateway
    finally:
        gateway.stop()


async def _kept_apart(asking: Asking, gateway: Gateway, a: Tenant, b: Tenant, idle: Tenant) -> list[Finding]:
    prompt = [system(prose(300, _SHORT)), user("Why?")]
    await asking.ask(prompt, a)
    warm, other = await asking.ask(prompt, a), await asking.ask(prompt, b)
    salted = await asking.ask(prompt, a, cache_salt="x")
    await _reset(gateway, a)
    reset = await asking.ask(prompt, a)
    late = [system(prose(301, _SHORT)), user("Why?")]
    await asking.ask(late, idle)
    in_time = await asking.ask(late, idle)
    await asyncio.sleep(_IDLE_SECONDS + 0.5)
    expired = await asking.ask(late, idle)
    return [
        _finding("tenant B sends what A has warm", other, "tenant_isolated", warm.hits),
        _finding("A sends it with a cache_salt", salted, "scope_isolated", warm.hits),
        _finding("A sends it after a reset", reset, "reset", warm.hits),
        _finding(f"a tenant sends it again after {_IDLE_SECONDS:.0f} s", expired, "expired", in_time.hits),
    ]


async def _reset(gateway: Gateway, tenant: Tenant) -> None:
    async with httpx.AsyncClient(base_url=gateway.admin_url, timeout=TIMEOUT) as admin:
        (await admin.post("/admin/api/spaces/reset", json={"tenant": tenant.id})).raise_for_status()


async def _conversation(asking: Asking) -> Finding:
    messages = [system(prose(310, _SHORT)), user("Who opens the office?")]
    first = await asking.ask(messages, max_tokens=12)
    second = await asking.ask([*messages, assistant(first.seen.text), user("And when?")])
    lost = second.missed.get("block_boundary", 0) + second.missed.get("reply_rerendered", 0)
    return Finding(
        "a conversation grows by one turn: why",
        f"{first}; then {second}",
        "first_seen; then new_content, and less than a block and the reply are lost",
        first.missed == {"first_seen": first.seen.counted}
        and second.adds_up()
        and second.hits > first.seen.counted - 2 * BLOCK_SIZE
        and second.missed.get("new_content", 0) > 0
        and lost < BLOCK_SIZE + 12
        and set(second.missed) <= {"new_content", "block_boundary", "reply_rerendered"},
    )


async def _time(asking: Asking) -> Finding:
    rules = prose(311, _SHORT)
    await asking.ask([system(f"It is 2026-11-20 08:15:00.\n{rules}"), user("Why?")])
    later = await asking.ask([system(f"It is 2026-11-21 09:47:31.\n{rules}"), user("Why?")])
    place = later.detail["difference"] or {}
    return Finding(
        "a time in front of the system prompt changes: why",
        f"{later}; at {place.get('path')}, line {place.get('line')}",
        "dynamic_time for most of it, at messages[0].content, line 1",
        later.adds_up()
        and later.missed.get("dynamic_time", 0) > 0.8 * later.seen.counted
        and (place.get("path"), place.get("line")) == ("messages[0].content", 1),
    )


async def _bypassed(asking: Asking) -> Finding:
    prompt = [system(prose(312, _SHORT)), user("Why?")]
    await asking.ask(prompt)
    warm = await asking.ask(prompt)
    bypassing = await asking.ask(prompt, prompt_logprobs=1)
    return _finding("a warm prompt, with log probabilities of the prompt", bypassing, "cache_bypassed", warm.hits)


async def _many_at_once(asking: Asking) -> Finding:
    rules = system(prose(313, _SHORT))
    await asking.ask([rules, user("Hello?")])
    warm = await asking.ask([rules, user("Still there?")])
    answers = await asyncio.gather(
        *(asking.ask([rules, user(f"Number {number}?")], max_tokens=60) for number in range(_CLIENTS))
    )
    elsewhere = [each for each in answers if each.seen.replica != warm.seen.replica and not each.hits]
    # Those sent before it may have left one more block that begins like its question.
    wrong = [
        each
        for each in elsewhere
        if not (each.adds_up() and 0 <= each.missed.get("load_balanced", 0) - warm.hits <= BLOCK_SIZE)
    ]
    return Finding(
        f"{_CLIENTS} requests at once for what one replica has warm: why those that were sent to the other one",
        f"{len(elsewhere)} of {_CLIENTS}: {elsewhere[0] if elsewhere else 'none'}",
        f"at least one; load_balanced for the {warm.hits} tokens that were warm, or a block more, each",
        bool(elsewhere) and not wrong,
        [str(each) for each in wrong],
    )


async def _emptied(asking: Asking, replicas: list[Process], reason: str) -> Finding:
    prompt = [system(prose(320, _SHORT)), user("Why?")]
    await asking.ask(prompt)
    warm = await asking.ask(prompt)
    replica = next(each for each in replicas if each.name == warm.seen.replica)
    async with httpx.AsyncClient(base_url=replica.url, timeout=TIMEOUT) as engine:
        (await engine.post("/reset_prefix_cache")).raise_for_status()
        # The engine publishes it with its next step.
        body = {"model": warm.detail["model"], "prompt": "x", "max_tokens": 1}
        (await engine.post("/v1/completions", json=body)).raise_for_status()
    await asyncio.sleep(1.0)
    again = await asking.ask(prompt)
    with_events = "with" if reason == "evicted" else "without"
    return _finding(
        f"the warm replica's cache is emptied behind the gateway, {with_events} events", again, reason, warm.hits
    )


async def _pinned(asking: Asking, here: Tenant, everywhere: Tenant, replicas: list[Process]) -> Finding:
    # Of several prompts one lands at the replica where the pinned tenant may not go.
    for topic in range(330, 345):
        prompt = [system(prose(topic, _SHORT)), user("Why?")]
        await asking.ask(prompt, everywhere)
        warm = await asking.ask(prompt, everywhere)
        if warm.seen.replica != replicas[0].name:
            pinned = await asking.ask(prompt, here)
            return _finding(
                "a tenant pinned to one replica's region sends what the other has warm", pinned, "pinned", warm.hits
            )
    return Finding("a prompt that is warm at the second replica", "none", "one", False)


def _finding(check: str, found: Why, reason: str, tokens: int) -> Finding:
    return Finding(
        f"{check}: why",
        str(found),
        f"{tokens} {reason}: what was reused before",
        found.is_for(reason, tokens),
        [] if found.is_for(reason, tokens) else found.detail["told"],
    )
