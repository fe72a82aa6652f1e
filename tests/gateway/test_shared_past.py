"""Several gateways with one Redis: what was computed for one of them, the others have seen."""

import asyncio
import itertools
from typing import Any

import pytest
from running_gateway import COMPLETIONS, eventually
from tenancy import ask_as, sections, tenant

from gateway.explain.seen.seen_messages import decode_seen

ON = {"enabled": True}


@pytest.fixture
def start_pair(start_group):
    """Starts two gateways that share their state and explain their requests."""
    return lambda engine, **options: start_group([engine], **{"explain": ON} | options)


class PromptRecorder:
    """Records what a gateway passes on of the messages of others: its later answers are explained with that."""

    def __init__(self, gateway) -> None:
        self.received: list[int] = []  # how many blocks each prompt has
        self._past = gateway.gateway._explain.replicated_seen
        self._hand_on, self._past._receive = self._past._receive, self._note

    def _note(self, reported) -> None:
        self.received += [len(prompt.blocks()) for each in reported for prompt in decode_seen(each).prompts]
        self._hand_on(reported)

    async def wait_for(self, blocks: int = 1) -> None:
        """Wait for a prompt of at least so many blocks that was not received before."""
        before = len(self.received)
        await eventually(lambda: max(self.received[before:], default=0) >= blocks)


async def asked(gateway, text, request_id):
    """A prompt that is computed by the engine as it is, with no answer to speak of."""
    body = {"model": "demo", "prompt": text, "max_tokens": 1}
    answer = await gateway.http.post(COMPLETIONS, json=body, headers={"x-request-id": request_id})
    assert answer.status_code == 200
    return answer


async def explained(gateway, request_id) -> dict[str, Any]:
    async def there():
        return (await gateway.admin.get(f"/admin/api/requests/{request_id}")).status_code == 200

    await eventually(there)
    return (await gateway.admin.get(f"/admin/api/requests/{request_id}")).json()


def reasons(found) -> dict[str, int]:
    assert found["hits"] + sum(each["tokens"] for each in found["missed"]) == found["prompt_tokens"]
    return {each["reason"]: each["tokens"] for each in found["missed"]}


async def pushed_out(gateway, prose):
    """Other prompts take the place of all that is cached."""
    for seed in range(60, 66):
        await asked(gateway, prose(seed, 150), f"other-{seed}")


SMALL = {"blocks": 41}


async def test_what_was_computed_for_another_gateway_and_evicted_is_not_new(start_engine, start_pair, prose):
    engine = await start_engine(**SMALL)
    first, second = await start_pair(engine)
    received = asyncio.create_task(PromptRecorder(second).wait_for())
    await asked(first, prose(1, 200), "one")
    await received
    await pushed_out(second, prose)
    await asked(second, prose(1, 200), "two")
    assert reasons(await explained(first, "one")).keys() == {"first_seen"}
    found = reasons(await explained(second, "two"))
    assert found.keys() <= {"evicted", "new_content"}
    assert found["evicted"] > 150
    assert found.get("new_content", 0) < 16


async def test_what_was_computed_elsewhere_before_a_reset_was_reset(start_engine, start_pair):
    engine = await start_engine()
    first, second = await start_pair(engine, **sections(tenant("a")))
    received = asyncio.create_task(PromptRecorder(second).wait_for())
    await ask_as(first, "a", "Where is it?")
    await received
    spaces = await second.admin.get("/admin/api/spaces")
    assert spaces.json()["spaces"]
    assert (await first.admin.post("/admin/api/spaces/reset", json={"tenant": "a"})).status_code == 200
    await eventually(lambda: bool(second.gateway._spaces.resets))
    await ask_as(second, "a", "Where is it?", headers={"x-request-id": "two"})
    found = reasons(await explained(second, "two"))
    assert max(found, key=found.__getitem__) == "reset"
    assert "first_seen" not in found


async def test_without_redis_each_has_seen_its_own(start_engine, start_pair, redis_server, prose):
    engine = await start_engine(**SMALL)
    first, second = await start_pair(engine)
    redis_server.kill()
    await asked(first, prose(1, 200), "one")
    await pushed_out(first, prose)
    await asked(second, prose(1, 200), "two")
    await asked(first, prose(1, 200), "three")
    assert reasons(await explained(second, "two")).keys() == {"first_seen"}
    assert "first_seen" not in reasons(await explained(first, "three"))


async def test_when_redis_is_back_they_receive_messages_again(start_engine, start_pair, redis_server, prose):
    engine = await start_engine(**SMALL)
    first, second = await start_pair(engine)
    redis_server.kill()
    await asked(first, prose(1, 200), "away")
    await explained(first, "away")
    recorder = PromptRecorder(second)
    redis_server.start()
    seeds = itertools.count(100)

    async def received():
        # What is sent before the other one listens again is lost.
        seed = next(seeds)
        await asked(first, prose(seed, 50), f"lost-{seed}")
        await explained(first, f"lost-{seed}")
        return bool(recorder.received)

    await eventually(received)
    # Longer than those before: the last of them may still be on their way.
    wait_for = asyncio.create_task(recorder.wait_for(blocks=20))
    await asked(first, prose(2, 400), "one")
    await wait_for
    await pushed_out(second, prose)
    await asked(second, prose(2, 400), "two")
    assert reasons(await explained(second, "two"))["evicted"] > 150


async def test_nothing_is_shown_where_requests_are_not_explained(start_engine, start_pair, prose):
    engine = await start_engine()
    first, second = await start_pair(engine, explain={"enabled": False})
    await asked(first, prose(1, 200), "one")
    assert first.gateway._explain.replicated_seen.changes(0.0, everything=True) is None
    assert (await asked(second, prose(1, 200), "two")).status_code == 200
