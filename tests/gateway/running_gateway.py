"""A whole gateway on free loopback ports, in the test's own event loop, and what a test asks it."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, Protocol

import httpx
from patience import HANG_SECONDS
from prometheus_client.parser import text_string_to_metric_families

from gateway.api import Cors
from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.http_client.open_files import FileLimits
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.http_server import HttpServer
from gateway.server.port import PortOptions
from gateway.server.public_handler import PublicHandler
from gateway.simulator.simulated_engine import SimulatedEngine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class HasUrl(Protocol):
    @property
    def url(self) -> str: ...


def settings_for(engines: Sequence[HasUrl], **sections: Any) -> Settings:
    """Settings with one model, ``demo``, on these engines; they are called r0, r1 and so on.

    Health checks run once, at the start, unless a test asks for more: nothing changes behind its back. They may take
    their time, for the machine may be busy. A replica that comes back gets its whole share at once. Requests are
    explained only where a test asks for it: that takes a process more.
    """
    model: dict[str, Any] = {
        "id": "demo",
        "tokenizer": "builtin:demo",
        "replicas": [{"url": engine.url, "id": f"r{number}"} for number, engine in enumerate(engines)],
    }
    model |= sections.pop("model", {})
    data: dict[str, Any] = {"models": [model], "explain": {"enabled": False}} | sections
    calm = {"health_interval_seconds": 60, "health_timeout_seconds": 10, "slow_start_seconds": 0}
    # A busy machine must not decide which requests are explained.
    data["explain"] = {"max_cpu_share": None, "observed_share": 1} | data["explain"]
    data["relay"] = calm | data.get("relay", {})
    return Settings.model_validate(data)


class Metrics:
    """One scrape."""

    def __init__(self, page: str) -> None:
        self.families = list(text_string_to_metric_families(page))

    def value(self, name: str, **labels: str) -> float:
        """Sum of all samples of that name that carry these labels."""
        return sum(
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


class RunningGateway:
    """A gateway that serves.

    Attributes:
        url: Of the public port.
        admin_url: Of the admin port.
        http: Client of the public port.
        admin: Client of the admin port.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.gateway = Gateway(settings)
        self._servers: list[HttpServer] = []

    async def start(self) -> None:
        await self.gateway.start()
        self.url = await self._listen(PublicHandler(self.gateway.public), self.gateway.public.cors)
        self.admin_url = await self._listen(AsgiHandler(self.gateway.admin))
        self.http = httpx.AsyncClient(base_url=self.url, timeout=HANG_SECONDS, verify=False)
        self.admin = httpx.AsyncClient(base_url=self.admin_url, timeout=HANG_SECONDS, verify=False)

    async def stop(self) -> None:
        await self.http.aclose()
        await self.admin.aclose()
        for server in self._servers:
            for connection in list(server.port.connections):
                connection.transport.abort()
            await server.close()
        await self.gateway.stop()

    async def _listen(self, app: Any, cors: Cors | None = None) -> str:
        # With the protocol named, asyncio turns off the delay for small packets, as uvloop always does.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        server = HttpServer(app, PortOptions.of(self.settings, FileLimits.of_public_port), cors=cors)
        await server.listen([listener])
        self._servers.append(server)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    async def ask(
        self, text: str = "Hello.", *, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """A chat with one user message; ``messages`` and other fields may be given."""
        body = {"model": "demo", "messages": [{"role": "user", "content": text}]} | fields
        return await self.http.post(CHAT, json=body, headers=headers)

    async def send(self, body: bytes, path: str = CHAT, **headers: str) -> httpx.Response:
        """A body as bytes."""
        return await self.http.post(path, content=body, headers={"content-type": "application/json"} | headers)

    async def metrics(self) -> Metrics:
        return Metrics((await self.admin.get("/metrics")).text)

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """What the admin API says, by replica."""
        found = (await self.admin.get("/admin/api/replicas")).json()["replicas"]
        return {replica["id"]: replica for replica in found}

    async def in_flight(self) -> float:
        """Requests in flight over all replicas; both places that report them have to agree."""
        gauge = (await self.metrics()).value("gateway_replica_inflight")
        assert gauge == sum(replica["requests"] for replica in (await self.replicas()).values())
        return gauge

    async def settled(self, requests: int) -> Metrics:
        """Wait until that many requests are accounted for and nothing is in flight; returns the metrics."""

        found = await self.metrics()

        async def over() -> bool:
            nonlocal found
            if found.value("gateway_requests_total") >= requests and not found.value("gateway_replica_inflight"):
                return True
            found = await self.metrics()
            return False

        await eventually(over)
        for replica in (await self.replicas()).values():
            assert (replica["requests"], replica["prefill_tokens_in_flight"]) == (0, 0)
        return found


def held_answers(engine: SimulatedEngine) -> asyncio.Event:
    """From now on the last token of every answer of an engine waits for this event."""
    released, compute = asyncio.Event(), engine.scheduler.run

    async def run(sequence: Any, on_token: Callable[[int], None] | None = None) -> None:
        last, report = len(sequence.answer), on_token or (lambda count: None)
        await compute(sequence, lambda count: report(count) if count < last else None)
        await released.wait()
        report(last)

    engine.scheduler.run = run  # type: ignore[method-assign]
    return released


async def know_each_other(*group: RunningGateway, peers: int | None = None) -> None:
    """Wait until each of some gateways has messages of all others, or of so many."""
    wanted = len(group) - 1 if peers is None else peers

    async def known() -> bool:
        return all([(await gateway.metrics()).value("gateway_peers") == wanted for gateway in group])

    await eventually(known)


async def events_received(
    gateway: RunningGateway, engines: Sequence[SimulatedEngine], seconds: float = HANG_SECONDS
) -> None:
    """Wait until the gateway has received everything the engines published."""

    async def all_of_it() -> bool:
        replicas = await gateway.replicas()
        for number, engine in enumerate(engines):
            published = [rank.publisher.next_number for rank in engine.ranks.all if rank.publisher]
            received = [feed["next_sequence"] for feed in replicas[f"r{number}"]["events"]]
            blocks = sum(len(rank) for rank in engine.content)
            if received != published or replicas[f"r{number}"]["index"]["blocks"] != blocks:
                return False
        return True

    await eventually(all_of_it, seconds)


async def eventually(holds: Callable[[], Awaitable[bool] | bool], seconds: float = HANG_SECONDS) -> None:
    """Wait until something holds; fail after ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            pause = 0.005
            while not await _awaited(holds()):
                # Asking takes time from what is waited for.
                pause = min(1.3 * pause, 0.1)
                await asyncio.sleep(pause)
            return
    raise AssertionError(f"did not come true within {seconds} s: {_name(holds)}")


async def each_answers(ask: Callable[[], Awaitable[str]], replicas: Set[str]) -> None:
    """Ask until each of some replicas has answered, and no other one: one that stalled once is not chosen for a while.

    ``ask`` sends a request and returns the replica's name.
    """
    answered: set[str] = set()

    async def have_all() -> bool:
        answered.add(await ask())
        assert answered <= replicas
        return answered == replicas

    await eventually(have_all)


async def _awaited(value: Awaitable[bool] | bool) -> bool:
    return value if isinstance(value, bool) else bool(await value)


def _name(function: Any) -> str:
    return getattr(function.func if isinstance(function, functools.partial) else function, "__qualname__", "?")
