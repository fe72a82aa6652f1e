"""What the replicas page shows: the hottest prefixes and who holds them, and how each replica does."""

import re
from pathlib import Path
from typing import Any

import httpx
import orjson
from running_gateway import COMPLETIONS, RunningGateway, eventually

PREFIXES = "/admin/api/prefixes"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md"


async def hottest(gateway: RunningGateway, **filters: str) -> list[dict[str, Any]]:
    answer = await gateway.admin.get(PREFIXES, params=filters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["prefixes"]
    return found


def messages(system: str, *rest: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [
        {"role": "system", "content": system},
        *({"role": roles[number % 2], "content": content} for number, content in enumerate(rest)),
    ]


async def ask(gateway: RunningGateway, system: str, *rest: str, client: str = "web", **fields: Any) -> httpx.Response:
    answer = await gateway.ask(
        messages=messages(system, *rest), headers={"x-client": client}, **{"max_tokens": 4} | fields
    )
    assert answer.status_code == 200, answer.text
    return answer


def replica(answer: httpx.Response) -> str:
    return answer.headers["x-gateway-replica"]


async def apart(gateway: RunningGateway, prose: Any) -> dict[str, str]:
    """System prompts by the replica that the first request with each went to."""
    homes: dict[str, str] = {}
    seed = 0
    while len(homes) < 2:
        system = prose(seed, 300)
        homes.setdefault(replica(await ask(gateway, system, "Hello.")), system)
        seed += 1
    return homes


async def test_system_prompts_of_applications_are_the_hottest_and_held_where_they_were_sent(
    start_engine, start_gateway, prose
):
    gateway = await start_gateway(await start_engine(), await start_engine())
    homes = await apart(gateway, prose)
    for number in range(4):
        for home, system in homes.items():
            assert replica(await ask(gateway, system, f"{number} is my order.", client=f"app-{home}")) == home
    found = await hottest(gateway)
    assert {each["source"] for each in found} == {"app-r0", "app-r1"}
    for each in found:
        home = each["source"].removeprefix("app-")
        other = {"r0": "r1", "r1": "r0"}[home]
        assert each["model"] == "demo"
        assert each["tenant"] == "default"
        assert each["held"] == {home: each["tokens"], other: 0}
        assert 300 < each["tokens"] < 700
        assert each["tokens"] % 16 == 0
        assert 2 < each["requests"] < 4
        assert abs(each["reused_tokens"] - each["requests"] * each["tokens"]) < 16
    assert len({each["id"] for each in found}) == len(found)


async def test_long_conversations_do_not_displace_the_system_prompts(start_engine, start_gateway, prose):
    gateway = await start_gateway(await start_engine(), await start_engine())
    homes = await apart(gateway, prose)
    for number in range(3):
        for home, system in homes.items():
            said = [prose(number, 10)]
            for turn in range(8):
                answer = await ask(gateway, system, *said, client=f"app-{home}")
                reply = answer.json()["choices"][0]["message"]["content"]
                said += [reply, prose(1000 + 10 * number + turn, 60)]
    top = await hottest(gateway, limit="2")
    assert {each["source"] for each in top} == {"app-r0", "app-r1"}
    for each in top:
        assert each["tokens"] < 700
        assert each["requests"] > 8
        assert each["held"][each["source"].removeprefix("app-")] == each["tokens"]
    everything = await hottest(gateway, limit="100")
    assert max(each["tokens"] for each in everything) < 700


async def test_replica_that_is_down_has_no_column(start_engine, start_gateway, prose):
    engines = [await start_engine(), await start_engine()]
    relay = {"health_interval_seconds": 0.05, "unhealthy_after": 1}
    gateway = await start_gateway(*engines, relay=relay)
    system = prose(1, 300)
    for number in range(4):
        home = replica(await ask(gateway, system, f"{number}?"))
    other = {"r0": "r1", "r1": "r0"}[home]
    assert (await hottest(gateway))[0]["held"].keys() == {"r0", "r1"}
    await engines[int(home[1:])].kill()

    async def gone() -> bool:
        return (await gateway.replicas())[home]["state"] == "ejected"

    await eventually(gone)
    (found,) = await hottest(gateway)
    assert found["held"] == {other: 0}
    assert replica(await ask(gateway, system, "Still there?")) == other
    (found,) = await hottest(gateway)
    assert found["held"] == {other: found["tokens"]}


async def test_prefix_counts_for_replicas_with_its_block_size_only(start_engine, start_gateway, prose):
    gateway = await start_gateway(await start_engine(block_size=16), await start_engine(block_size=48))
    system = prose(1, 300)
    homes = {replica(await ask(gateway, system, f"{number}?")) for number in range(5)}
    (found,) = await hottest(gateway)
    assert set(found["held"]) == homes
    assert found["held"] == dict.fromkeys(homes, found["tokens"])


async def test_warming_is_no_use(gateway, prose):
    system = prose(1, 300)
    order = {"prefixes": [{"model": "demo", "messages": messages(system, "x")}], "requests_per_second": 1000}
    for _ in range(5):
        job = (await gateway.admin.post("/admin/api/warm", json=order)).json()

        async def over(job: dict[str, Any] = job) -> bool:
            return (await gateway.admin.get(f"/admin/api/warm/{job['id']}")).json()["state"] == "done"

        await eventually(over)
    assert await hottest(gateway) == []
    for number in range(3):
        await ask(gateway, system, f"{number}?")
    assert len(await hottest(gateway)) == 1


async def test_of_several_prompts_what_they_share_is_found(gateway, prose):
    start = prose(1, 300)
    for number in range(4):
        prompts = [f"{start} {prose(10 * number + end, 80)}" for end in range(2)]
        body = {"model": "demo", "prompt": prompts, "max_tokens": 1}
        assert (await gateway.http.post(COMPLETIONS, json=body)).status_code == 200
    (found,) = await hottest(gateway)
    assert found["tokens"] > 250
    assert found["held"] == {"r0": found["tokens"]}


async def test_hot_prefixes_that_fail_cost_no_request_its_answer(gateway, monkeypatch):
    def broken(*_args: object) -> None:
        raise RuntimeError("the figures are broken")

    monkeypatch.setattr(gateway.gateway._hot, "note", broken)
    for _ in range(2):
        answer = await gateway.ask("Hello.")
        assert answer.status_code == 200
    metrics = await gateway.settled(2)
    assert metrics.value("gateway_requests_total", status="200") == 2


async def test_no_text_of_a_prompt_is_shown(gateway):
    system = "Zebulon Quux of Ypsilanti asks about parcels. " * 20
    for number in range(4):
        await ask(gateway, system, f"Zanzibar {number}?")
    page = (await gateway.admin.get(PREFIXES)).text
    assert '"tokens"' in page
    for secret in ("Zebulon", "Quux", "Ypsilanti", "parcels", "Zanzibar"):
        assert secret not in page


async def test_only_prefixes_of_the_model_that_is_asked_for_are_shown(gateway, prose):
    for number in range(4):
        await ask(gateway, prose(1, 100), f"{number}?")
    assert len(await hottest(gateway, model="demo")) == 1
    assert await hottest(gateway, model="other") == []


async def test_replicas_show_how_far_predictions_were_right(start_engine, start_gateway, prose):
    engine = await start_engine()
    gateway = await start_gateway(engine, await start_engine())
    text = prose(1, 200)
    prompt = predicted = cached = 0
    for number in range(3):
        answer = await gateway.ask(f"{text} {number}", max_tokens=1)
        predicted += int(answer.headers["x-gateway-prefix-tokens"])
        usage = answer.json()["usage"]
        prompt += usage["prompt_tokens"]
        cached += usage["prompt_tokens_details"]["cached_tokens"]
    home = replica(answer)
    other = {"r0": "r1", "r1": "r0"}[home]
    await gateway.settled(3)
    assert predicted == cached > 200
    reported = {name: each["prediction"] for name, each in (await gateway.replicas()).items()}
    exact = {"over_tokens": 0, "under_tokens": 0, "window_seconds": 900}
    assert reported[home] == exact | {
        "requests": 3,
        "prompt_tokens": prompt,
        "predicted_tokens": predicted,
        "confirmed_tokens": cached,
    }
    assert reported[other] == exact | dict.fromkeys(
        ("requests", "prompt_tokens", "predicted_tokens", "confirmed_tokens"), 0
    )


async def test_replica_that_just_failed_a_request_is_suspect_and_takes_none(start_engine, start_gateway, prose):
    engines = [await start_engine(), await start_engine()]
    gateway = await start_gateway(*engines, relay={"suspect_seconds": 60})
    for each in (await gateway.replicas()).values():
        assert (each["accepts"], each["state"], each["failures_in_a_row"]) == (True, "ready", 0)
    failed = replica(await gateway.ask(prose(1, 20)))
    other = {"r0": "r1", "r1": "r0"}[failed]
    await engines[int(failed[1:])].set_fault("die_after_head:times=1")
    assert replica(await gateway.ask(prose(1, 20))) == other
    reported = await gateway.replicas()
    assert (reported[failed]["accepts"], reported[failed]["state"], reported[failed]["up"]) == (False, "suspect", True)
    assert reported[failed]["failures_in_a_row"] == 1
    assert 0 < reported[failed]["left_out_seconds"] <= 60
    assert (reported[other]["accepts"], reported[other]["state"], reported[other]["left_out_seconds"]) == (
        True,
        "ready",
        0,
    )
    assert replica(await gateway.ask(prose(1, 20))) == other
    # With both of them suspect there is no better one.
    await engines[int(other[1:])].set_fault("die_after_head:times=1")
    assert replica(await gateway.ask(prose(1, 20))) == failed
    reported = await gateway.replicas()
    assert reported[other]["state"] == "suspect"
    assert reported[failed]["state"] == "ready"  # it answered
    assert reported[failed]["accepts"]


def keys_of(value: Any, path: str = "") -> set[str]:
    if isinstance(value, list):
        return {key for each in value for key in keys_of(each, path)}
    if not isinstance(value, dict) or path == ".prefixes.held":
        return set()
    return {key for name, each in value.items() for key in {f"{path}.{name}", *keys_of(each, f"{path}.{name}")}}


async def test_answers_have_what_their_examples_have(gateway, prose):
    for number in range(4):
        await ask(gateway, prose(1, 100), f"{number}?")
    for path in ("replicas", "prefixes"):
        section = PAGE.read_text().partition(f"## `GET /admin/api/{path}`\n")[2].partition("\n## ")[0]
        (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
        answer = (await gateway.admin.get(f"/admin/api/{path}")).json()
        assert keys_of(answer) == keys_of(orjson.loads(example)), path
