"""What goes wrong, and when: drawn by chance from a seed, bounded so that all requests can be served."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import httpx

from benchmarks.chaos.machines import Machine, Machines

_PAUSE_SECONDS = (1.0, 4.0)
"""Between the beginnings of two troubles."""

_REPLICAS_OUT = 2
"""So many may be out at the same time."""

Report = Callable[[str], None]


class Trouble:
    """Makes trouble until it is cancelled; then everything is repaired.

    Args:
        machines: Whom.
        seed: The same makes the same trouble.
        report: Called with everything as it happens.

    Attributes:
        done: What was done, and how many times.
    """

    def __init__(self, machines: Machines, seed: int, report: Report) -> None:
        self._machines = machines
        self._random = random.Random(seed)
        self._report = report
        self._under_way: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Make trouble for so long, then wait until all of it is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(self._random.uniform(*_PAUSE_SECONDS))
            task = asyncio.ensure_future(self._one())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.gather(*self._under_way)

    async def _one(self) -> None:
        kinds: Sequence[tuple[int, Callable[[], Awaitable[None]]]] = (
            (6, self._kill_replica),
            (4, self._stop_replica),
            (3, self._lose_events),
            (2, self._kill_gateway),
            (1, self._stop_gateway),
            (1, self._kill_redis),
            (1, self._stop_redis),
            (1, self._flush_redis),
        )
        await self._random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]()

    async def _kill_replica(self) -> None:
        if (replica := self._some(self._machines.replicas, _REPLICAS_OUT)) is not None:
            await self._kill(replica, 2, 6)

    async def _stop_replica(self) -> None:
        if (replica := self._some(self._machines.replicas, _REPLICAS_OUT)) is not None:
            await self._stop(replica, 1, 12)

    async def _kill_gateway(self) -> None:
        if (gateway := self._some(self._machines.gateways, 1)) is not None:
            await self._kill(gateway, 1, 3)

    async def _stop_gateway(self) -> None:
        if (gateway := self._some(self._machines.gateways, 1)) is not None:
            await self._stop(gateway, 1, 4)

    async def _kill_redis(self) -> None:
        if not self._machines.redis.out:
            await self._kill(self._machines.redis, 2, 5)

    async def _stop_redis(self) -> None:
        if not self._machines.redis.out:
            await self._stop(self._machines.redis, 1, 5)

    async def _flush_redis(self) -> None:
        if self._machines.redis.out:
            return
        self._note("flush", self._machines.redis)
        _, writer = await asyncio.open_connection("127.0.0.1", self._machines.redis.port)
        writer.write(b"FLUSHALL\r\n")
        await writer.drain()
        writer.close()

    async def _lose_events(self) -> None:
        replica = self._some(self._machines.replicas, _REPLICAS_OUT + 1)
        if replica is None:
            return
        fault = self._random.choice(["events_drop", "events_drop_hard", "events_reorder", "events_duplicate"])
        self._note(fault, replica)
        async with httpx.AsyncClient(base_url=replica.url, trust_env=False, timeout=5) as http:
            try:
                await http.post("/simulator/fault", json={"spec": f"{fault}:times={self._random.randint(1, 20)}"})
            except httpx.HTTPError:
                return  # it was killed meanwhile

    async def _kill(self, machine: Machine, shortest: float, longest: float) -> None:
        self._note("kill", machine)
        await machine.kill()
        await asyncio.sleep(self._random.uniform(shortest, longest))
        await machine.start()

    async def _stop(self, machine: Machine, shortest: float, longest: float) -> None:
        self._note("stop", machine)
        machine.stop()
        await asyncio.sleep(self._random.uniform(shortest, longest))
        machine.go_on()

    def _some(self, machines: Sequence[Machine], most_out: int) -> Machine | None:
        """One that is there, if another one may be taken out."""
        there = [machine for machine in machines if not machine.out]
        return self._random.choice(there) if len(machines) - len(there) < most_out and len(there) > 1 else None

    def _note(self, what: str, machine: Machine) -> None:
        self.done[f"{what} {machine.name.split('-')[0]}"] += 1
        self._report(f"{what} {machine.name}")
