import asyncio
import random

import pytest
import zmq
from event_reader import Mirror, Subscriber, fill, held, local, named, replay

from gateway.simulator.config import EngineConfig
from gateway.simulator.publisher import ListenError
from gateway.simulator.simulated_engine import SimulatedEngine

COMPLETIONS = "/v1/completions"
BOTH = {"events": "tcp://*:0", "replay": "tcp://*:0"}


@pytest.fixture
def subscribe():
    opened: list[Subscriber] = []

    def subscribe(endpoint: str, topic: str = "") -> Subscriber:
        opened.append(Subscriber(endpoint, topic))
        return opened[-1]

    yield subscribe
    for subscriber in opened:
        subscriber.close()


async def ask(client, tokens, **fields):
    response = await client.post(COMPLETIONS, json={"prompt": list(tokens), "max_tokens": 1} | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def events(engine, start=0, rank=0):
    return [named(event) for batch in await replay(engine.replay_endpoints[rank], start) for event in batch.events]


async def test_a_prompt_is_one_batch_with_one_run_of_blocks(start, connect):
    engine = await start(**BOTH)
    await ask(connect(engine), range(100, 150))
    (batch,) = await replay(engine.replay_endpoints[0])
    assert batch.sequence == 0
    timestamp, listed, rank = batch.content
    assert timestamp == pytest.approx(engine.ranks.started_at, abs=30)
    assert rank == 0
    names = [block.name for block in sorted(engine.content[0], key=lambda block: len(block.tokens))]
    assert listed == [
        {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None,
            "token_ids": list(range(100, 148)),
            "block_size": 16,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, None, None],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    ]
    assert all(0 <= name < 2**64 for name in names)


async def test_a_longer_prompt_names_the_block_before_its_new_ones(start, connect):
    engine = await start(**BOTH)
    client = connect(engine)
    await ask(client, range(100, 133))
    await ask(client, range(100, 165))
    first, second = await events(engine)
    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert second["token_ids"] == list(range(132, 164))


async def test_blocks_filled_while_decoding_are_published_after_the_prompt(start, connect):
    engine = await start(**BOTH, block_size=4)
    body = await ask(connect(engine), range(100, 106), max_tokens=8, ignore_eos=True, return_token_ids=True)
    computed = [*range(100, 106), *body["choices"][0]["token_ids"][:-1]]
    assert [event["token_ids"] for event in await events(engine)] == [computed[:4], computed[4:8], computed[8:12]]
    assert (await replay(engine.replay_endpoints[0]))[0].events[0]["token_ids"] == computed[:4]


async def test_equal_blocks_computed_twice_are_published_twice_and_removed_one_by_one(start, connect):
    engine = await start(**BOTH, blocks=6, block_size=2)
    client = connect(engine)
    for _ in range(2):
        await ask(client, range(100, 104))
    stored = await events(engine)
    assert [len(event["block_hashes"]) for event in stored] == [2, 1]
    assert stored[1]["block_hashes"] == stored[0]["block_hashes"][1:]
    # Five usable blocks: three are taken, so four new ones evict both copies.
    await ask(client, range(200, 208))
    removed = [event for event in await events(engine) if event["type"] == "BlockRemoved"]
    assert [event["block_hashes"] for event in removed] == [[stored[1]["block_hashes"][0]]] * 2
    assert removed[0] == {
        "type": "BlockRemoved",
        "block_hashes": removed[0]["block_hashes"],
        "medium": "GPU",
        "group_idx": 0,
    }


async def test_a_reset_is_reported_with_the_next_step(start, connect):
    engine = await start(**BOTH)
    client = connect(engine)
    await ask(client, range(100, 133))
    await client.post("/reset_prefix_cache")
    assert len(await replay(engine.replay_endpoints[0])) == 1
    await ask(client, range(100, 133))
    last = (await replay(engine.replay_endpoints[0]))[-1]
    assert [event["type"] for event in last.events] == ["AllBlocksCleared", "BlockStored"]
    assert last.events[0] == {"type": "AllBlocksCleared"}


async def test_salt_and_adapter_are_published_as_the_hash_takes_them(start, connect):
    engine = await start(**BOTH, adapters=("law", "poems"))
    client = connect(engine)
    await ask(client, range(100, 133), cache_salt="s")
    await ask(client, range(100, 133), model="poems", cache_salt="s")
    await ask(client, range(100, 133), model="poems")
    salted, both, adapted = await events(engine)
    assert (salted["extra_keys"], salted["lora_name"], salted["lora_id"]) == ([["s"], None], None, None)
    assert (both["extra_keys"], both["lora_name"], both["lora_id"]) == ([["poems", "s"], ["poems"]], "poems", 2)
    assert adapted["extra_keys"] == [["poems"], ["poems"]]
    assert len({tuple(event["block_hashes"]) for event in (salted, both, adapted)}) == 3


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
@pytest.mark.parametrize("encoding", ["map", "positional"])
@pytest.mark.parametrize("hashes", ["int", "bytes"])
@pytest.mark.parametrize("size", [1, 4])
async def test_events_alone_give_exactly_what_the_cache_holds(start, flavor, encoding, hashes, size):
    engine = await start(
        **BOTH, flavor=flavor, event_encoding=encoding, event_hashes=hashes, block_size=size, blocks=80 // size
    )
    rng = random.Random(size)
    mirror, seen = Mirror(), 0
    for step in range(150):
        if step % 50 == 49:
            assert engine.cache.reset()
        family = rng.randrange(3)
        salt = rng.choice(["", "", "a"])
        fill(engine, [family, family, *(rng.randrange(2) for _ in range(rng.randrange(1, 30)))], salt=salt)
        if step % 10 == 0:
            batches = await replay(engine.replay_endpoints[0], seen)
            mirror.apply(batches)
            seen += len(batches)
            assert mirror.content == held(engine)
    assert len(mirror.known) > len(mirror.content) > 0


async def test_an_engine_under_load_publishes_what_it_holds(start, connect):
    engine = await start(**BOTH, blocks=60, block_size=4, slots=6, decode_ms=1, adapters=("law",))
    client = connect(engine)
    client.timeout = 60
    rng = random.Random(3)

    async def one() -> None:
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
        fields = {
            "max_tokens": rng.randrange(1, 20),
            "model": rng.choice(["demo", "law"]),
            "stream": rng.random() < 0.3,
        }
        if rng.random() < 0.3:
            fields["cache_salt"] = "s"
        response = await client.post(COMPLETIONS, json={"prompt": tokens} | fields)
        assert response.status_code == 200

    await asyncio.gather(*(one() for _ in range(120)))
    mirror = Mirror()
    mirror.apply(await replay(engine.replay_endpoints[0]))
    assert mirror.content == held(engine)
    assert len(mirror.known) > len(mirror.content) > 0


async def test_a_subscriber_receives_the_batches_that_are_replayed(start, subscribe):
    engine = await start(**BOTH, event_topic="kv@here")
    listener = subscribe(engine.event_endpoints[0], "kv@")
    last = await listener.tune(engine)
    for first in (100, 200, 300):
        fill(engine, range(first, first + 40))
    live = [await listener.get() for _ in range(3)]
    assert [batch.sequence for batch in live] == [last + 1, last + 2, last + 3]
    assert {batch.topic for batch in live} == {b"kv@here"}
    assert live == await replay(engine.replay_endpoints[0], last + 1)


async def test_a_subscriber_of_another_topic_receives_nothing(start, subscribe):
    engine = await start(**BOTH, event_topic="kv")
    received, silent = subscribe(engine.event_endpoints[0]), subscribe(engine.event_endpoints[0], "other")
    await received.tune(engine)
    assert not await silent.waiting()


async def test_the_replay_buffer_forgets_the_oldest(start):
    engine = await start(**BOTH, replay_buffer=3)
    for first in range(100, 800, 100):
        fill(engine, range(first, first + 16))
    endpoint = engine.replay_endpoints[0]
    assert [batch.sequence for batch in await replay(endpoint)] == [4, 5, 6]
    assert [batch.sequence for batch in await replay(endpoint, 6)] == [6]
    assert await replay(endpoint, 7) == []


@pytest.mark.slow
async def test_long_replays_are_complete_and_do_not_delay_requests(start, connect):
    engine = await start(**BOTH)
    client = connect(engine)
    for first in range(5000):
        fill(engine, range(first * 16, first * 16 + 16))
    # Requests for replay come while others are answered.
    waiting = [asyncio.ensure_future(replay(engine.replay_endpoints[0], start)) for start in (0, 10, 4000, 4900)]
    assert (await client.get("/health")).status_code == 200
    assert not waiting[0].done()
    for task, start_at in zip(waiting, (0, 10, 4000, 4900), strict=True):
        assert [batch.sequence for batch in await task] == list(range(start_at, 5000))


async def test_a_replay_request_that_is_none_is_ignored(start):
    engine = await start(**BOTH)
    fill(engine, range(16))
    socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    socket.connect(local(engine.replay_endpoints[0]))
    await socket.send_multipart([b"nonsense"])
    await socket.send_multipart([b"", bytes(8), b"more"])
    assert len(await replay(engine.replay_endpoints[0])) == 1
    assert not await socket.poll(50)
    socket.close(linger=0)


async def test_the_first_releases_arrays_end_early(start):
    engine = await start(**BOTH, event_encoding="positional-short", blocks=3)
    fill(engine, range(100, 132), salt="s")
    fill(engine, range(200, 216))
    first, second = await replay(engine.replay_endpoints[0])
    assert len(first.content) == 2
    assert first.events == [["BlockStored", first.events[0][1], None, list(range(100, 132)), 16, None]]
    assert second.events[0] == ["BlockRemoved", [first.events[0][1][1]]]


async def test_arrays_have_every_field_in_its_place(start):
    engine = await start(**BOTH, event_encoding="positional", blocks=3, adapters=("law",))
    fill(engine, range(100, 116), salt="s", adapter="law")
    fill(engine, range(200, 232))
    first, second = await replay(engine.replay_endpoints[0])
    stored = first.events[0]
    assert stored[2:] == [None, list(range(100, 116)), 16, 1, "GPU", "law", [["law", "s"]], 0, "full_attention"]
    assert second.events[0] == ["BlockRemoved", stored[1], "GPU", 0]


async def test_names_can_be_bytes(start):
    engine = await start(**BOTH, event_hashes="bytes")
    fill(engine, range(100, 132))
    (event,) = await events(engine)
    assert [(type(name), len(name)) for name in event["block_hashes"]] == [(bytes, 32)] * 2
    assert {block.name for block in engine.content[0]} == set(event["block_hashes"])


async def test_an_engine_says_where_its_events_are(start, connect):
    engine = await start(**BOTH, event_topic="kv", replay_buffer=7)
    reported = (await connect(engine).get("/kv_event_sources")).json()
    assert reported == {
        "0": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": engine.event_endpoints[0],
            "replay_endpoint": engine.replay_endpoints[0],
            "buffer_steps": 7,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": "kv",
        }
    }
    assert engine.event_endpoints[0].startswith("tcp://*:")
    assert not engine.event_endpoints[0].endswith(":0")
    assert (await connect(await start()).get("/kv_event_sources")).json() == {}


async def test_without_a_wildcard_the_engine_connects_and_is_not_received(start, subscribe):
    helper = zmq.asyncio.Context.instance().socket(zmq.SUB)
    port = helper.bind_to_random_port("tcp://127.0.0.1")
    helper.subscribe("")
    engine = await start(events=f"tcp://127.0.0.1:{port}", replay="tcp://127.0.0.1:0")
    # A listener there receives it; one that connects there, as subscribers do, does not.
    first = 0
    while not await helper.poll(20):
        fill(engine, range(first, first + 16))
        first += 16
    other = subscribe(engine.event_endpoints[0])
    fill(engine, range(5000, 5016))
    assert not await other.waiting()
    assert await replay(engine.replay_endpoints[0])
    helper.close(linger=0)


async def test_an_engine_without_prefix_caching_has_no_events_and_no_hits(start, connect):
    engine = await start(**BOTH, prefix_caching=False)
    client = connect(engine)
    for _ in range(2):
        body = await ask(client, range(100, 165))
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    await client.post("/reset_prefix_cache")
    await ask(client, range(100, 165))
    assert await replay(engine.replay_endpoints[0]) == []
    metrics = (await client.get("/metrics")).text
    assert 'enable_prefix_caching="False"' in metrics
    assert 'vllm:prefix_cache_queries_total{model_name="demo",engine="0"} 0.0' in metrics


async def test_a_killed_engine_is_silent_and_publishes_on_the_same_ports_afterwards(start, subscribe):
    engine = await start(**BOTH)
    endpoints = engine.event_endpoints + engine.replay_endpoints
    fill(engine, range(100, 116))
    await engine.kill()
    fill(engine, range(200, 216))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(replay(endpoints[1]), 0.2)
    await engine.start()
    assert engine.event_endpoints + engine.replay_endpoints == endpoints
    await subscribe(endpoints[0]).tune(engine)
    assert [batch.sequence for batch in await replay(endpoints[1])][:2] == [0, 1]


async def test_a_new_engine_on_the_same_ports_starts_from_nothing(start, subscribe):
    first = await start(**BOTH)
    listener = subscribe(first.event_endpoints[0])
    await listener.tune(first)
    fill(first, range(100, 116))
    await first.kill()
    second = await start(port=first.port, events=first.event_endpoints[0], replay=first.replay_endpoints[0])
    assert await replay(second.replay_endpoints[0]) == []
    fill(second, range(100, 116))
    assert [batch.sequence for batch in await replay(second.replay_endpoints[0])] == [0]
    assert second.ranks.started_at > first.ranks.started_at
    # The subscriber that was there before finds the new one by itself.
    assert await listener.tune(second) < 100


async def test_a_taken_port_is_one_clear_line_and_nothing_stays_open(start):
    taken = await start(**BOTH)
    engine = SimulatedEngine(EngineConfig(events="tcp://*:0", replay=taken.replay_endpoints[0]))
    with pytest.raises(ListenError, match=r"cannot listen on tcp://\*:\d+: Address already in use"):
        await engine.start()
    again = await start(events=engine.event_endpoints[0])
    assert again.event_endpoints == engine.event_endpoints


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"events": "5557"}, "tcp://*:5557"),
        ({"events": "ipc:///tmp/x"}, "tcp://*:5557"),
        ({"events": "tcp://*"}, "tcp://*:5557"),
        ({"events": "tcp://*:70000"}, "tcp://*:5557"),
        ({"events": "tcp://127.0.0.1:0"}, "does not listen there"),
        ({"events": "tcp://*:65535", "data_parallel_size": 2}, "no port left for rank 1"),
        ({"events": "tcp://*:5557", "replay": "tcp://*:5558", "data_parallel_size": 2}, "both need port 5558"),
        ({"replay": "tcp://*:5558"}, "replay needs events"),
        ({"replay_buffer": 0}, "replay_buffer"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"adapters": ("demo",)}, "different names"),
        ({"adapters": ("a", "a")}, "different names"),
        ({"fault": "events_drop"}, "publishes events"),
        ({"fault": "events_drop:rank=1", "events": "tcp://*:0"}, "rank 1"),
    ],
)
def test_options_that_do_not_fit_are_one_clear_sentence(options, said):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        EngineConfig(**options)
    assert said in str(caught.value)
