"""Long prompts of one tenant, and what other tenants notice of them."""

import asyncio
import threading

import pytest
from running_gateway import CHAT, eventually
from tenancy import error, key, sections, tenant

from gateway.flow import Flow
from gateway.tokenize.local import LocalEncoder

MIB = 2**20
QUESTION = "Where is it?"


def long_text(number: int, size: int) -> str:
    """Text that no cache holds."""
    return "".join(f"Parcel {number} {line} is late, " for line in range(size // 24))


def post(gateway, name: str, text: str, model: str = "demo"):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    headers = {"authorization": f"Bearer {key(name)}"}
    return asyncio.create_task(gateway.http.post(CHAT, json=body, headers=headers, timeout=120))


@pytest.fixture
def asked(monkeypatch):
    """Requests that are read and parsed, by their first message."""
    found: list[str] = []
    serve = Flow.serve

    async def noted(self, request, *more):
        found.append(request.fields["messages"][0]["content"][:40])
        return await serve(self, request, *more)

    monkeypatch.setattr(Flow, "serve", noted)
    return found


class Encoded:
    """Prompts that a thread began to encode, in their order. None goes on before ``go`` is set."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()

    def place(self, text: str) -> int:
        return next(number for number, begun in enumerate(self.begun) if begun.startswith(text))


@pytest.fixture
def encoded(monkeypatch):
    found = Encoded()
    encode = LocalEncoder.encode

    def noted(self, endpoint, fields):
        found.begun.append(fields["messages"][0]["content"][:40])
        assert found.go.wait(60)
        return encode(self, endpoint, fields)

    monkeypatch.setattr(LocalEncoder, "encode", noted)
    yield found
    found.go.set()


async def test_another_tenants_prompt_does_not_wait_for_ten_long_ones(scripted, start_gateway, asked, encoded):
    gateway = await start_gateway(scripted, **sections(tenant("a"), tenant("b")))
    flood = [post(gateway, "a", long_text(number, MIB)) for number in range(10)]
    await eventually(lambda: len(asked) == 10)
    other = post(gateway, "b", QUESTION + long_text(99, 40_000))
    await eventually(lambda: len(asked) == 11)
    encoded.go.set()
    assert {answer.status_code for answer in await asyncio.gather(other, *flood)} == {200}
    assert len(encoded.begun) == 11
    assert encoded.place(QUESTION) <= 2, "the other tenant's long prompts went first"


async def test_a_short_prompt_is_encoded_while_another_tenants_long_ones_are(scripted, start_gateway, asked, encoded):
    gateway = await start_gateway(scripted, **sections(tenant("a"), tenant("b")), encode={"threads": 3})
    flood = [post(gateway, "a", long_text(number, MIB)) for number in range(4)]
    await eventually(lambda: len(asked) == 4 and len(encoded.begun) >= 2)
    other = post(gateway, "b", QUESTION + long_text(99, 40_000))
    await eventually(lambda: len(encoded.begun) == 3)  # and none of the two before it has ended
    assert encoded.place(QUESTION) == 2
    encoded.go.set()
    assert {answer.status_code for answer in await asyncio.gather(other, *flood)} == {200}


async def test_prompts_of_clients_that_left_are_not_encoded(scripted, start_gateway, asked, encoded):
    gateway = await start_gateway(scripted, **sections(tenant("a")), encode={"threads": 1})
    flood = [post(gateway, "a", long_text(number, MIB)) for number in range(6)]
    await eventually(lambda: len(asked) == 6 and len(encoded.begun) == 1)
    for task in flood:
        task.cancel()
    await asyncio.wait(flood)
    await gateway.settled(6)  # the gateway has noticed
    other = post(gateway, "a", QUESTION + long_text(99, 40_000))
    await eventually(lambda: len(asked) == 7)
    encoded.go.set()
    assert (await other).status_code == 200
    assert len(encoded.begun) == 2  # the one that was being encoded, and this
    assert (await gateway.settled(7)).value("gateway_requests_total", status="499") == 6


async def test_too_many_long_prompts_are_refused_to_the_tenant_that_sent_them(scripted, start_gateway, asked, encoded):
    limits = {"threads": 1, "max_waiting_mib": 2}
    gateway = await start_gateway(scripted, **sections(tenant("a"), tenant("b")), encode=limits)
    flood = [post(gateway, "a", long_text(number, 600_000)) for number in range(8)]
    await eventually(lambda: len(asked) == 8 and len(encoded.begun) == 1)
    other = post(gateway, "b", QUESTION + long_text(99, 40_000))
    await eventually(lambda: len(asked) == 9)
    encoded.go.set()
    assert (await other).status_code == 200
    answers = await asyncio.gather(*flood)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 4  # one is being encoded, and three fit into 2 MiB
    assert {error(answer) for answer in refused} == {(429, "overloaded")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    metrics = await gateway.settled(9)
    assert metrics.value("gateway_requests_total", status="429", tenant="a") == len(refused)


async def test_a_prompt_over_the_tenants_budget_is_refused_before_it_is_encoded(scripted, start_gateway, encoded):
    gateway = await start_gateway(scripted, **sections(tenant("a", prompt_tokens_per_minute=10_000)))
    answer = await post(gateway, "a", long_text(1, MIB))
    assert error(answer) == (429, "rate_limit_exceeded")
    assert answer.headers["x-should-retry"] == "false"  # it can never pass
    assert encoded.begun == []
    encoded.go.set()
    after = await post(gateway, "a", "Hello.")
    assert after.status_code == 200
    # What was estimated for the refused prompt is not counted.
    assert int(after.headers["x-ratelimit-remaining-tokens"]) > 9_900


async def test_the_estimate_is_not_counted_beside_what_is_encoded(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a", prompt_tokens_per_minute=100_000)))
    answer = await post(gateway, "a", long_text(1, 60_000))
    tokens = answer.json()["usage"]["prompt_tokens"]
    after = await post(gateway, "a", "Hello.")
    left = int(after.headers["x-ratelimit-remaining-tokens"])
    assert left == 100_000 - tokens - after.json()["usage"]["prompt_tokens"]
