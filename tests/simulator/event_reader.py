"""Reads an engine's KV events from its sockets, knowing nothing but the wire format."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import zmq
import zmq.asyncio
from patience import HANG_SECONDS

from gateway.simulator.simulated_engine import SimulatedEngine

FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
VLLM_TAIL = ("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind")


class Batch(NamedTuple):
    topic: bytes
    sequence: int
    payload: bytes

    @property
    def content(self) -> list[Any]:
        return msgspec.msgpack.decode(self.payload)

    @property
    def events(self) -> list[Any]:
        return self.content[1]


def local(endpoint: str) -> str:
    return endpoint.replace("*", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")


class Subscriber:
    """A SUB socket. ``tune`` makes sure that it receives before a test relies on it."""

    def __init__(self, endpoint: str, topic: str = "") -> None:
        self.socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self.socket.connect(local(endpoint))
        self.socket.subscribe(topic)

    async def get(self, seconds: float = HANG_SECONDS) -> Batch:
        topic, sequence, payload = await asyncio.wait_for(self.socket.recv_multipart(), seconds)
        return Batch(topic, int.from_bytes(sequence, "big", signed=True), payload)

    async def waiting(self, seconds: float = 0.1) -> list[Batch]:
        """What comes until nothing has come for a while."""
        got = []
        while await self.socket.poll(int(seconds * 1000)):
            got.append(await self.get())
        return got

    async def tune(self, engine: SimulatedEngine, rank: int = 0) -> int:
        """Make the engine publish until it is received. Returns the last sequence number."""
        for first in itertools.count(1_000_000, 1000):
            fill(engine, range(first, first + engine.config.block_size), rank)
            received = await self.waiting(0.05)
            while received:
                if named(received[-1].events[-1])["token_ids"][0] == first:
                    return received[-1].sequence
                received = await self.waiting(0.5)
        raise AssertionError

    def close(self) -> None:
        self.socket.close(linger=0)


def fill(engine: SimulatedEngine, tokens: Iterable[int], rank: int = 0, **space: str) -> None:
    """Put a prompt into the cache as one scheduler step does."""
    chosen = engine.ranks.all[rank]
    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
    table = chosen.cache.table(packed, **space)
    assert chosen.cache.begin(table)
    chosen.cache.end(table)
    chosen.scheduler._end_step()


async def replay(endpoint: str, start: int = 0) -> list[Batch]:
    """Past batches from ``start`` on."""
    socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.connect(local(endpoint))
    try:
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        got = []
        while True:
            empty, topic, sequence, payload = await asyncio.wait_for(socket.recv_multipart(), HANG_SECONDS)
            assert empty == b""
            if sequence == b"\xff" * 8:
                assert (topic, payload) == (b"", b"")
                return got
            got.append(Batch(topic, int.from_bytes(sequence, "big"), payload))
    finally:
        socket.close(linger=0)


class Mirror:
    """What a cache must hold, from nothing but its events."""

    def __init__(self) -> None:
        self.copies: Counter[Any] = Counter()
        self.known: dict[Any, tuple[tuple[int, ...], str, str]] = {}

    def apply(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            for event in batch.events:
                self._apply(named(event))

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "AllBlocksCleared":
                self.copies.clear()
            case "BlockRemoved":
                for name in event["block_hashes"]:
                    assert self.copies[name] > 0
                    self.copies[name] -= 1
            case "BlockStored":
                parent = event["parent_block_hash"]
                adapter = event.get("lora_name") or ""
                path, salt, before = ((), salt_of(event), adapter) if parent is None else self.known[parent]
                assert before == adapter
                size = event["block_size"]
                assert len(event["token_ids"]) == size * len(event["block_hashes"])
                for index, name in enumerate(event["block_hashes"]):
                    path = (*path, *event["token_ids"][index * size : (index + 1) * size])
                    assert self.known.setdefault(name, (path, salt, adapter)) == (path, salt, adapter)
                    self.copies[name] += 1

    @property
    def content(self) -> set[Any]:
        return {(name, *self.known[name], copies) for name, copies in self.copies.items() if copies}


def held(engine: SimulatedEngine, rank: int = 0) -> set[Any]:
    return {(block.name, block.tokens, block.salt, block.adapter, block.copies) for block in engine.content[rank]}


def named(event: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """An event with the names of its fields, whichever way it was encoded."""
    if isinstance(event, dict):
        return event
    fields = FIELDS[event[0]]
    if event[0] == "BlockStored":
        fields += ("metadata",) if len(event) == 8 else VLLM_TAIL
    return {"type": event[0]} | dict(zip(fields, event[1:], strict=False))


def salt_of(event: dict[str, Any]) -> str:
    if "extra_keys" in event:
        keys = [key for key in event["extra_keys"][0] or [] if key != event["lora_name"]]
        return keys[0] if keys else ""
    return event.get("cache_salt") or event.get("metadata", {}).get("cache_salt", "")
