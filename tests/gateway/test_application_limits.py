"""Limits of applications, beside those of tenants, over real sockets."""

import asyncio

from api_errors import problem
from running_gateway import eventually
from tenancy import ask_as, sections, tenant

CODE = "rate_limit_exceeded"


def limited(**limits):
    return {"support": {"current": "v1", "versions": {"v1": {}}} | limits}


async def ask(gateway, name="a", prompt="support", **fields):
    return await ask_as(gateway, name, headers={"x-prompt-id": prompt} if prompt else None, **fields)


async def test_an_application_has_a_rate_of_its_own_over_all_tenants(engine, start_gateway):
    tenants = sections(tenant("a"), tenant("b"))
    gateway = await start_gateway(engine, prompts=limited(requests_per_second=0.001), **tenants)
    assert (await ask(gateway, "a")).status_code == 200
    refused = await ask(gateway, "b")
    message = problem(refused, 429, CODE)
    assert "application support may send 0.001 requests a second (requests_per_second)" in message
    assert int(refused.headers["retry-after"]) > 100
    assert [(await ask(gateway, "b", prompt)).status_code for prompt in ("sales", None)] == [200, 200]


async def test_what_the_application_refuses_uses_up_nothing_of_the_tenant(engine, start_gateway):
    tenants = sections(tenant("a", requests_per_second=2, prompt_tokens_per_minute=1000))
    gateway = await start_gateway(engine, prompts=limited(prompt_tokens_per_minute=20), **tenants)
    message = problem(await ask(gateway), 429, CODE)
    assert "application support may send 20 a minute (prompt_tokens_per_minute)" in message
    assert (await ask(gateway, prompt=None)).headers["x-ratelimit-remaining-requests"] == "1"


async def test_refusals_of_the_application_are_limited_for_each_tenant(engine, start_gateway):
    tenants = sections(tenant("a", requests_per_second=0.5), tenant("b"))
    gateway = await start_gateway(engine, prompts=limited(requests_per_second=0.001), **tenants)
    assert (await ask(gateway, "b")).status_code == 200
    assert "application support" in problem(await ask(gateway, "a"), 429, CODE)

    async def tenant_refuses() -> bool:
        message = problem(await ask(gateway, "a"), 429, CODE)
        return "tenant a may have 5 requests refused in 5s (requests_per_second)" in message

    await eventually(tenant_refuses)
    assert "application support" in problem(await ask(gateway, "b"), 429, CODE)


async def test_what_a_tenants_limit_refuses_does_not_count_as_refused_of_the_application(engine, start_gateway):
    tenants = sections(tenant("a", requests_per_second=50, prompt_tokens_per_minute=20), tenant("b"))
    gateway = await start_gateway(engine, prompts=limited(prompt_tokens_per_minute=10_000), **tenants)
    for _ in range(8):
        assert "tenant a may send 20 a minute" in problem(await ask(gateway, "a"), 429, CODE)
    assert (await ask(gateway, "b")).status_code == 200


async def test_what_the_tenant_refuses_uses_up_nothing_of_the_application(engine, start_gateway):
    tenants = sections(tenant("a", prompt_tokens_per_minute=20), tenant("b"))
    gateway = await start_gateway(engine, prompts=limited(requests_per_second=0.001), **tenants)
    assert "tenant a may send 20 a minute" in problem(await ask(gateway, "a"), 429, CODE)
    passed = await ask(gateway, "b")
    assert passed.status_code == 200
    assert passed.headers["x-ratelimit-remaining-requests"] == "0"


async def test_requests_that_run_count_until_they_end(start_engine, start_gateway):
    engine = await start_engine(decode_ms=200)
    gateway = await start_gateway(engine, prompts=limited(concurrent=1), **sections(tenant("a", concurrent=5)))
    first = asyncio.create_task(ask(gateway, max_tokens=20))
    await eventually(lambda: bool(engine.requests))
    assert "application support may have 1 request running at once" in problem(await ask(gateway), 429, CODE)
    assert (await ask(gateway, prompt=None)).status_code == 200
    assert (await first).status_code == 200
    assert (await ask(gateway)).status_code == 200


async def test_a_rate_of_the_application_uses_up_nothing_of_the_tenants(engine, start_gateway):
    tenants = sections(tenant("a", requests_per_second=0.01), tenant("b"))
    gateway = await start_gateway(engine, prompts=limited(requests_per_second=0.001), **tenants)
    assert (await ask(gateway, "b")).status_code == 200
    for _ in range(3):
        assert "application support" in problem(await ask(gateway, "a"), 429, CODE)
    assert (await ask(gateway, "a", prompt=None)).status_code == 200
