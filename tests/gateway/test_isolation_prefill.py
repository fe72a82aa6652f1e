"""What a tenant's request costs does not depend on what other tenants sent before: counted in tokens, not in time."""

import asyncio
import random
from typing import Any

import pytest
from running_gateway import CHAT, RunningGateway, eventually

from gateway.core.api_keys import hash_key, new_key

A, B = new_key(), new_key()
SYSTEM = " ".join(f"Rule {number}: answer question {number * 7} with care." for number in range(40))


def tenants(*, group: str = "") -> list[dict[str, Any]]:
    return [
        {"id": "a", "group": group, "keys": [hash_key(A)]},
        {"id": "b", "group": group, "keys": [hash_key(B)]},
    ]


def conversation(number: int) -> list[dict[str, str]]:
    words = random.Random(number).choices(["where", "is", "my", "order", "invoice", "why", "late"], k=30)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": " ".join(words)}]


def computed(engine: Any) -> tuple[int, int]:
    """Prompt tokens the engine was asked for so far, and those of them it had to compute."""
    totals = engine.scheduler.totals
    return totals.prompt_tokens, totals.prompt_tokens - totals.hits


async def ask(gateway: RunningGateway, engine: Any, key: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    """What one request cost the engine, what the engine says, and what the gateway says."""
    before = computed(engine)
    answer = await gateway.http.post(
        CHAT,
        json={"model": "demo", "messages": messages, "max_tokens": 1},
        headers={"authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    after = computed(engine)
    usage = answer.json()["usage"]
    return {
        "prompt": after[0] - before[0],
        "computed": after[1] - before[1],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "told": usage["prompt_tokens"],
        "predicted": int(answer.headers["x-gateway-prefix-tokens"]),
        "decision": answer.headers["x-gateway-decision"],
    }


@pytest.fixture(params=["predicted", "events"])
def start_pair(request, start_engine, start_gateway):
    """Starts an engine and a gateway that tracks the engine's cache by prediction, or by its events."""

    async def start(**sections: Any) -> tuple[RunningGateway, Any]:
        events = {"events": "tcp://*:0", "replay": "tcp://*:0"} if request.param == "events" else {}
        engine = await start_engine(**events)
        gateway = await start_gateway(engine, **sections)
        if events:

            async def live() -> bool:
                return (await gateway.replicas())["r0"]["index"]["source"] == "events"

            await eventually(live)
        return gateway, engine

    return start


async def history(start_pair, *, a_was_there: bool, spaces: dict[str, Any], group: str = "") -> list[dict[str, Any]]:
    """What B's requests cost on a gateway of its own, with or without A having sent the same before and between."""
    gateway, engine = await start_pair(tenants=tenants(group=group), spaces=spaces)
    costs = []
    for number in (1, 2, 1, 3):
        if a_was_there:
            for _ in range(2):
                await ask(gateway, engine, A, conversation(number))
        costs.append(await ask(gateway, engine, B, conversation(number)))
    return costs


SECRET = {"secret": "0123456789abcdef"}


async def test_a_tenants_requests_cost_the_same_whether_or_not_another_sent_the_same(start_pair):
    alone = await history(start_pair, a_was_there=False, spaces=SECRET)
    beside = await history(start_pair, a_was_there=True, spaces=SECRET)
    assert beside == alone
    first, second, again, _ = beside
    assert (first["cached"], first["predicted"], first["computed"]) == (0, 0, first["prompt"])
    assert first["decision"] == "cold"
    # Of what B itself sent before, it has its own.
    assert second["cached"] == second["predicted"] > 0
    assert again["cached"] == again["predicted"] > second["cached"]


@pytest.mark.parametrize(("spaces", "group"), [({"isolation": "none"}, ""), ({"isolation": "group", **SECRET}, "g")])
async def test_where_tenants_share_the_difference_is_there(start_pair, spaces, group):
    alone = await history(start_pair, a_was_there=False, spaces=spaces, group=group)
    beside = await history(start_pair, a_was_there=True, spaces=spaces, group=group)
    assert alone[0]["cached"] == 0
    assert beside[0]["cached"] == beside[0]["predicted"] > 0
    assert beside[0]["computed"] < alone[0]["computed"]


async def test_tenants_of_no_group_do_not_share_where_groups_do(start_pair):
    spaces = {"isolation": "group", **SECRET}
    beside = await history(start_pair, a_was_there=True, spaces=spaces)
    assert (beside[0]["cached"], beside[0]["predicted"]) == (0, 0)


async def test_another_tenants_burst_under_way_is_no_prefix_either(start_engine, start_gateway):
    """Requests being computed count as held at their replica; but not for another tenant."""
    engine = await start_engine(prefill_rate=2000)
    gateway = await start_gateway(engine, tenants=tenants(), spaces=SECRET)
    body = {"model": "demo", "messages": conversation(1), "max_tokens": 1}
    running = asyncio.create_task(gateway.http.post(CHAT, json=body, headers={"authorization": f"Bearer {A}"}))
    await eventually(lambda: engine.scheduler.running > 0)
    other = await gateway.http.post(CHAT, json=body, headers={"authorization": f"Bearer {B}"})
    assert other.headers["x-gateway-prefix-tokens"] == "0"
    assert other.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert (await running).status_code == 200
