"""Data-parallel ranks: each has a cache, a scheduler and a publisher of its own behind the engine's one HTTP port."""

import time
from collections.abc import Callable
from typing import NamedTuple

from gateway.core.engine_facts import EngineKind
from gateway.simulator.block_cache import BlockCache
from gateway.simulator.call import EngineError
from gateway.simulator.config import EngineConfig
from gateway.simulator.engine_scheduler import Scheduler, Sequence
from gateway.simulator.event_encoder import EventEncoder, Name
from gateway.simulator.faults import Fault, FaultSpec
from gateway.simulator.publisher import EventPublisher, ZmqEndpoint


class CachedBlock(NamedTuple):
    """One block that a new sequence could reuse, as an index should have it.

    Attributes:
        name: Its hash in events.
        tokens: Token ids from the beginning of the prompt to the end of this block.
        copies: How often it is in the cache.
        salt: Cache salt, empty for none.
        adapter: LoRA adapter, empty for none.
    """

    name: Name
    tokens: tuple[int, ...]
    copies: int
    salt: str
    adapter: str


class Rank:
    """One rank.

    Attributes:
        number: Which one, from 0.
        cache: Its block cache.
        scheduler: Its scheduler.
        publisher: Its event sockets; None when events are off.
    """

    def __init__(self, config: EngineConfig, number: int) -> None:
        self.number = number
        self.cache = BlockCache(
            config.blocks,
            config.block_size,
            caching=config.prefix_caching,
            unique=config.flavor == EngineKind.SGLANG,
            window=config.window_blocks,
            journal=bool(config.events),
        )
        self.scheduler = Scheduler(
            self.cache,
            slots=config.slots,
            prefill_rate=config.prefill_rate,
            decode_seconds=config.decode_ms / 1000,
            on_step=self._publish,
        )
        self.publisher: EventPublisher | None = None
        if config.events:
            self.publisher = EventPublisher(
                ZmqEndpoint.parse(config.events).of_rank(number),
                ZmqEndpoint.parse(config.replay).of_rank(number) if config.replay else None,
                host=config.host,
                topic=config.event_topic,
                buffer=config.replay_buffer,
                flavor=config.flavor,
            )
        self._encoder = EventEncoder(
            config.flavor, config.event_encoding, config.event_hashes, config.adapters, config.window_blocks
        )

    def content(self) -> list[CachedBlock]:
        """The exact contents of the cache."""
        return [
            CachedBlock(
                name=self._encoder.name(prefix),
                tokens=tuple(memoryview(prefix.path()).cast("I")),
                copies=copies,
                salt=prefix.salt,
                adapter=prefix.adapter,
            )
            for prefix, copies in self.cache.content()
        ]

    async def set_fault(self, spec: FaultSpec | None) -> None:
        """Put an event fault in force, or end it. Raises ListenError if a closed socket cannot be opened again."""
        if self.publisher is None:
            return
        if spec is not None and spec.rank not in {None, self.number}:
            spec = None
        if spec is not None and spec.fault is Fault.EVENTS_RESTART:
            self.restart()
            spec = None
        await self.publisher.set_fault(spec)

    def restart(self) -> None:
        """Become empty as after a start, and count events from 0. Running sequences leave nothing behind."""
        self.cache.restart()
        if self.publisher is not None:
            self.publisher.restart()

    def _publish(self) -> None:
        if self.publisher is not None:
            self.publisher.publish(self._encoder.encode(self.cache.take_events(), time.time(), self.number))


class Ranks:
    """All ranks of an engine.

    Attributes:
        all: In the order of their numbers.
        started_at: Start time of the simulated process, Unix time.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.all = [Rank(config, number) for number in range(config.data_parallel_size)]
        self.started_at = time.time()
        self._turn = 0

    @property
    def idle(self) -> bool:
        """Whether no sequence is running or waiting."""
        return not any(rank.scheduler.running or rank.scheduler.waiting for rank in self.all)

    def check(self, asked: int | None) -> None:
        """Raise EngineError if there is no such rank. None is always valid."""
        if asked is not None and not 0 <= asked < len(self.all):
            raise EngineError(400, f"data_parallel_rank {asked} is out of range [0, {len(self.all)}).")

    async def run(self, sequence: Sequence, asked: int | None, on_token: Callable[[int], None] | None = None) -> None:
        """Compute a sequence on the rank asked for, else on the least busy one; see ``Scheduler.run``."""
        rank = self.all[asked] if asked is not None else self._least_busy()
        await rank.scheduler.run(sequence, on_token)

    async def set_fault(self, spec: FaultSpec | None) -> None:
        """Put an event fault in force, or end it. Raises ListenError if a closed socket cannot be opened again."""
        if spec is not None and spec.fault is Fault.EVENTS_RESTART:
            self.started_at = time.time()
        for rank in self.all:
            await rank.set_fault(spec)

    def restart(self) -> None:
        """Reset all ranks, as after a start of the process."""
        self.started_at = time.time()
        for rank in self.all:
            rank.restart()

    def _least_busy(self) -> Rank:
        # As vLLM's balancer (0.32, vllm/v1/engine/core_client.py): requests at the rank, waiting ones weighted by the
        # use of the cache; ties take turns.
        def score(offset: int) -> float:
            rank = self.all[(self._turn + offset) % len(self.all)]
            waiting = rank.scheduler.waiting
            use = 1 - rank.cache.free_blocks / rank.cache.usable_blocks
            return waiting + rank.scheduler.running + waiting * 6 * max(0.0, use - 0.5)

        chosen = self.all[(self._turn + min(range(len(self.all)), key=score)) % len(self.all)]
        self._turn += 1
        return chosen
