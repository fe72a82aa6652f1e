import asyncio

import pytest
from event_reader import Mirror, Subscriber, fill, held, local, replay
from patience import HANG_SECONDS

from gateway.simulator.config import EngineConfig
from gateway.simulator.faults import FaultSpec

BOTH = {"events": "tcp://*:0", "replay": "tcp://*:0"}
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}


@pytest.fixture
async def tuned(start):
    """An engine with events, a subscriber that receives them, and the last sequence number so far."""
    opened: list[Subscriber] = []

    async def tuned(**options):
        engine = await start(**BOTH | options)
        subscriber = Subscriber(engine.event_endpoints[0])
        opened.append(subscriber)
        return engine, subscriber, await subscriber.tune(engine)

    yield tuned
    for subscriber in opened:
        subscriber.close()


def step(engine, count: int = 1, rank: int = 0) -> None:
    """Steps of the scheduler, each with a block of its own."""
    for _ in range(count):
        step.next += 16
        fill(engine, range(step.next, step.next + 16), rank)


step.next = 10_000


async def received(subscriber, last: int, count: int) -> list[int]:
    """Sequence numbers that came, counted from those before the fault: so many, and any that come too much."""
    batches = [await subscriber.get() for _ in range(count)] + await subscriber.waiting()
    return [batch.sequence - last for batch in batches]


async def kept(engine, last: int) -> list[int]:
    return [batch.sequence - last for batch in await replay(engine.replay_endpoints[0], last + 1)]


async def test_dropped_batches_can_be_replayed(tuned):
    engine, subscriber, last = await tuned()
    await engine.set_fault("events_drop:every=2,times=2")
    step(engine, 6)
    assert await received(subscriber, last, 4) == [1, 3, 5, 6]
    assert await kept(engine, last) == [1, 2, 3, 4, 5, 6]


async def test_batches_dropped_hard_are_lost(tuned):
    engine, subscriber, last = await tuned()
    await engine.set_fault("events_drop_hard:times=1")
    step(engine, 3)
    assert await received(subscriber, last, 2) == [2, 3]
    assert await kept(engine, last) == [2, 3]


async def test_delayed_batches_come_later_and_can_be_replayed_at_once(tuned):
    engine, subscriber, last = await tuned()
    await engine.set_fault("events_delay=2:times=1")
    step(engine, 2)
    assert await received(subscriber, last, 1) == [2]
    assert await kept(engine, last) == [1, 2]
    assert (await subscriber.get()).sequence == last + 1


async def test_what_is_delayed_does_not_outlive_a_restart(tuned):
    engine, subscriber, _ = await tuned()
    await engine.set_fault("events_delay=0.2")
    step(engine)
    await engine.set_fault("events_restart")
    assert await subscriber.waiting(0.4) == []


async def test_neighbours_change_places(tuned):
    engine, subscriber, last = await tuned()
    await engine.set_fault("events_reorder")
    step(engine, 5)
    assert await received(subscriber, last, 4) == [2, 1, 4, 3]
    await engine.set_fault("")
    assert await received(subscriber, last, 1) == [5]


async def test_duplicates_are_the_same_batch_twice(tuned):
    engine, subscriber, last = await tuned()
    await engine.set_fault("events_duplicate:times=1")
    step(engine, 2)
    first, second, third = [await subscriber.get() for _ in range(3)]
    assert first == second
    assert third.sequence == first.sequence + 1 == last + 2


async def test_a_stopped_publisher_says_nothing_and_answers_nothing_until_the_end(tuned):
    engine, subscriber, last = await tuned()
    await engine.set_fault("events_stop")
    step(engine, 3)
    assert await received(subscriber, last, 0) == []
    asked = asyncio.ensure_future(replay(engine.replay_endpoints[0], last + 1))
    assert not (await asyncio.wait({asked}, timeout=0.1))[0]
    await engine.set_fault("")
    assert [batch.sequence - last for batch in await asked] == [1, 2, 3]
    step(engine)
    assert await received(subscriber, last, 1) == [4]


async def test_a_closed_socket_refuses_until_the_end_of_the_fault(tuned):
    engine, subscriber, last = await tuned()
    endpoint = engine.event_endpoints[0]
    host, port = local(endpoint).removeprefix("tcp://").split(":")
    await engine.set_fault("events_close")
    step(engine, 2)

    async def refused() -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                continue
            writer.close()

    await asyncio.wait_for(refused(), HANG_SECONDS)
    assert await kept(engine, last) == [1, 2]
    await engine.set_fault("")
    assert engine.event_endpoints == [endpoint]
    # The subscriber comes back by itself; what was published meanwhile is for replay.
    assert await subscriber.tune(engine) > last + 2


async def test_a_restarted_publisher_counts_from_0_with_an_empty_cache(tuned):
    engine, subscriber, _ = await tuned()
    before = engine.ranks.started_at
    await engine.set_fault("events_restart")
    assert engine.content == [[]]
    assert await replay(engine.replay_endpoints[0]) == []
    step(engine)
    assert await received(subscriber, 0, 1) == [0]
    assert engine.ranks.started_at > before


async def test_what_ran_through_a_restart_leaves_nothing_without_events(tuned, connect):
    engine, _, _ = await tuned(block_size=4, decode_ms=5)
    client = connect(engine)
    running = asyncio.create_task(client.post(CHAT, json=BODY | {"max_tokens": 40, "ignore_eos": True}))
    while not engine.scheduler.running:
        await asyncio.sleep(0.001)
    await engine.set_fault("events_restart")
    assert (await running).status_code == 200
    await client.post(CHAT, json=BODY)
    mirror = Mirror()
    mirror.apply(await replay(engine.replay_endpoints[0]))
    assert mirror.content == held(engine)
    assert mirror.content
    assert engine.cache.free_blocks == engine.cache.usable_blocks


async def test_faults_of_events_and_of_http_do_not_disturb_each_other(tuned, connect):
    engine, subscriber, last = await tuned()
    client = connect(engine)

    async def set_fault(spec: str) -> None:
        assert (await client.post("/simulator/fault", json={"spec": spec})).status_code == 200

    await set_fault("500 events_drop")
    assert (await client.post(CHAT, json=BODY)).status_code == 500
    step(engine)
    await set_fault("429")
    assert (await client.post(CHAT, json=BODY)).status_code == 429
    step(engine)
    assert await received(subscriber, last, 0) == []
    await set_fault("")
    assert (await client.post(CHAT, json=BODY)).status_code == 200
    step(engine)
    assert await received(subscriber, last, 1) == [3]


async def test_a_fault_can_be_of_one_rank(start):
    engine = await start(**BOTH, data_parallel_size=2)
    await engine.set_fault("events_drop_hard:rank=1")
    for rank in (0, 1):
        step(engine, rank=rank)
    assert [len(await replay(endpoint)) for endpoint in engine.replay_endpoints] == [1, 0]
    await engine.set_fault("events_drop_hard:rank=0")
    for rank in (0, 1):
        step(engine, rank=rank)
    assert [len(await replay(endpoint)) for endpoint in engine.replay_endpoints] == [1, 1]


async def test_a_fault_can_be_in_force_from_the_start(start):
    engine = await start(**BOTH, fault="events_drop_hard:times=2 slow=0")
    step(engine, 3)
    assert [batch.sequence for batch in await replay(engine.replay_endpoints[0])] == [2]


async def test_a_fault_of_events_needs_events(start, connect):
    client = connect(await start())
    response = await client.post("/simulator/fault", json={"spec": "events_stop"})
    assert response.status_code == 400
    assert "--events" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("events_delay", "needs a value"),
        ("events_drop=1", "takes no value"),
        ("events_drop:path=*", "unknown option 'path'"),
        ("events_stop:times=1", "no option but rank"),
        ("events_close:every=2", "no option but rank"),
        ("500:rank=0", "unknown option 'rank'"),
        ("events_drop:rank=x", "option rank"),
        ("events_drop events_stop", "only one fault of events"),
        ("500 429", "only one fault of HTTP"),
    ],
)
def test_a_bad_spec_is_refused(spec, said):
    with pytest.raises(ValueError, match=said):
        EngineConfig(fault=spec, events="tcp://*:0")


def test_a_rank_is_part_of_a_spec():
    assert FaultSpec.parse("events_stop:rank=3").rank == 3
