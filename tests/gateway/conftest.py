import asyncio
import contextlib
import gc
import os
import random
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import fork_server
import openai
import pytest
import pytest_asyncio
import yaml
from raw_http import Connection
from redis_server import RedisServer
from running_gateway import RunningGateway, know_each_other, settings_for
from scripted_engine import ScriptedEngine
from serving import COMMAND, Serving
from tenancy import SECRET

from gateway.api.dialects import DialectRequest, Translated
from gateway.context import RequestContext
from gateway.core.request import ChatRequest
from gateway.proxy.response import ResponseRelay
from gateway.server.event_loop import Loop
from gateway.simulator import engine_scheduler
from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

StartEngine = Callable[..., Awaitable[SimulatedEngine]]
StartGateway = Callable[..., Awaitable[RunningGateway]]


@pytest.fixture
async def closing() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What a test opened, closed in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def tokens_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stall a simulated engine goes on token by token.

    Otherwise it sends at once all tokens that are due, and what a test does during a stream comes after its end.
    """
    late: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    async def sleep_until(moment: float) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        moment += late.get(task, 0.0)
        await asyncio.sleep(max(moment - loop.time(), 0.0))
        late[task] = late.get(task, 0.0) + max(loop.time() - moment, 0.0)

    monkeypatch.setattr(engine_scheduler, "_sleep_until", sleep_until)


@pytest.fixture
def start_engine(closing: contextlib.AsyncExitStack) -> StartEngine:
    """Starts a simulated engine: fast, and keeping the requests it gets, unless configured otherwise."""

    async def start(**options: Any) -> SimulatedEngine:
        defaults = {"prefill_rate": 1e6, "decode_ms": 0.0, "record_requests": 200}
        engine = SimulatedEngine(EngineConfig(**defaults | options))
        await engine.start()
        closing.push_async_callback(engine.kill)
        return engine

    return start


@pytest.fixture
def start_gateway(closing: contextlib.AsyncExitStack) -> StartGateway:
    """Starts a gateway in front of engines; keyword arguments are sections of the configuration."""

    async def start(*engines: Any, **sections: Any) -> RunningGateway:
        running = RunningGateway(settings_for(engines, **sections))
        await running.start()
        closing.push_async_callback(running.stop)
        return running

    return start


@pytest.fixture
async def engine(start_engine: StartEngine) -> SimulatedEngine:
    return await start_engine()


@pytest.fixture
async def gateway(engine: SimulatedEngine, start_gateway: StartGateway) -> RunningGateway:
    """In front of one engine."""
    return await start_gateway(engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[RunningGateway, SimulatedEngine]]:
    """One gateway in front of one engine for all tests of a module that change nothing there: see ``one_gateway``."""
    engine = SimulatedEngine(EngineConfig(prefill_rate=1e6, decode_ms=0.0, record_requests=200))
    await engine.start()
    gateway = RunningGateway(settings_for([engine]))
    await gateway.start()
    yield gateway, engine
    await gateway.stop()
    await engine.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_behind() -> AsyncIterator[tuple[RunningGateway, ScriptedEngine]]:
    """The same in front of a scripted engine."""
    engine = ScriptedEngine()
    await engine.start()
    gateway = RunningGateway(settings_for([engine]))
    await gateway.start()
    yield gateway, engine
    await gateway.stop()
    await engine.stop()


@pytest.fixture
async def scripted(closing: contextlib.AsyncExitStack) -> ScriptedEngine:
    engine = ScriptedEngine()
    await engine.start()
    closing.push_async_callback(engine.stop)
    return engine


@pytest.fixture
async def behind(scripted: ScriptedEngine, start_gateway: StartGateway) -> RunningGateway:
    """A gateway in front of the scripted engine."""
    return await start_gateway(scripted)


@pytest.fixture
def redis_server(tmp_path: Path, closing: contextlib.AsyncExitStack) -> RedisServer:
    server = RedisServer(tmp_path)
    server.start()
    closing.callback(server.kill)  # when the gateways have ended
    return server


@pytest.fixture
def start_group(
    start_gateway: StartGateway, redis_server: RedisServer
) -> Callable[..., Awaitable[list[RunningGateway]]]:
    """Starts gateways that share their state, and waits until they know of each other."""

    async def start(
        engines: list[Any], count: int = 2, *, peers: int | None = None, **options: Any
    ) -> list[RunningGateway]:
        options = {"spaces": {"secret": SECRET}, "state": redis_server.url} | options
        group = [await start_gateway(*engines, **options) for _ in range(count)]
        await know_each_other(*group, peers=peers)
        return group

    return start


@pytest.fixture
def connect(closing: contextlib.AsyncExitStack) -> Callable[[RunningGateway], Awaitable[Connection]]:
    """Opens a raw connection to a gateway's public port."""

    async def connect(gateway: RunningGateway) -> Connection:
        connection = await Connection.open(gateway.port)
        closing.callback(connection.abort)
        return connection

    return connect


@pytest.fixture
def sdk(closing: contextlib.AsyncExitStack) -> Callable[..., openai.AsyncOpenAI]:
    """Makes an official client that does not retry by itself."""

    def make(gateway: RunningGateway, **options: Any) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test", **{"max_retries": 0} | options)
        closing.push_async_callback(client.close)
        return client

    return make


@pytest.fixture
def config(tmp_path: Path):
    """Writes a configuration file."""

    def write(*urls: Any, **sections: Any) -> Path:
        data: dict[str, Any] = {
            "server": {"port": 0, "admin_port": 0, "drain_seconds": 0} | sections.pop("server", {}),
            "models": [{"id": "demo", "tokenizer": "builtin:demo", "replicas": list(urls or ["http://127.0.0.1:9"])}],
        }
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump(data | sections))
        return file

    return write


@pytest.fixture
async def serve(config, closing):
    """Starts the command, with JSON logs; ``files`` is how many it may open at most, ``environment`` what its process
    has in its environment besides, ``wait`` whether until it is ready."""

    async def start(
        *urls: Any,
        files: int | None = None,
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
        **sections: Any,
    ) -> Serving:
        file = config(*urls, **{"log": {"format": "json", "level": "debug"}} | sections)
        process = await fork_server.create_subprocess_exec(
            *COMMAND,
            *("serve", "--config", str(file)),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env=os.environ | (environment or {}),
            max_files=files,
        )

        serving = Serving(process, file)

        async def end() -> None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it has ended, and is not waited for yet
                    process.kill()
                await process.wait()
            await serving.read_to_the_end()

        closing.push_async_callback(end)
        return await serving.ready() if wait else serving

    return start


_WORDS = ["order", "account", "package", "delivery", "invoice", "customer", "address", "number", "system", "request"]


@pytest.fixture
def prose() -> Callable[[int, int], str]:
    """Text of some hundred words, the same for the same seed: ``prose(seed, words)``."""

    def write(seed: int, words: int) -> str:
        return " ".join(random.Random(seed).choices(_WORDS, k=words))

    return write


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": Loop}


@pytest.fixture
def cyclic():
    """Counts what the collector finds, of what a request consists of."""
    gc.collect()
    gc.disable()

    def found() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        parts = RequestContext | ChatRequest | ResponseRelay | Translated | DialectRequest
        return Counter(type(each).__name__ for each in gc.garbage if isinstance(each, parts))

    yield found
    gc.garbage.clear()
    gc.enable()
