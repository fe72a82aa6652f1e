"""Checks: a stream arrives as it is made, a client that leaves stops its request, a replica that dies is replaced."""

import asyncio
import time

import httpx

from tests.engine.cases import CHAT, system, user
from tests.engine.client import TIMEOUT, post, stream
from tests.engine.findings import Finding
from tests.engine.replica import MODEL, Process, running_requests
from tests.engine.texts import prose

_TOKENS = 40
_STOPPED_WITHIN_SECONDS = 10.0


async def streaming(gateway: Process) -> Finding:
    """A stream of many tokens: its pieces come one after the other, not at the end."""
    body = {"messages": [user("Tell me a long story.")], "max_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        seen = await stream(client, CHAT, body)
    first, last = seen.arrivals[0], seen.arrivals[-1]
    return Finding(
        "a stream arrives piece by piece",
        f"{len(seen.arrivals)} pieces of {_TOKENS} tokens, the first after {first:.2f} s, the last after {last:.2f} s",
        f"at least {_TOKENS // 2} pieces, the first before half the time",
        len(seen.arrivals) >= _TOKENS // 2 and first < last / 2,
    )


async def cancellation(gateway: Process, replicas: list[Process]) -> Finding:
    """A client leaves in the middle of a stream: the engine stops computing."""
    body = {
        "model": MODEL,
        "messages": [user("Tell me a very long story.")],
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": True,
    }
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        async with client.stream("POST", CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            for _ in range(6):
                await anext(lines)
            before = sum(map(running_requests, replicas))
        left = time.monotonic()
        while (after := sum(map(running_requests, replicas))) and time.monotonic() < left + _STOPPED_WITHIN_SECONDS:
            await asyncio.sleep(0.1)
    return Finding(
        "a client leaves in the middle of a stream",
        f"{before} running at the engines before, {after} after {time.monotonic() - left:.1f} s",
        f"1, then 0 within {_STOPPED_WITHIN_SECONDS:.0f} s",
        before == 1 and after == 0,
    )


async def failover(gateway: Process, replicas: list[Process]) -> list[Finding]:
    """Kill the replica that holds a conversation; its next turn and all others are served by the one that is left."""
    rules = system(prose(40, 15))
    limits = {"max_tokens": 4, "temperature": 0}
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        before = await post(client, CHAT, {"messages": [rules, user("Hello?")], **limits})
        next(replica for replica in replicas if replica.name == before.replica).kill()
        killed = time.monotonic()
        after = await post(client, CHAT, {"messages": [rules, user("Still there?")], **limits})
        seconds = time.monotonic() - killed
        more = [await post(client, CHAT, {"messages": [rules, user(f"And {n}?")], **limits}) for n in range(6)]
        ready = (await client.get("/readyz")).status_code
    return [
        Finding(
            "the warm replica is killed (SIGKILL), the conversation goes on",
            f"{before.decision} at {before.replica}, then {after.status} {after.decision} at {after.replica}"
            f" after {seconds:.1f} s",
            "200 from the other replica",
            before.status == after.status == 200 and after.replica not in ("", before.replica),
        ),
        Finding(
            "after that",
            f"{sum(seen.status == 200 for seen in more)} of {len(more)} requests answered, /readyz {ready}",
            "all, /readyz 200",
            all(seen.status == 200 for seen in more) and ready == 200,
        ),
    ]
