"""The experiment: who is held out, what that changes for a request, and how the groups are compared."""

import asyncio
import itertools

import pytest
from pydantic import ValidationError
from running_gateway import eventually, settings_for

SYSTEM = "You are the support assistant of Blumenhaus, an online shop for plants and garden tools. " * 12


def chat(session: str | None = None, text: str = "Where is my order?", **body: object) -> dict[str, object]:
    headers = {} if session is None else {"x-session-id": session}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {"json": {"model": "demo", "messages": messages, "max_tokens": 1} | body, "headers": headers}


async def send(gateway, *args, **options):
    answer = await gateway.http.post("/v1/chat/completions", **chat(*args, **options))
    assert answer.status_code == 200, answer.text
    return answer


def group(answer) -> str | None:
    return answer.headers.get("x-gateway-group")


def cached(answer) -> int:
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def session_of(gateway, wanted: str) -> str:
    """A session id that belongs to a group."""
    for number in range(100):
        if group(await send(gateway, f"visit-{number}")) == wanted:
            return f"visit-{number}"
    raise AssertionError(wanted)


async def compared(gateway, requests: int):
    """The comparison, once it includes that many requests."""

    async def included():
        groups = (await gateway.admin.get("/admin/api/experiment")).json()["groups"]
        return sum(each["requests"] for each in groups.values()) >= requests

    await eventually(included)
    return (await gateway.admin.get("/admin/api/experiment")).json()


async def test_without_an_experiment_there_are_no_groups(gateway):
    assert group(await send(gateway, "a")) is None


async def test_a_session_stays_in_its_group_with_and_without_a_header(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain={"enabled": True}, experiment={"cold_share": 0.5})
    other = await start_gateway(await start_engine(), explain={"enabled": True}, experiment={"cold_share": 0.5})
    groups = {}
    for number in range(30):
        by_header = [group(await send(each, f"visit-{number}", text)) for each in (gateway, other) for text in "ab"]
        question = {"role": "user", "content": f"Question {number}"}
        later = [question, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
        by_opening = [group(await send(gateway, messages=turns)) for turns in ([question], later)]
        assert len(set(by_header)) == len(set(by_opening)) == 1
        groups[by_header[0]] = groups.get(by_header[0], 0) + 1
    assert 8 <= groups["held_out"] <= 22


async def test_a_held_out_session_gets_the_next_replica_and_its_own_prompt(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(
        *engines,
        explain={"enabled": True},
        experiment={"cold_share": 0.5},
        canon={"rules": {"dynamic-suffix": "apply"}},
    )
    held_out, helped = [await session_of(gateway, wanted) for wanted in ("held_out", "gateway")]
    clock = {
        "messages": [
            {"role": "system", "content": f"{SYSTEM}\nCurrent time: 2026-11-22 10:02:00\nBe kind."},
            {"role": "user", "content": "Hi"},
        ]
    }

    taken = [await send(gateway, held_out, **clock) for _ in range(4)]
    kept = [await send(gateway, helped, **clock) for _ in range(4)]

    assert [answer.headers["x-gateway-replica"] for answer in taken][:2] in (["r0", "r1"], ["r1", "r0"])
    assert taken[0].headers["x-gateway-replica"] == taken[2].headers["x-gateway-replica"]
    assert {answer.headers.get("x-gateway-canonical") for answer in taken} == {None}
    where = [answer.headers["x-gateway-replica"] for answer in kept]
    # Once, because a replica that stood still on a busy machine is avoided.
    assert sum(before != after for before, after in itertools.pairwise(where)) <= 1
    assert {answer.headers.get("x-gateway-canonical") for answer in kept} == {"dynamic-suffix"}


async def test_a_salted_request_reuses_nothing_and_leaves_nothing(start_engine, start_gateway):
    gateway = await start_gateway(
        await start_engine(), explain={"enabled": True}, experiment={"cold_share": 0.5, "held_out": "salt"}
    )
    held_out, helped = [await session_of(gateway, wanted) for wanted in ("held_out", "gateway")]

    assert cached(await send(gateway, helped)) > 0
    assert [cached(await send(gateway, held_out)) for _ in range(2)] == [0, 0]
    first = "A question that only the held-out session has sent before. " * 8
    await send(gateway, held_out, first)
    assert cached(await send(gateway, helped, first)) < cached(await send(gateway, helped, first))


async def test_both_groups_are_compared(start_engine, start_gateway):
    gateway = await start_gateway(
        await start_engine(prefill_rate=5_000),
        explain={"enabled": True, "gpu_hour_price": 3.6},
        experiment={"cold_share": 0.5, "by": "request", "held_out": "salt"},
    )
    await send(gateway)
    for number in range(80):
        await send(gateway, text=f"Question {number}")

    shown = await compared(gateway, requests=81)
    groups, difference = shown["groups"], shown["difference"]
    assert shown["running"] is True
    assert (shown["cold_share"], shown["by"], shown["held_out"]) == (0.5, "request", "salt")
    assert groups["held_out"]["hit_rate"]["value"] == 0
    assert groups["gateway"]["hit_rate"]["value"] > 0.8
    assert difference["hit_rate"]["verdict"] == difference["gpu_seconds"]["verdict"] == "differs"
    assert difference["hit_rate"]["high"] < -0.8
    assert difference["total_p50"]["low"] > 0
    assert shown["saved_gpu_seconds"]["value"] > 0
    assert shown["saved_cost"]["value"] == pytest.approx(shown["saved_gpu_seconds"]["value"] / 1000, rel=0.05)
    assert "lower with the gateway" in shown["verdict"]
    refused = await gateway.admin.get("/admin/api/experiment?modell=demo")
    assert refused.status_code == 400
    assert "modell" in refused.json()["error"]["message"]


async def test_errors_of_both_groups_are_counted(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(
        engine, explain={"enabled": True}, experiment={"cold_share": 0.5, "by": "request"}, relay={"retries": 0}
    )
    await send(gateway)
    await engine.kill()
    body = chat()
    answers = await asyncio.gather(*(gateway.http.post("/v1/chat/completions", **body) for _ in range(20)))
    assert {answer.status_code for answer in answers} <= {502, 503}
    reached = sum(answer.json()["error"]["code"] == "no_replica" for answer in answers)

    shown = await compared(gateway, requests=1 + reached)
    assert sum(each["failed"] for each in shown["groups"].values()) == reached > 0


async def test_a_reload_begins_and_ends_an_experiment(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(engine, explain={"enabled": True})
    off = (await gateway.admin.get("/admin/api/experiment")).json()
    assert off["running"] is False
    assert "experiment.cold_share" in off["verdict"]

    await gateway.gateway.reload(settings_for([engine], explain={"enabled": True}, experiment={"cold_share": 0.5}))
    assert group(await send(gateway, "a")) in ("gateway", "held_out")
    await gateway.gateway.reload(settings_for([engine], explain={"enabled": True}))
    assert group(await send(gateway, "a")) is None


def test_an_experiment_without_explanations_is_refused():
    class Engine:
        url = "http://127.0.0.1:1"

    with pytest.raises(ValidationError, match="explain"):
        settings_for([Engine()], experiment={"cold_share": 0.1})
