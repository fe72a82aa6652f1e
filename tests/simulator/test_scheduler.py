import asyncio
import random
import struct

import pytest

from gateway.simulator.block_cache import BlockCache
from gateway.simulator.engine_scheduler import Scheduler, Sequence


def sequence(first: int, length: int, answer: int = 1, **options) -> Sequence:
    prompt = struct.pack(f"<{length}I", *range(first, first + length))
    return Sequence(prompt, tuple(range(90_000, 90_000 + answer)), **options)


def scheduler(*, blocks: int = 1000, slots: int = 8, rate: float = 100.0, decode: float = 0.1) -> Scheduler:
    return Scheduler(BlockCache(blocks, 10), slots=slots, prefill_rate=rate, decode_seconds=decode)


async def timed(engine: Scheduler, *sequences: Sequence) -> list[list[float]]:
    """Seconds at which each token of each sequence came."""
    loop = asyncio.get_running_loop()
    times: list[list[float]] = [[] for _ in sequences]
    start = loop.time()
    await asyncio.gather(
        *(
            engine.run(item, lambda _, at=at: at.append(round(loop.time() - start, 6)))
            for item, at in zip(sequences, times, strict=True)
        )
    )
    return times


def test_prefill_time_counts_uncached_tokens_and_decoding_follows(virtual):
    async def scenario():
        engine = scheduler()
        assert await timed(engine, sequence(0, 100, answer=3)) == [[1.0, 1.1, 1.2]]
        # 90 of 100 tokens are cached now.
        assert await timed(engine, sequence(0, 100, answer=2)) == [[0.1, 0.2]]

    virtual(scenario)


def test_prefills_come_one_after_the_other_and_decoding_runs_beside_them(virtual):
    async def scenario():
        times = await timed(scheduler(), sequence(0, 100, 3), sequence(1000, 50, 2), sequence(2000, 100, 1))
        assert times == [[1.0, 1.1, 1.2], [1.5, 1.6], [2.5]]

    virtual(scenario)


def test_no_request_is_scheduled_while_another_one_is_in_prefill(virtual):
    async def scenario():
        engine = scheduler()
        both = asyncio.ensure_future(timed(engine, sequence(0, 100, 10), sequence(1000, 100)))
        await asyncio.sleep(0.5)
        assert (engine.running, engine.waiting) == (1, 1)
        await asyncio.sleep(0.6)
        assert (engine.running, engine.waiting) == (2, 0)
        await both

    virtual(scenario)


def test_a_burst_of_one_prefix_is_computed_once(virtual):
    async def scenario():
        engine = scheduler()
        burst = [sequence(0, 101) for _ in range(3)]
        assert await timed(engine, *burst) == [[1.01], [1.02], [1.03]]
        assert [item.cached_tokens for item in burst] == [0, 100, 100]
        assert (engine.totals.queries, engine.totals.hits) == (303, 200)

    virtual(scenario)


def test_a_full_set_of_slots_lets_others_wait_in_order(virtual):
    async def scenario():
        engine = scheduler(slots=1)
        times = await timed(engine, sequence(0, 100, 5), sequence(1000, 100, 1), sequence(2000, 100, 1))
        assert times == [[1.0, 1.1, 1.2, 1.3, 1.4], [2.4], [3.4]]

    virtual(scenario)


def test_too_few_free_blocks_let_others_wait(virtual):
    async def scenario():
        # Ten blocks: the first sequence will grow to six, so the second (five) has to wait for its end.
        engine = scheduler(blocks=11)
        times = await timed(engine, sequence(0, 50, 11), sequence(1000, 50, 1))
        assert times[0][-1] == pytest.approx(1.5)
        assert times[1] == [pytest.approx(2.0)]

    virtual(scenario)


def test_a_sequence_may_fill_the_whole_cache(virtual):
    async def scenario():
        engine = scheduler(blocks=11)
        # 100 places: 90 prompt tokens, and of 11 generated ones the last takes none.
        assert len((await timed(engine, sequence(0, 90, 11)))[0]) == 11

    virtual(scenario)


def test_the_answer_is_cached_too_but_for_its_last_token(virtual):
    async def scenario():
        engine = scheduler()
        await timed(engine, sequence(0, 15, answer=6))
        again = sequence(0, 15)
        again.prompt += struct.pack("<6I", *range(90_000, 90_006))
        await timed(engine, again)
        # 15 + 5 tokens were computed, two full blocks.
        assert again.cached_tokens == 20

    virtual(scenario)


def test_an_unwatched_sequence_takes_its_blocks_at_the_same_moments(virtual):
    async def scenario():
        cache = BlockCache(100, 10)
        engine = Scheduler(cache, slots=1, prefill_rate=100, decode_seconds=1)
        task = asyncio.ensure_future(engine.run(sequence(0, 10, answer=25)))
        held = []
        for _ in range(24):
            await asyncio.sleep(1)
            held.append(99 - cache.free_blocks)
        # The second block is taken one second after the first token (0.1 s), the third ten tokens later.
        assert held == [1, *[2] * 10, *[3] * 10, *[4] * 3]
        await task

    virtual(scenario)


@pytest.mark.parametrize("moment", [0.5, 1.05], ids=["in prefill", "decoding"])
def test_an_abort_frees_slot_and_blocks_at_once(virtual, moment):
    async def scenario():
        cache = BlockCache(100, 10)
        engine = Scheduler(cache, slots=1, prefill_rate=100, decode_seconds=0.1)
        running = asyncio.ensure_future(engine.run(sequence(0, 100, 50)))
        waiting = asyncio.ensure_future(timed(engine, sequence(1000, 100)))
        await asyncio.sleep(moment)
        assert (engine.running, engine.waiting) == (1, 1)
        running.cancel()
        # The other one starts now: its prefill of one second ends one second after the abort.
        assert await waiting == [[moment + 1]]
        assert cache.free_blocks == 99
        assert (engine.totals.finished, engine.totals.aborted) == (1, 1)

    virtual(scenario)


def test_an_abort_while_waiting_leaves_the_queue(virtual):
    async def scenario():
        engine = scheduler(slots=1)
        running = asyncio.ensure_future(timed(engine, sequence(0, 100)))
        dropped = asyncio.ensure_future(timed(engine, sequence(1000, 100)))
        last = asyncio.ensure_future(timed(engine, sequence(2000, 100)))
        await asyncio.sleep(0.5)
        dropped.cancel()
        assert await running == [[1.0]]
        assert await last == [[2.0]]
        assert (engine.running, engine.waiting) == (0, 0)

    virtual(scenario)


def test_a_request_that_skips_the_cache_is_not_counted_as_a_lookup(virtual):
    async def scenario():
        engine = scheduler()
        await timed(engine, sequence(0, 100))
        forced = sequence(0, 100, reuse=False)
        assert await timed(engine, forced) == [[1.0]]
        assert forced.cached_tokens == 0
        assert (engine.totals.queries, engine.totals.prompt_tokens) == (100, 200)

    virtual(scenario)


def test_each_moment_that_changes_the_cache_is_one_step(virtual):
    async def scenario():
        loop = asyncio.get_running_loop()
        cache = BlockCache(1000, 10, journal=True)
        steps: list[tuple[float, int]] = []
        engine = Scheduler(
            cache,
            slots=8,
            prefill_rate=100,
            decode_seconds=1,
            on_step=lambda: steps.append((round(loop.time(), 6), len(cache.take_events()))),
        )
        await engine.run(sequence(0, 15, answer=17))
        # The prompt's full block when it is scheduled, and two more that the answer fills.
        assert steps == [(0, 1), (5.15, 1), (15.15, 1)]

    virtual(scenario)


def test_what_several_sequences_fill_at_one_moment_is_one_step(virtual):
    async def scenario():
        loop = asyncio.get_running_loop()
        cache = BlockCache(1000, 10, journal=True)
        steps: list[tuple[float, int]] = []
        engine = Scheduler(
            cache,
            slots=8,
            prefill_rate=float("inf"),
            decode_seconds=1,
            on_step=lambda: steps.append((round(loop.time(), 6), len(cache.take_events()))),
        )
        await timed(engine, *(sequence(0, 15, answer=7) for _ in range(3)))
        assert steps == [(0, 1), (5, 3)]

    virtual(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_under_pressure_everything_ends_and_no_block_is_lost(virtual, seed):
    async def scenario():
        rng = random.Random(seed)
        cache = BlockCache(21, 10)
        engine = Scheduler(cache, slots=4, prefill_rate=1000, decode_seconds=0.01)
        tasks = []
        for _ in range(300):
            item = sequence(
                rng.randrange(3) * 1000, rng.randrange(1, 150), rng.randrange(1, 50), reuse=rng.random() < 0.9
            )
            watch = rng.choice([None, lambda _: None])
            tasks.append(asyncio.ensure_future(engine.run(item, watch)))
            if rng.random() < 0.2:
                asyncio.get_running_loop().call_later(rng.random() * 5, rng.choice(tasks).cancel)
            await asyncio.sleep(rng.random() / 10)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        assert engine.totals.finished + engine.totals.aborted <= 300
        assert engine.totals.hits > 0
        assert (engine.running, engine.waiting, cache.free_blocks) == (0, 0, 20)

    virtual(scenario)


def test_sequences_that_are_cancelled_together_do_not_stop_the_next_one(virtual):
    async def scenario():
        engine = scheduler(slots=1)
        tasks = [asyncio.ensure_future(engine.run(sequence(1000 * place, 100))) for place in range(4)]
        await asyncio.sleep(0.5)
        assert (engine.running, engine.waiting) == (1, 3)
        for task in tasks[:3]:  # one that runs, and two that wait
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError] * 3 + [type(None)]
        assert (engine.running, engine.waiting) == (0, 0)
        assert (engine.totals.aborted, engine.totals.finished) == (3, 1)

    virtual(scenario)
