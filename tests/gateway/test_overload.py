"""Requests that no replica has time for wait in the gateway. Engines answer when a test says so."""

import asyncio
import json

import httpx
import pytest
from openai import AsyncOpenAI, RateLimitError
from patience import HANG_SECONDS
from raw_http import post
from running_gateway import CHAT, eventually
from scripted_engine import STREAM_HEAD, ScriptedEngine, chunk
from tenancy import error, key, sections, tenant

# A replica with a single prompt to compute is busy; so exactly one request at a time is at each.
ONE_AT_A_TIME = {"busy_seconds": 1e-9}
DELTA = b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"ok"}}]}\n\n'


class Held(ScriptedEngine):
    """Answers each request once it is released; records whose came in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Event] = []
        self.answer = self._held

    @property
    def names(self) -> list[str]:
        """The first words of what it was asked, in order."""
        return [json.loads(each.body)["messages"][-1]["content"].split()[0] for each in self.received]

    def release(self) -> None:
        """Answer the one that came first."""
        self.waiting.pop(0).set()

    async def _held(self, writer, received) -> None:
        released = asyncio.Event()
        self.waiting.append(released)
        await released.wait()
        writer.write(STREAM_HEAD + chunk(DELTA) + chunk(b"data: [DONE]\n\n") + chunk(b""))


@pytest.fixture
def start_held(closing):
    async def start() -> Held:
        engine = Held()
        await engine.start()
        closing.push_async_callback(engine.stop)
        return engine

    return start


class Asked:
    """Requests in flight through a gateway, by name; a name begins with its tenant's."""

    def __init__(self, gateway) -> None:
        self.gateway = gateway
        self.tasks = {}
        self._http = httpx.AsyncClient(
            base_url=gateway.url,
            timeout=HANG_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    def ask(self, name, *, words=30, headers=None):
        text = f"{name} " + " ".join(f"{name}-{number}" for number in range(words))
        body = {"model": "demo", "messages": [{"role": "user", "content": text}], "stream": True}
        headers = {"authorization": f"Bearer {key(name.split('-')[0])}"} | (headers or {})
        self.tasks[name] = asyncio.create_task(self._http.post(CHAT, json=body, headers=headers))

    async def waiting(self, count):
        """Wait until so many wait in the gateway."""

        async def there() -> bool:
            return (await self.gateway.metrics()).value("gateway_queue_requests") == count

        await eventually(there)

    async def asks(self, *names, waiting, **more):
        """Ask one after the other, and wait until so many wait."""
        for name in names:
            self.ask(name, **more)
            await asyncio.sleep(0.005)
        await self.waiting(waiting)

    async def end(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self._http.aclose()

    async def answer(self, name):
        return await asyncio.wait_for(self.tasks[name], HANG_SECONDS)


@pytest.fixture
async def busy(start_held, start_gateway, closing):
    """Starts a gateway with tenants a and b (and c with a share of 3) in front of held engines; see ``Asked``."""

    async def start(engines=1, *, queue=None, limits_of_b=None, **more):
        if engines > 1:
            # However slow this machine is, held prompts are neither nearly computed nor late.
            more.setdefault("placement", {"prefill_tokens_per_second": 1})
        held = [await start_held() for _ in range(engines)]
        tenants = sections(tenant("a"), tenant("b", **(limits_of_b or {})), tenant("c", share=3))
        gateway = await start_gateway(*held, queue=ONE_AT_A_TIME | (queue or {}), **tenants, **more)
        asked = Asked(gateway)
        closing.push_async_callback(asked.end)
        return asked, *held

    return start


async def serve_all(engine, count) -> None:
    """Answer until the engine has got so many."""
    while len(engine.received) < count:
        before = len(engine.received)
        engine.release()
        await eventually(lambda before=before: len(engine.received) > before)


async def test_a_flood_of_one_tenant_leaves_the_others_their_turn(busy):
    asked, engine = await busy()
    for number in range(200):
        asked.ask(f"a-{number}")
    await asked.waiting(199)
    await asked.asks("b-0", "b-1", "b-2", waiting=202)
    assert len(engine.received) == 1
    await serve_all(engine, 8)
    # One of the flood's for each of theirs.
    assert sorted(name for name in engine.names[1:7] if name.startswith("b")) == ["b-0", "b-1", "b-2"]
    assert len(engine.waiting) == 1


async def test_a_flood_at_engines_that_compute(start_engine, start_gateway, closing):
    """Each prompt takes 200 ms or so, at two engines with two ranks each."""
    engines = [await start_engine(prefill_rate=1_500, data_parallel_size=2, record_requests=300) for _ in range(2)]
    gateway = await start_gateway(
        *engines,
        queue={"busy_seconds": 0.2},
        placement={"prefill_tokens_per_second": 1_500},
        **sections(tenant("a"), tenant("b")),
    )
    asked = Asked(gateway)
    closing.push_async_callback(asked.end)
    for number in range(60):
        asked.ask(f"a-{number}", words=40)

    async def many_wait() -> bool:
        return (await gateway.metrics()).value("gateway_queue_requests") > 15

    def came(engine) -> list[str]:
        return [json.loads(each.body)["messages"][-1]["content"].split()[0] for each in engine.requests]

    await eventually(many_wait)
    before = [len(came(engine)) for engine in engines]
    asked.ask("b-0", words=40)
    assert (await asked.answer("b-0")).status_code == 200
    (after,) = (came(engine)[count:] for engine, count in zip(engines, before, strict=True) if "b-0" in came(engine))
    # Not behind the flood, but behind those that were sent before it came, and while it was on its way.
    assert after.index("b-0") < 10
    for name in asked.tasks:
        assert (await asked.answer(name)).status_code == 200
    metrics = await gateway.settled(61)
    assert metrics.value("gateway_queue_requests") == metrics.value("gateway_shed_total") == 0


async def test_without_the_queue_the_flood_goes_first(busy):
    asked, engine = await busy(queue={"max_seconds": 0})
    for number in range(50):
        asked.ask(f"a-{number}")
    await eventually(lambda: len(engine.received) == 50)
    asked.ask("b-0")
    await eventually(lambda: len(engine.received) == 51)
    assert engine.names[-1] == "b-0"


async def test_a_share_of_three_is_served_three_times_as_much(busy):
    asked, engine = await busy()
    asked.ask("a-first")
    await eventually(lambda: bool(engine.received))
    await asked.asks(*(f"{name}-{number}" for number in range(30) for name in "ac"), waiting=60)
    await serve_all(engine, 41)
    assert 28 <= sum(name.startswith("c") for name in engine.names[1:]) <= 32


async def test_queued_requests_are_answered_whole_and_counted(busy):
    asked, engine = await busy()
    await asked.asks("a-0", "a-1", "b-0", waiting=2)
    await serve_all(engine, 3)
    engine.release()
    answers = [await asked.answer(name) for name in ("a-0", "a-1", "b-0")]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert all(answer.text.rstrip().endswith("data: [DONE]") for answer in answers)
    metrics = await asked.gateway.settled(3)
    assert metrics.value("gateway_queue_requests") == 0
    assert metrics.value("gateway_queue_seconds_count") == 2
    assert metrics.value("gateway_overhead_seconds_count", stage="place") == 3
    assert metrics.value("gateway_overhead_seconds_count", stage="queue") == 0
    assert metrics.value("gateway_shed_total") == 0
    # What is waited is part of the time to the first byte.
    assert metrics.value("gateway_ttft_seconds_sum") > metrics.value("gateway_queue_seconds_sum") > 0


async def test_when_all_places_are_taken_the_newest_of_the_largest_is_refused(busy):
    asked, engine = await busy(queue={"max_requests": 4})
    await asked.asks("a-0", "a-1", "a-2", "a-3", "a-4", waiting=4)
    asked.ask("a-5")
    refused = await asked.answer("a-5")
    assert error(refused) == (429, "overloaded")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["x-gateway-error"] == "overloaded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    asked.ask("b-0")
    assert error(await asked.answer("a-4")) == (429, "overloaded")
    await serve_all(engine, 5)
    assert sorted(engine.names) == ["a-0", "a-1", "a-2", "a-3", "b-0"]
    metrics = await asked.gateway.metrics()
    assert metrics.value("gateway_shed_total", model="demo", tenant="a", reason="full") == 2
    assert metrics.value("gateway_requests_total", status="429", tenant="a") == 2
    assert metrics.value("gateway_queue_requests") == 0


async def test_a_refused_request_is_in_no_reference_cycle(busy, cyclic):
    asked, _ = await busy(queue={"max_requests": 1})
    await asked.asks("a-0", "a-1", waiting=1)
    asked.ask("a-2")
    assert error(await asked.answer("a-2")) == (429, "overloaded")
    await asyncio.sleep(0)
    assert cyclic() == {}


async def test_the_sdk_sees_a_rate_limit(busy):
    asked, _ = await busy(queue={"max_requests": 1})
    await asked.asks("a-0", "a-1", waiting=1)
    async with AsyncOpenAI(base_url=f"{asked.gateway.url}/v1", api_key=key("a"), max_retries=0) as client:
        with pytest.raises(RateLimitError) as refused:
            await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "a " * 50}])
    assert refused.value.code == "overloaded"


async def test_who_has_waited_long_enough_is_refused(busy):
    asked, engine = await busy(queue={"max_seconds": 0.2})
    await asked.asks("a-0", waiting=0)
    asked.ask("a-1")
    assert error(await asked.answer("a-1")) == (429, "overloaded")
    assert engine.names == ["a-0"]
    assert (await asked.gateway.metrics()).value("gateway_shed_total", reason="too_long") == 1


async def test_the_requests_own_deadline_holds_while_it_waits(busy):
    asked, engine = await busy()
    asked.ask("a-0")
    await eventually(lambda: bool(engine.received))
    asked.ask("a-1", headers={"x-request-timeout": "0.2"})
    assert error(await asked.answer("a-1")) == (504, "deadline_exceeded")
    assert engine.names == ["a-0"]
    metrics = await asked.gateway.metrics()
    assert metrics.value("gateway_shed_total") == 0
    assert metrics.value("gateway_queue_requests") == 0


async def test_who_leaves_while_it_waits_is_forgotten(busy, connect):
    asked, engine = await busy(limits_of_b={"prompt_tokens_per_minute": 400})
    asked.ask("a-0")
    await eventually(lambda: bool(engine.received))
    body = {"model": "demo", "messages": [{"role": "user", "content": "b-gone " * 40}], "stream": True}
    for _ in range(3):  # more than its limit, if what was not computed counted
        client = await connect(asked.gateway)
        await client.send(post(CHAT, json.dumps(body).encode(), f"authorization: Bearer {key('b')}"))
        await asked.waiting(1)
        client.abort()
        await asked.waiting(0)
    await asked.asks("a-1", waiting=1)
    await serve_all(engine, 2)
    engine.release()
    assert engine.names == ["a-0", "a-1"]
    metrics = await asked.gateway.settled(5)
    assert metrics.value("gateway_requests_total", status="499", tenant="b") == 3


async def test_a_gateway_that_stops_says_so_to_those_who_wait(busy):
    asked, engine = await busy()
    await asked.asks("a-0", "a-1", waiting=1)
    asked.gateway.gateway.public.interrupt()
    assert error(await asked.answer("a-1")) == (503, "shutting_down")
    assert engine.names == ["a-0"]


async def test_it_goes_to_the_replica_that_has_time_first(busy):
    asked, one, two = await busy(2)
    asked.ask("a-0")
    await eventually(lambda: bool(one.received or two.received))
    asked.ask("a-1")
    await eventually(lambda: bool(one.received and two.received))
    await asked.asks("a-2", "a-3", waiting=2)
    two.release()
    await eventually(lambda: len(two.received) == 2)
    two.release()
    await eventually(lambda: len(two.received) == 3)
    assert two.names[1:] == ["a-2", "a-3"]
    assert len(one.received) == 1


async def test_one_that_a_replica_failed_goes_before_its_tenants_others(busy):
    asked, one, two = await busy(2, relay={"suspect_seconds": 0.05})
    asked.ask("a-0")
    await eventually(lambda: bool(one.received or two.received))
    failed, other = (one, two) if one.received else (two, one)
    asked.ask("a-1")
    await eventually(lambda: bool(other.received))
    await asked.asks("a-2", "a-3", waiting=2)
    failed.answer = failed.reply  # a request sent there is answered at once, but not as a stream
    await failed.stop()
    await asked.waiting(3)
    other.release()
    await eventually(lambda: len(other.received) == 2)
    assert other.names == ["a-1", "a-0"]


async def test_when_the_last_replica_goes_all_queued_requests_are_answered(busy):
    asked, engine = await busy(relay={"health_interval_seconds": 0.05, "retries": 0})
    await asked.asks("a-0", "a-1", "a-2", waiting=2)
    await engine.stop()
    for name in ("a-1", "a-2"):
        status, code = error(await asked.answer(name))
        assert status in (502, 503)
        assert code in ("no_replica", "replica_disconnected")
    await asked.waiting(0)


async def test_a_cache_is_not_filled_while_clients_wait(busy):
    asked, engine = await busy()
    await asked.asks("a-0", "a-1", waiting=1)
    prefix = {
        "name": "greeting",
        "model": "demo",
        "tenant": "b",
        "messages": [{"role": "system", "content": "warm " * 60}],
    }
    job = await asked.gateway.admin.post("/admin/api/warm", json={"prefixes": [prefix]})
    assert job.status_code in (200, 202), job.text
    await asyncio.sleep(0.3)
    assert engine.names == ["a-0"]
    engine.release()
    await eventually(lambda: len(engine.received) == 3)
    assert sorted(engine.names[1:]) == ["a-1", "warm"]
