"""What has to hold when the trouble is over."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import Any

import httpx

from benchmarks.chaos.machines import BLOCK_SIZE, MODEL, Gateway, Machine
from gateway.core.ids import ModelId
from gateway.tokenize.block_hashes import ChainHasher

_SETTLE_SECONDS = 20


async def leaked_load(gateways: Sequence[Gateway]) -> list[str]:
    """Replicas that a gateway still counts as busy though no request is in flight."""
    found: list[str] = []
    for gateway in gateways:
        for row in await _replicas(gateway):
            if row["requests"] or row["prefill_tokens_in_flight"]:
                found.append(
                    f"{gateway.name}: {row['id']}: {row['requests']} requests, {row['prefill_tokens_in_flight']} tokens"
                )
    return found


@dataclass(frozen=True)
class Beliefs:
    """What gateways believe of the replicas' caches, beside what is there.

    Attributes:
        wrong: One line for each gateway whose state of a cache is confirmed by events and differs from it.
        unsure: Replicas whose events some gateway says that it has not all of, and goes by what it sent there.
    """

    wrong: list[str]
    unsure: set[str]


async def beliefs(gateways: Sequence[Gateway], replicas: Sequence[Machine]) -> Beliefs:
    """Compare every gateway's index with the engines' caches, block by block, until all that is known is right.

    Args:
        gateways: One of them should be fresh: it has nothing but what the engines themselves replayed to it.
        replicas: Nothing is asked of them any more.
    """
    found = Beliefs([], set())
    for _ in range(_SETTLE_SECONDS):
        caches = {_replica_id(replica): await _cache(replica) for replica in replicas}
        wrong: list[str] = []
        unsure: set[str] = set()
        for gateway in gateways:
            for row in await _replicas(gateway):
                index, cache = row["index"], caches[row["id"]]
                if index["source"] != "events":
                    unsure.add(row["id"])
                elif (index["blocks"], index["digest"]) != cache:
                    wrong.append(f"{gateway.name}: {row['id']}: {index}, but there are {cache[0]} blocks: {cache[1]}")
        found = Beliefs(wrong, unsure)
        if not wrong and not unsure:
            break
        await asyncio.sleep(1)
    return found


async def empty(replicas: Sequence[Machine]) -> None:
    """Empty caches, as an operator may: from here on the events are complete again."""
    for replica in replicas:
        async with httpx.AsyncClient(base_url=replica.url, trust_env=False, timeout=10) as http:
            (await http.post("/reset_prefix_cache")).raise_for_status()


def _replica_id(replica: Machine) -> str:
    return replica.url.removeprefix("http://")


async def _cache(replica: Machine) -> tuple[int, str]:
    """Distinct blocks in a replica's cache, and the digest that an index of them has."""
    async with httpx.AsyncClient(base_url=replica.url, trust_env=False, timeout=30) as http:
        answer = await http.get("/simulator/cache")
        answer.raise_for_status()
    hasher = ChainHasher()
    hashes = set()
    for block in answer.json()["ranks"][0]:
        root = hasher.root(ModelId(MODEL), block["adapter"], block["salt"])
        hashes.add(hasher.chain(root, array("I", block["tokens"]).tobytes(), BLOCK_SIZE).hashes[-1])
    return len(hashes), f"{reduce(xor, hashes, 0):016x}"


async def states(gateway: Gateway) -> dict[str, str]:
    """What a gateway says of its replicas."""
    return {row["id"]: row["state"] for row in await _replicas(gateway)}


async def _replicas(gateway: Gateway) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=gateway.admin, trust_env=False, timeout=10) as http:
        answer = await http.get("/admin/api/replicas")
        answer.raise_for_status()
        rows: list[dict[str, Any]] = answer.json()["replicas"]
        return rows
