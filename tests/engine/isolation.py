"""Checks: on a real engine, who reuses whose prefixes, and until when.

``python -m tests.engine.report --only isolation`` runs them alone.
"""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.engine.client import TIMEOUT, Seen
from tests.engine.findings import Finding
from tests.engine.gateway import PROGRAM, Gateway, start_gateway
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.prepared import masked, warmed
from tests.engine.replica import Process
from tests.engine.tenants import SECRET, Tenant, apart, reported, shared

_READY_SECONDS = 60.0
_IDLE_SECONDS = 12.0
_AGE_SECONDS = 25.0
_MARGIN_SECONDS = 0.5

Check = Callable[[httpx.AsyncClient, Gateway], Awaitable[Finding]]


async def isolation(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """Three gateways with their tenants, one after the other, in front of the same replicas."""
    a, b = Tenant("a"), Tenant("b")
    idle, aged = Tenant("idle", {"idle_ttl_seconds": _IDLE_SECONDS}), Tenant("aged", {"max_age_seconds": _AGE_SECONDS})
    private = Tenant("private", {"personal_data": "mask"})
    checks: list[Check] = [
        lambda client, _: _tenants(client, a, b),
        lambda client, _: _salts(client, a, b),
        lambda client, gateway: _resets(client, gateway, a, b),
        lambda client, _: _lifetimes(client, idle, aged),
        lambda client, gateway: warmed(client, gateway, folder, a, b),
        lambda client, _: masked(client, private),
    ]
    tenants = [a, b, idle, aged, private]
    async for finding in _through(folder, replicas, "tenants", {"secret": SECRET}, tenants, checks):
        yield finding
    one, two, other = Tenant("one", {"group": "g"}), Tenant("two", {"group": "g"}), Tenant("other")
    async for finding in _through(
        folder,
        replicas,
        "groups",
        {"isolation": "group", "secret": SECRET},
        [one, two, other],
        [lambda client, _: _groups(client, one, two, other)],
    ):
        yield finding
    async for finding in _through(
        folder, replicas, "none", {"isolation": "none"}, [a, b], [lambda client, _: _together(client, a, b)]
    ):
        yield finding
    expiring = {"isolation": "none", "idle_ttl_seconds": _IDLE_SECONDS, "secret": SECRET}
    async for finding in _through(
        folder, replicas, "expiring", expiring, [a, b], [lambda client, _: _expiring_together(client, a, b)]
    ):
        yield finding


async def _through(
    folder: Path,
    replicas: list[Process],
    name: str,
    spaces: dict[str, Any],
    tenants: list[Tenant],
    checks: list[Check],
) -> AsyncIterator[Finding]:
    settings = [tenant.settings for tenant in tenants]
    gateway = start_gateway(
        folder, replicas, DEMO_TEMPLATE, f"gateway-isolation-{name}", spaces=spaces, tenants=settings
    )
    try:
        gateway.wait_ready("/readyz", _READY_SECONDS)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
            for check in checks:
                yield await check(client, gateway)
    finally:
        gateway.stop()


async def _tenants(client: httpx.AsyncClient, a: Tenant, b: Tenant) -> Finding:
    first, again = await a.ask(client, 1), await a.ask(client, 1)
    other, others_again = await b.ask(client, 1), await b.ask(client, 1)
    return Finding(
        "tenant A sends a prompt twice, then tenant B sends the same twice: prompt tokens reused",
        f"A {reported(first)}, then {reported(again)}; B {reported(other)}, then {reported(others_again)}",
        "none for B's first, predicted as well; then its own",
        apart(other) and shared(again) and shared(others_again),
    )


async def _salts(client: httpx.AsyncClient, a: Tenant, b: Tenant) -> Finding:
    plain = await a.ask(client, 2)
    steps = [(a, "x"), (a, "x"), (a, "y"), (a, None), (b, "x")]
    seen = [await tenant.ask(client, 2, **({"cache_salt": salt} if salt else {})) for tenant, salt in steps]
    names = [f"{tenant.id} with {salt!r}" if salt else f"{tenant.id} without" for tenant, salt in steps]
    first, again, another, without, others = seen
    return Finding(
        "salts that clients send narrow their tenant's space: prompt tokens reused",
        "; ".join(f"{name} {reported(each)}" for name, each in zip(names, seen, strict=True)),
        "only for the same tenant with the same salt",
        apart(plain) and apart(first) and shared(again) and apart(another) and shared(without) and apart(others),
    )


async def _resets(client: httpx.AsyncClient, gateway: Gateway, a: Tenant, b: Tenant) -> Finding:
    async def warm(tenant: Tenant) -> Seen:
        await tenant.ask(client, 3)
        return await tenant.ask(client, 3)

    warm_a, _ = await warm(a), await warm(b)
    async with httpx.AsyncClient(base_url=gateway.admin_url, timeout=TIMEOUT) as admin:
        answer = await admin.post("/admin/api/spaces/reset", json={"tenant": a.id})
        answer.raise_for_status()
    by_request = await a.ask(client, 3)
    warm_again = await a.ask(client, 3)
    done = await asyncio.to_thread(
        subprocess.run,
        [PROGRAM, "reset", "--tenant", a.id, "--url", gateway.admin_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    by_command = await a.ask(client, 3)
    spared = await b.ask(client, 3)
    resets = gateway.total("gateway_resets_total", cause="manual")
    return Finding(
        "tenant A is reset by POST /admin/api/spaces/reset, and by the command: prompt tokens reused",
        f"before {reported(warm_a)}, after {reported(by_request)};"
        f" before {reported(warm_again)}, after {reported(by_command)};"
        f" B, beside it, {reported(spared)}; {resets} spaces counted as reset",
        "none after each; B keeps its own",
        shared(warm_a)
        and apart(by_request)
        and shared(warm_again)
        and apart(by_command)
        and shared(spared)
        and done.returncode == 0
        and resets > 0,
        [] if done.returncode == 0 else [done.stdout + done.stderr],
    )


async def _lifetimes(client: httpx.AsyncClient, idle: Tenant, aged: Tenant) -> Finding:
    begun = time.monotonic()
    await aged.ask(client, 4)
    await idle.ask(client, 4)
    in_time = await idle.ask(client, 4)
    await asyncio.sleep(_IDLE_SECONDS + _MARGIN_SECONDS)
    too_late = await idle.ask(client, 4)
    young = await aged.ask(client, 4)
    before_age = time.monotonic() - begun < _AGE_SECONDS
    await asyncio.sleep(max(begun + _AGE_SECONDS + _MARGIN_SECONDS - time.monotonic(), 0))
    old = await aged.ask(client, 4)
    return Finding(
        f"spaces that end when not used for {_IDLE_SECONDS:.0f} s, or at the age of {_AGE_SECONDS:.0f} s:"
        " prompt tokens reused",
        f"in time {reported(in_time)}, after the pause {reported(too_late)};"
        f" young {reported(young)}, old {reported(old)}",
        "none after the pause, none when old",
        shared(in_time) and apart(too_late) and (shared(young) or not before_age) and apart(old),
    )


async def _groups(client: httpx.AsyncClient, one: Tenant, two: Tenant, other: Tenant) -> Finding:
    first, second, third = [await tenant.ask(client, 5) for tenant in (one, two, other)]
    return Finding(
        "isolation: group; one tenant, another of its group and one of no group send the same: prompt tokens reused",
        f"{reported(first)}; {reported(second)}; {reported(third)}",
        "only within the group",
        apart(first) and shared(second) and apart(third),
    )


async def _together(client: httpx.AsyncClient, a: Tenant, b: Tenant) -> Finding:
    first, second = [await tenant.ask(client, 6) for tenant in (a, b)]
    return Finding(
        "isolation: none; two tenants send the same: prompt tokens reused",
        f"A {reported(first)}; B {reported(second)}",
        "B reuses what A sent",
        apart(first) and shared(second),
    )


async def _expiring_together(client: httpx.AsyncClient, a: Tenant, b: Tenant) -> Finding:
    first, second = [await tenant.ask(client, 7) for tenant in (a, b)]
    await asyncio.sleep(_IDLE_SECONDS + _MARGIN_SECONDS)
    late = await a.ask(client, 7)
    again = await b.ask(client, 7)
    return Finding(
        f"isolation: none, with idle_ttl_seconds: {_IDLE_SECONDS:.0f}; two tenants send the same, and again after a"
        " pause: prompt tokens reused",
        f"A {reported(first)}; B {reported(second)}; after the pause A {reported(late)}, B {reported(again)}",
        "B reuses what A sent; none right after the pause",
        apart(first) and shared(second) and apart(late) and shared(again),
    )
