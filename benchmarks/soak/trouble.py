"""What operators do all day, and what happens to the machines: none of it may cost a request."""

import asyncio
import random
from collections.abc import Sequence
from urllib.parse import quote

import orjson

from benchmarks.soak.clients import Act, Clients
from benchmarks.soak.score import Score
from benchmarks.soak.stage import MODEL, TENANTS, Stage
from benchmarks.soak.wire import Connection, head

_QUESTIONS = (
    "/admin/api/summary",
    "/admin/api/summary?window=1h&tenant=tenant-3",
    "/admin/api/reasons?window=15m&by=tenant",
    "/admin/api/requests?limit=100",
    "/admin/api/requests?tenant=tenant-2&limit=20",
    "/admin/api/replicas",
    "/admin/api/prefixes?limit=50",
    "/admin/api/spaces?limit=100",
    "/admin/api/warm",
    "/admin/api/config",
    "/dashboard",
    "/metrics",
    "/metrics",
    "/healthz",
)
_DRAIN_SECONDS = 5
_OUT_SECONDS = (3.0, 8.0)
_LISTENS_SECONDS = 15
_PEER_SECONDS = 15


class Trouble:
    """All of it.

    Args:
        stage: The machines.
        clients: Asks other gateways, too.
        score: Gets what came of it.
        seed: The same does the same.
    """

    def __init__(self, stage: Stage, clients: Clients, score: Score, seed: int) -> None:
        self._stage = stage
        self._clients = clients
        self._score = score
        self._random = random.Random(seed)
        self._admin = int(stage.gateway.admin.rpartition(":")[2])
        self._version = 0
        self._next_replica = 0
        self._one_out = asyncio.Lock()

    def acts(self) -> Sequence[tuple[str, float, Act]]:
        """What is begun again and again: its name, seconds between two beginnings, and how it goes."""
        return (
            ("question", 2.0, self._question),
            ("listener", 10.0, self._listener),
            ("reset", 15.0, self._reset),
            ("warm", 20.0, self._warm),
            ("drain", 60.0, self._drain),
            ("reload", 60.0, self._reload),
            ("replica", 120.0, self._replica),
            ("peer", 150.0, self._peer),
            ("flush", 240.0, self._flush),
        )

    async def _question(self) -> None:
        """Something that the admin port reports."""
        path = self._random.choice((*_QUESTIONS, f"/admin/api/requests/{quote(self._clients.last_request)}"))
        connection = await Connection.open(self._admin)
        try:
            # A request's details are there a moment after its answer, and not for ever.
            expected = (200, 404) if path.startswith("/admin/api/requests/") else (200,)
            self._score.take("question", await connection.ask("GET", path), expected)
        finally:
            connection.close()

    async def _listener(self) -> None:
        """Listens for a while to what happens."""
        path = self._random.choice(
            ["/admin/api/live", f"/admin/api/live?tenant=tenant-{self._random.randrange(TENANTS)}"]
        )
        connection = await Connection.open(self._admin)
        try:
            await connection.send(head("GET", path, {}, 0))
            if not (await connection.some()).startswith(b"HTTP/1.1 200 "):
                self._score.fail("listener", "not let in")
            try:
                async with asyncio.timeout(self._random.uniform(2, _LISTENS_SECONDS)):
                    while await connection.some():
                        pass
            except TimeoutError:
                pass
            else:
                self._score.fail("listener", "ended by the gateway")
            self._score.outcomes["listened"] += 1
        finally:
            (connection.leave if self._random.random() < 0.5 else connection.close)()

    async def _reset(self) -> None:
        """What a tenant, now and then everybody, has cached is not to be used any more."""
        everybody = self._random.random() < 0.1
        order = {"all": True} if everybody else {"tenant": f"tenant-{self._random.randrange(TENANTS)}"}
        await self._order("reset", "/admin/api/spaces/reset", order, (200,))

    async def _warm(self) -> None:
        """Fill caches with a prefix that no client has asked for."""
        number = self._random.randrange(10**9)
        prefix = {
            "model": MODEL,
            "tenant": f"tenant-{self._random.randrange(TENANTS)}",
            "messages": [{"role": "system", "content": f"Prefix {number}. " * 60}],
        }
        await self._order("warm", "/admin/api/warm", {"prefixes": [prefix]}, (202,))

    async def _drain(self) -> None:
        """A replica gets no requests for a moment."""
        async with self._one_out:
            name = self._stage.name_of(self._random.randrange(len(self._stage.replicas)))
            for drain in (True, False):
                await self._order("drain", "/admin/api/replicas/drain", {"replica": name, "drain": drain}, (200,))
                await asyncio.sleep(_DRAIN_SECONDS)

    async def _reload(self) -> None:
        """Another configuration; every fifth time one that is wrong, and is not taken."""
        self._version += 1
        spoiled = self._version % 5 == 0
        self._stage.configure(self._stage.gateway, self._version, spoiled=spoiled)
        self._stage.gateway.reload()
        self._score.outcomes["reload (wrong)" if spoiled else "reload"] += 1

    async def _replica(self) -> None:
        """An engine is killed, and comes back: as it was, or under a name of its own."""
        async with self._one_out:
            number = self._next_replica % len(self._stage.replicas)
            replica = self._stage.replicas[number]
            await replica.kill()
            await asyncio.sleep(self._random.uniform(*_OUT_SECONDS))
            if self._next_replica % 2:
                self._stage.rename(number)
            self._next_replica += 1
            await replica.start()
            self._score.outcomes["replica killed"] += 1
            await asyncio.sleep(_DRAIN_SECONDS)  # until the gateway has seen it: no other one goes out before

    async def _peer(self) -> None:
        """Another gateway comes, serves a few requests, and goes or dies."""
        peer = self._stage.peer
        if not peer.out:
            return
        await peer.start()
        for _ in range(5):
            await self._clients.ask("peer", peer.port, f"tenant-{self._random.randrange(TENANTS)}")
            await asyncio.sleep(_PEER_SECONDS / 5)
        await peer.kill()
        self._score.outcomes["peer killed"] += 1

    async def _flush(self) -> None:
        """Redis loses all it holds."""
        if self._stage.redis is None:
            return
        connection = await Connection.open(self._stage.redis.port)
        try:
            await connection.send(b"FLUSHALL\r\n")
            await connection.some()
            self._score.outcomes["flush"] += 1
        finally:
            connection.close()

    async def _order(self, kind: str, path: str, order: object, expected: Sequence[int]) -> None:
        connection = await Connection.open(self._admin)
        try:
            answer = await connection.ask("POST", path, {"content-type": "application/json"}, orjson.dumps(order))
            self._score.take(kind, answer, expected)
        finally:
            connection.close()
