"""The simulation's replica against the simulated engine's scheduler and block cache: equal hits, equal times."""

import asyncio
import random
import selectors
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prompt import TOKEN_BYTES
from gateway.evaluation.simulation import FleetShape, SimulationResult, Workload, simulate
from gateway.evaluation.workload_trace import TraceRequest
from gateway.simulator.block_cache import BlockCache
from gateway.simulator.engine_scheduler import Scheduler, Sequence

SIZE = 4


class _NoWaiting(selectors.DefaultSelector):
    """Moves the loop's clock on instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


def in_virtual_time(main: Any) -> Any:
    """Run a coroutine in a loop in which waiting takes no time."""
    selector = _NoWaiting()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def engine_run(requests: list[TraceRequest], fleet: FleetShape, *, unique: bool) -> list[tuple[int, float]]:
    """Cached tokens and time to first token of each request at the simulated engine."""

    async def all_of_them() -> list[tuple[int, float]]:
        loop = asyncio.get_running_loop()
        cache = BlockCache(fleet.blocks + 1, SIZE, unique=unique)
        scheduler = Scheduler(
            cache, slots=fleet.slots, prefill_rate=fleet.prefill_rate, decode_seconds=fleet.decode_seconds
        )

        async def one(number: int, request: TraceRequest) -> tuple[int, float]:
            await asyncio.sleep(request.at - loop.time())
            ids = [block * SIZE + place for block in request.blocks for place in range(SIZE)][: request.prompt_tokens]
            prompt = b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in ids)
            # Generated tokens that no prompt and no other answer has.
            sequence = Sequence(prompt, tuple(10**6 + number * 1000 + place for place in range(request.output_tokens)))
            began, first = loop.time(), []
            await scheduler.run(sequence, lambda count: first.append(loop.time()) if count == 1 else None)
            return sequence.cached_tokens, first[0] - began

        return await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))

    found: list[tuple[int, float]] = in_virtual_time(all_of_them())
    return found


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceRequest]:
    """Prompts of a random tree of blocks, whose arrivals differ from all times of the engine."""
    requests, at, parents = [], 0.0, [()]
    for _ in range(draw(st.integers(1, 25))):
        at += draw(st.integers(1, 40)) * 0.1037
        path = draw(st.sampled_from(parents))
        path = (*path, *(len(parents) * 100 + step for step in range(draw(st.integers(1, 4)))))
        parents.append(path)
        tokens = len(path) * SIZE - draw(st.integers(0, SIZE - 1))
        requests.append(TraceRequest(at, tokens, draw(st.integers(1, 14)), path))
    return requests


SHAPES = st.builds(
    FleetShape,
    replicas=st.just(1),
    blocks=st.integers(12, 60),
    prefill_rate=st.sampled_from([7.0, 50.0]),
    decode_seconds=st.sampled_from([0.0213, 0.31]),
    slots=st.integers(1, 5),
)


@given(workloads(), SHAPES)
def test_hits_and_times_are_those_of_the_simulated_engine(requests: list[TraceRequest], fleet: FleetShape) -> None:
    fitting = [
        request for request in requests if -(-(request.prompt_tokens + request.output_tokens) // SIZE) <= fleet.blocks
    ]
    expected = engine_run(fitting, fleet, unique=True)
    found = simulate(Workload.of(fitting, SIZE), fleet, "round_robin")
    assert found.cached_tokens == sum(cached for cached, _ in expected)
    assert _times(found) == _times_of([ttft for _, ttft in expected])


def test_the_copies_that_vllm_keeps_hardly_matter() -> None:
    # vLLM keeps a copy where a prompt ends with a full block that is cached: here a quarter of the prompts end with a
    # full block, and the cache holds a tenth of all blocks.
    chance = random.Random(1)
    requests, parents = [], [()]
    for number in range(600):
        path = (*chance.choice(parents[-40:]), *(number * 10 + step for step in range(chance.randint(1, 4))))
        parents.append(path)
        requests.append(TraceRequest(number * 1.0, len(path) * SIZE - chance.randrange(SIZE), 5, path))
    fleet = FleetShape(1, 150, prefill_rate=1000.0)
    found = simulate(Workload.of(requests, SIZE), fleet, "round_robin")
    cached = sum(cached for cached, _ in engine_run(requests, fleet, unique=False))
    assert 0.3 < found.token_share < 0.9
    assert abs(cached / found.prompt_tokens - found.token_share) < 0.01


def _times(found: SimulationResult) -> list[float]:
    return [round(seconds, 6) for seconds in found.ttft_seconds]


def _times_of(values: list[float]) -> list[float]:
    ranked = sorted(values)
    places = [-(-share * len(ranked) // 100) - 1 for share in (50, 90, 99)]
    return [round(ranked[place], 6) for place in places]
