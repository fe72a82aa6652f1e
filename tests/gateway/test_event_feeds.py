"""The gateway follows the engines' KV events: what it predicts is what they report, and nothing they do to their event
sockets costs a client anything."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from patience import HANG_SECONDS
from running_gateway import RunningGateway, events_received, eventually

from gateway.core.engine_facts import EngineKind
from gateway.simulator.simulated_engine import SimulatedEngine

StartEngine = Callable[..., Awaitable[SimulatedEngine]]
StartGateway = Callable[..., Awaitable[RunningGateway]]

ANYWHERE = "tcp://*:0"
SOON = {"silent_after_seconds": 0.6, "probe_seconds": 0.3, "replay_timeout_seconds": 0.6}
WORDS = [f"word{number}" for number in range(500)]


@pytest.fixture
def start_reporting(start_engine: StartEngine) -> StartEngine:
    """Starts a simulated engine that publishes events."""

    async def start(**options: Any) -> SimulatedEngine:
        return await start_engine(**{"events": ANYWHERE, "replay": ANYWHERE, "blocks": 400} | options)

    return start


@pytest.fixture
async def followed(start_reporting: StartEngine, start_gateway: StartGateway) -> tuple[RunningGateway, SimulatedEngine]:
    """A gateway that follows one engine."""
    engine = await start_reporting()
    gateway = await start_gateway(engine, ingest=SOON)
    await state_of(gateway, "live")
    return gateway, engine


async def state_of(gateway: RunningGateway, *states: str, replica: str = "r0", seconds: float = HANG_SECONDS) -> None:
    """Wait until every feed of a replica is in one of the states."""

    async def there() -> bool:
        feeds = (await gateway.replicas())[replica]["events"]
        return bool(feeds) and all(feed["state"] in states for feed in feeds)

    await eventually(there, seconds)


async def source_of(gateway: RunningGateway, replica: str = "r0") -> str:
    return str((await gateway.replicas())[replica]["index"]["source"])


def prompt(topic: int, question: int, words: int = 200) -> list[dict[str, str]]:
    """A system prompt that belongs to a topic, and a question."""
    chosen = random.Random(topic).choices(WORDS, k=words)
    return [{"role": "system", "content": " ".join(chosen)}, {"role": "user", "content": f"Question {question}?"}]


async def ask(
    gateway: RunningGateway, topic: int, question: int = 0, words: int = 200, **fields: Any
) -> tuple[int, int]:
    """Predicted and reported cached tokens."""
    answer = await gateway.ask(messages=prompt(topic, question, words), max_tokens=3, **fields)
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"]["prompt_tokens_details"] or {}
    return int(answer.headers["x-gateway-prefix-tokens"]), details.get("cached_tokens") or 0


async def reset(engine: SimulatedEngine) -> None:
    """Forget all prefixes of rank 0. The engine publishes that with its next step, so give it something to do."""
    assert engine.cache.reset()
    async with httpx.AsyncClient() as client:
        body = {"model": "demo", "prompt": "x", "max_tokens": 1}
        await client.post(f"{engine.url}/v1/completions", json=body, headers={"x-data-parallel-rank": "0"})


async def set_fault(engine: SimulatedEngine, spec: str) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{engine.url}/simulator/fault", json={"spec": spec})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"event_encoding": "positional"}, marks=pytest.mark.slow),
        pytest.param({"event_hashes": "bytes"}, marks=pytest.mark.slow),
        pytest.param({"event_encoding": "positional", "event_hashes": "bytes"}, marks=pytest.mark.slow),
        {"data_parallel_size": 2, "blocks": 200},
        {"window_blocks": 2, "blocks": 300},
        pytest.param({"window_blocks": 5, "event_encoding": "positional"}, marks=pytest.mark.slow),
        {"flavor": EngineKind.SGLANG, "block_size": 16, "prompt_tokens_details": True},
        pytest.param(
            {"flavor": EngineKind.SGLANG, "block_size": 64, "blocks": 100, "prompt_tokens_details": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda options: ",".join(map(str, options.values())) or "defaults",
)
async def test_predictions_are_what_the_engines_report(
    start_reporting: StartEngine, start_gateway: StartGateway, options: dict[str, Any]
) -> None:
    engines = [await start_reporting(**options) for _ in range(2)]
    gateway = await start_gateway(*engines, ingest=SOON)
    for replica in ("r0", "r1"):
        await state_of(gateway, "live", replica=replica)
    chooser = random.Random(5)
    seen = []
    for number in range(90):
        salt = {"cache_salt": chooser.choice("ab")} if number % 3 == 0 else {}
        seen.append(await ask(gateway, chooser.randrange(14), chooser.randrange(3), **salt))
        await events_received(gateway, engines)
        if number == 45:
            await reset(engines[0])
            await events_received(gateway, engines)
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    warm = [pair for pair in seen if pair[1]]
    assert len(warm) > 15
    assert len(warm) < 85


async def test_pages_of_one_token_are_known_to_the_block(
    start_reporting: StartEngine, start_gateway: StartGateway
) -> None:
    engine = await start_reporting(flavor=EngineKind.SGLANG, block_size=1, blocks=4000, prompt_tokens_details=True)
    gateway = await start_gateway(engine, ingest=SOON)
    await state_of(gateway, "live")
    for topic in (1, 2, 1, 2, 3, 1, 4, 5, 2):
        predicted, reported = await ask(gateway, topic, topic)
        await asyncio.sleep(0.2)
        assert 0 <= reported - predicted < 16
    assert await source_of(gateway) == "events"


async def test_a_gateway_started_late_has_the_same_index(
    start_reporting: StartEngine, start_gateway: StartGateway
) -> None:
    engines = [await start_reporting() for _ in range(2)]
    first = await start_gateway(*engines, ingest=SOON)
    for topic in range(30):
        await ask(first, topic)
    second = await start_gateway(*engines, ingest=SOON)
    for gateway in (first, second):
        await state_of(gateway, "live", replica="r0")
        await state_of(gateway, "live", replica="r1")
        await events_received(gateway, engines)
    held = [await gateway.replicas() for gateway in (first, second)]
    assert [r["index"] for r in held[0].values()] == [r["index"] for r in held[1].values()]
    for topic in (29, 28, 27):
        predicted, reported = await ask(second, topic)
        assert predicted == reported > 0


async def test_lost_batches_are_asked_for_again(followed: tuple[RunningGateway, SimulatedEngine]) -> None:
    gateway, engine = followed
    await set_fault(engine, "events_drop:every=3")
    for topic in range(40):
        await ask(gateway, topic)
    await set_fault(engine, "")
    await ask(gateway, 41)
    await events_received(gateway, [engine])
    await state_of(gateway, "live")
    assert (await gateway.metrics()).value("gateway_kv_event_gaps_total", replica="r0") > 0
    for topic in (39, 38, 37):
        predicted, reported = await ask(gateway, topic)
        assert predicted == reported > 0


@pytest.mark.parametrize("fault", ["events_duplicate", "events_reorder:every=2", "events_delay=0.05"])
async def test_odd_orders_do_no_harm(followed: tuple[RunningGateway, SimulatedEngine], fault: str) -> None:
    gateway, engine = followed
    await set_fault(engine, fault)
    for topic in range(25):
        await ask(gateway, topic)
    await set_fault(engine, "")
    await events_received(gateway, [engine])
    await state_of(gateway, "live")
    assert await source_of(gateway) == "events"


async def test_what_cannot_be_had_again_is_said_to_be_missing(
    followed: tuple[RunningGateway, SimulatedEngine],
) -> None:
    gateway, engine = followed
    await ask(gateway, 1)
    await set_fault(engine, "events_drop_hard:times=1")
    await ask(gateway, 2)
    await ask(gateway, 3)
    await state_of(gateway, "rebuilding")
    assert await source_of(gateway) == "predicted"
    assert engine.cache.reset()
    await ask(gateway, 4)
    await state_of(gateway, "live")
    await events_received(gateway, [engine])
    assert await source_of(gateway) == "events"


async def test_a_short_replay_buffer_leaves_a_late_gateway_rebuilding_until_all_is_accounted_for(
    start_reporting: StartEngine, start_gateway: StartGateway
) -> None:
    # Enough for the last prompt, in however many batches its blocks come, and not for all prompts.
    engine = await start_reporting(replay_buffer=30, blocks=300)
    first = await start_gateway(engine, ingest=SOON)
    (rank,) = engine.ranks.all
    topic = 0
    while rank.publisher.next_number <= 30 or topic < 8:
        await ask(first, topic)
        topic += 1
    second = await start_gateway(engine, ingest=SOON, relay={"health_interval_seconds": 0.2})
    await state_of(second, "rebuilding")
    predicted, reported = await ask(second, topic - 1)
    assert predicted == reported > 0  # what is known is right
    # Of each prompt the last block is not full and in no event, and few may be missing: so long prompts, and as many as
    # it takes until what the cache holds is accounted for.
    for later in range(topic + 2, topic + 42):
        await ask(second, later, words=900)
        with contextlib.suppress(AssertionError):
            await state_of(second, "live", seconds=1)
            break
    await state_of(second, "live")
    await events_received(second, [engine])


async def test_a_restart_is_noticed_by_the_events_alone(followed: tuple[RunningGateway, SimulatedEngine]) -> None:
    gateway, engine = followed
    for topic in range(5):
        await ask(gateway, topic)
    await set_fault(engine, "events_restart")
    # A batch that is published before the new subscription arrives shows as a gap in front of the next one.
    for topic in range(9, 14):
        await ask(gateway, topic)
        with contextlib.suppress(AssertionError):
            await events_received(gateway, [engine], seconds=5)
            break
    await events_received(gateway, [engine])
    await state_of(gateway, "live")
    assert await ask(gateway, 1) == (0, 0)


async def test_a_killed_replica_comes_back_empty(
    start_reporting: StartEngine, start_gateway: StartGateway, closing: Any
) -> None:
    engine = await start_reporting()
    gateway = await start_gateway(
        engine, ingest=SOON, relay={"health_interval_seconds": 0.1, "suspect_seconds": 0, "unhealthy_after": 1}
    )
    await state_of(gateway, "live")
    await ask(gateway, 1)
    await events_received(gateway, [engine])
    ports = {"events": engine.event_endpoints[0], "replay": engine.replay_endpoints[0]}
    await engine.kill()
    await eventually(lambda: down(gateway))
    anew = {name: f"tcp://*:{address.rpartition(':')[2]}" for name, address in ports.items()}
    again = SimulatedEngine(dataclasses.replace(engine.config, port=engine.port, **anew))
    await again.start()
    closing.push_async_callback(again.kill)
    await eventually(lambda: up(gateway))
    assert await ask(gateway, 1) == (0, 0)
    await state_of(gateway, "live")
    await events_received(gateway, [again])
    predicted, reported = await ask(gateway, 1)
    assert predicted == reported > 0


async def down(gateway: RunningGateway) -> bool:
    return (await gateway.replicas())["r0"]["state"] == "ejected"


async def up(gateway: RunningGateway) -> bool:
    return (await gateway.replicas())["r0"]["state"] == "ready"


async def test_a_restart_without_replay_is_not_forgotten_twice(
    start_reporting: StartEngine, start_gateway: StartGateway, closing: Any
) -> None:
    """The events show it first, from their beginning on; the metrics a moment later."""
    engine = await start_reporting(replay="")
    gateway = await start_gateway(engine, ingest=SOON, relay={"health_interval_seconds": 0.5, "suspect_seconds": 0})
    await ask(gateway, 1)
    await state_of(gateway, "live")
    await engine.kill()
    events = f"tcp://*:{engine.event_endpoints[0].rpartition(':')[2]}"
    again = SimulatedEngine(dataclasses.replace(engine.config, port=engine.port, events=events))
    await again.start()
    closing.push_async_callback(again.kill)
    await eventually(lambda: up(gateway))

    async def received() -> bool:
        await gateway.ask(messages=prompt(random.randrange(10_000), 1), max_tokens=2)
        return (await gateway.replicas())["r0"]["events"][0]["state"] == "live"

    await eventually(received)
    await asyncio.sleep(1.5)
    assert await source_of(gateway) == "events"
    await events_received(gateway, [again])


async def test_silence_is_noticed_without_usage_details(
    start_reporting: StartEngine, start_gateway: StartGateway
) -> None:
    engine = await start_reporting(prompt_tokens_details=False, replay="")
    gateway = await start_gateway(engine, ingest=SOON)
    await state_of(gateway, "rebuilding")
    await set_fault(engine, "events_stop")
    await gateway.ask(messages=prompt(1, 1), max_tokens=2)
    await state_of(gateway, "silent")
    assert await source_of(gateway) == "blind"


async def test_an_engine_that_caches_nothing_has_nothing_to_report(
    start_reporting: StartEngine, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await start_reporting(prefix_caching=False)
    gateway = await start_gateway(engine, ingest=SOON)
    await state_of(gateway, "live")
    await ask(gateway, 1)
    await asyncio.sleep(3 * SOON["silent_after_seconds"])
    await state_of(gateway, "live")
    assert "kv_events_silent" not in capsys.readouterr().out


async def test_asking_whether_anything_was_missed_counts_no_events(
    followed: tuple[RunningGateway, SimulatedEngine],
) -> None:
    gateway, engine = followed
    await ask(gateway, 1)
    await events_received(gateway, [engine])
    before = (await gateway.metrics()).value("gateway_kv_events_total")
    await asyncio.sleep(3 * SOON["probe_seconds"])
    assert (await gateway.metrics()).value("gateway_kv_events_total") == before


@pytest.mark.parametrize("fault", ["events_close", "events_stop"])
async def test_without_its_events_a_replica_is_predicted_and_served(
    followed: tuple[RunningGateway, SimulatedEngine], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway, engine = followed
    await ask(gateway, 1)
    await set_fault(engine, fault)

    async def reported() -> bool:
        predicted, cached = await ask(gateway, 1)
        assert predicted == cached > 0
        await ask(gateway, random.randrange(100, 10_000))  # something to compute, which an event should report
        feed = (await gateway.replicas())["r0"]["events"][0]
        return feed["state"] == "silent" and bool(feed["problem"]) and await source_of(gateway) == "predicted"

    await eventually(reported)
    assert "kv_events_silent" in capsys.readouterr().out
    metrics = await gateway.metrics()
    assert metrics.value("gateway_index_blocks", replica="r0", source="predicted") > 0
    assert metrics.value("gateway_index_blocks", replica="r0", source="events") == 0
    await set_fault(engine, "")
    await ask(gateway, 3)
    await state_of(gateway, "live")
    await events_received(gateway, [engine])


async def test_an_event_address_without_a_publisher_is_reported(
    start_engine: StartEngine, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await start_engine()
    replicas = [{"url": engine.url, "id": "r0", "events": "tcp://127.0.0.1:9"}]
    gateway = await start_gateway(engine, ingest=SOON, model={"replicas": replicas})
    await state_of(gateway, "silent")
    feed = (await gateway.replicas())["r0"]["events"][0]
    assert "tcp://127.0.0.1:9" in feed["problem"]
    shown = capsys.readouterr().out
    assert "kv_events_silent" in shown
    assert "the gateway's configuration" in shown
    await ask(gateway, 1)
    predicted, reported = await ask(gateway, 1)
    assert predicted == reported > 0


async def test_an_engine_that_publishes_without_subscribers_is_reported(
    start_engine: StartEngine, start_gateway: StartGateway
) -> None:
    engine = await start_engine(events="tcp://127.0.0.1:5557")
    gateway = await start_gateway(engine, ingest=SOON)
    await state_of(gateway, "silent")
    assert "tcp://*:5557" in (await gateway.replicas())["r0"]["events"][0]["problem"]


async def test_events_can_be_left_alone(start_reporting: StartEngine, start_gateway: StartGateway) -> None:
    engine = await start_reporting()
    gateway = await start_gateway(engine, model={"replicas": [{"url": engine.url, "id": "r0", "events": "off"}]})
    await ask(gateway, 1)
    replica = (await gateway.replicas())["r0"]
    assert replica["events"] == []
    assert replica["index"]["source"] == "predicted"
    assert replica["index"]["digest"] is None
    assert (await gateway.metrics()).value("gateway_kv_events_total") == 0


async def test_a_configured_address_is_followed(start_reporting: StartEngine, start_gateway: StartGateway) -> None:
    engine = await start_reporting()
    reported_to = {"events": engine.event_endpoints[0], "replay": engine.replay_endpoints[0]}
    reported_to = {key: address.replace("*", "127.0.0.1") for key, address in reported_to.items()}
    gateway = await start_gateway(
        engine, ingest=SOON, model={"replicas": [{"url": engine.url, "id": "r0"} | reported_to]}
    )
    await state_of(gateway, "live")
    await ask(gateway, 1)
    await events_received(gateway, [engine])


async def test_a_replica_without_events_and_usage_details_is_blind(
    start_engine: StartEngine, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await start_engine(prompt_tokens_details=False)
    gateway = await start_gateway(engine)
    await gateway.ask(messages=prompt(1, 1), max_tokens=2)
    assert await source_of(gateway) == "blind"
    assert "--enable-prompt-tokens-details" in capsys.readouterr().out
    assert (await gateway.metrics()).value("gateway_index_blocks", replica="r0", source="blind") > 0


@pytest.fixture
async def flood() -> AsyncIterator[tuple[str, str]]:
    """Ten thousand events a second from an engine that does nothing else: addresses of its events and its replay."""
    context = zmq.Context()
    publisher, replayer = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    publisher.sndhwm = 0
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (publisher, replayer)]

    async def publish() -> None:
        sequence, parent = 0, None
        encode = msgspec.msgpack.Encoder().encode
        while True:
            events = []
            for number in range(200):
                name = sequence * 200 + number + 1
                events.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": [name],
                        "parent_block_hash": parent,
                        "token_ids": list(range(16)),
                        "block_size": 16,
                        "medium": "GPU",
                    }
                )
                parent = name
            publisher.send_multipart([b"", sequence.to_bytes(8, "big"), encode([float(sequence), events])], zmq.NOBLOCK)
            sequence += 1
            await asyncio.sleep(0.02)

    publishing = asyncio.create_task(publish())
    yield f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"
    publishing.cancel()
    await asyncio.wait([publishing])
    context.destroy(linger=0)


async def test_a_flood_of_events_costs_no_request(
    flood: tuple[str, str], start_engine: StartEngine, start_gateway: StartGateway
) -> None:
    engine = await start_engine()
    replicas = [{"url": engine.url, "id": "r0", "events": flood[0]}]
    gateway = await start_gateway(engine, ingest=SOON, model={"replicas": replicas})

    async def received(count: int) -> bool:
        return (await gateway.metrics()).value("gateway_kv_events_total", replica="r0") >= count

    await eventually(lambda: received(1000))
    before = (await gateway.metrics()).value("gateway_kv_events_total", replica="r0")
    for topic in range(50):
        await ask(gateway, topic)
    await eventually(lambda: received(int(before) + 5000))


async def test_hostile_events_are_counted_and_skipped(start_engine: StartEngine, start_gateway: StartGateway) -> None:
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        engine = await start_engine()
        replicas = [{"url": engine.url, "id": "r0", "events": f"tcp://127.0.0.1:{port}"}]
        gateway = await start_gateway(engine, ingest=SOON, model={"replicas": replicas})
        await state_of(gateway, "rebuilding")
        pack = msgspec.msgpack.encode
        for number, payload in enumerate(
            [b"", b"\x00" * 40, b"not msgpack", pack([1.0, [{"type": "BlockPromised"}, 3, {}]]), pack({"a": 1})]
        ):
            publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
        publisher.send_multipart([b"short"])
        publisher.send_multipart([b"", b"\x00", b"x"])

        async def counted() -> bool:
            return (await gateway.metrics()).value("gateway_kv_events_total", type="unknown") >= 6

        await eventually(counted)
        await ask(gateway, 1)
        predicted, reported = await ask(gateway, 1)
        assert predicted == reported > 0
    finally:
        context.destroy(linger=0)


async def test_events_that_cannot_be_true_are_not_believed(
    start_engine: StartEngine, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        engine = await start_engine(blocks=50)
        replicas = [{"url": engine.url, "id": "r0", "events": f"tcp://127.0.0.1:{port}"}]
        gateway = await start_gateway(engine, ingest=SOON, model={"replicas": replicas})
        await state_of(gateway, "rebuilding")
        stored = {
            "type": "BlockStored",
            "block_hashes": [7],
            "parent_block_hash": None,
            "token_ids": list(range(16)),
            "block_size": 16,
        }
        payload = msgspec.msgpack.encode([1.0, [stored] * 60])
        publisher.send_multipart([b"", bytes(8), payload])
        await state_of(gateway, "live")  # it began at 0, so it seemed to be all
        await state_of(gateway, "rebuilding")
        assert "kv_events_impossible" in capsys.readouterr().out
        assert await source_of(gateway) == "predicted"
    finally:
        context.destroy(linger=0)


async def test_events_that_match_nothing_are_counted_and_end_the_exact_state(
    start_engine: StartEngine, start_gateway: StartGateway
) -> None:
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        engine = await start_engine(blocks=50)
        replicas = [{"url": engine.url, "id": "r0", "events": f"tcp://127.0.0.1:{port}"}]
        gateway = await start_gateway(engine, ingest=SOON, model={"replicas": replicas})
        await state_of(gateway, "rebuilding")
        cleared, removed = {"type": "AllBlocksCleared"}, {"type": "BlockRemoved", "block_hashes": [7, 8]}
        for number, event in enumerate([cleared, removed]):
            publisher.send_multipart([b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0 + number, [event]])])
            await state_of(gateway, "rebuilding" if number else "live")
        metrics = await gateway.metrics()
        assert metrics.value("gateway_kv_unmatched_blocks_total", replica="r0", kind="removed") == 2
        assert metrics.value("gateway_kv_unmatched_blocks_total", replica="r0", kind="unfit") == 0
        assert (await gateway.replicas())["r0"]["events"][0]["unmatched_blocks"] == 2
        assert await source_of(gateway) == "predicted"
    finally:
        context.destroy(linger=0)


async def test_sglang_without_its_radix_cache_is_reported_with_the_flag(
    start_engine: StartEngine, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await start_engine(flavor=EngineKind.SGLANG, prefix_caching=False)
    gateway = await start_gateway(engine)
    assert (await gateway.replicas())["r0"]["engine"]["prefix_caching"] is False
    shown = capsys.readouterr().out
    assert "--disable-radix-cache" in shown
    assert "--enable-cache-report" in shown
    for _ in range(2):
        assert await ask(gateway, 1) == (0, 0)


async def test_events_are_found_without_metrics(
    start_reporting: StartEngine, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await start_reporting(
        flavor=EngineKind.SGLANG, block_size=16, prompt_tokens_details=True, fault="500:path=/metrics"
    )
    gateway = await start_gateway(engine, ingest=SOON)
    await state_of(gateway, "live")
    assert "--enable-metrics" in capsys.readouterr().out
    await ask(gateway, 1)
    await events_received(gateway, [engine])
    predicted, reported = await ask(gateway, 1)
    assert predicted == reported > 0


async def test_facts_of_the_engine_are_shown(start_reporting: StartEngine, start_gateway: StartGateway) -> None:
    engine = await start_reporting(data_parallel_size=2)
    gateway = await start_gateway(engine)
    facts = (await gateway.replicas())["r0"]["engine"]
    assert facts == {
        "kind": "vllm",
        "block_size": 16,
        "prefix_caching": True,
        "usage_details": None,
        "running": 0,
        "waiting": 0,
        "cache_use": 0.0,
        "ranks": 2,
    }
