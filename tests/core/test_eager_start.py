"""A coroutine that runs at once up to its first wait."""

import asyncio

import pytest

from gateway.tasks import by_deadline, in_task, start_eagerly


async def started(work, *, cancelled=False):
    """Start work where requests are started: in a callback of the loop, outside of any task. ``cancelled``: at once."""
    loop = asyncio.get_running_loop()
    outcome = loop.create_future()

    def start():
        task = start_eagerly(work, "work")
        if cancelled:
            task.cancel()
        outcome.set_result([task])

    loop.call_soon(start)
    return (await outcome)[0]


async def test_one_that_does_not_wait_is_over_at_once_and_has_no_task():
    steps = []

    async def work():
        steps.append(asyncio.current_task())

    assert await started(work()) is None
    assert steps == [None]


async def test_one_that_waits_continues_as_a_task():
    steps = []
    event = asyncio.Event()

    async def work():
        steps.append("begun")
        await event.wait()
        steps.append(asyncio.current_task())
        await asyncio.sleep(0)
        await in_task()

    task = await started(work())
    assert steps == ["begun"]
    event.set()
    await task
    assert steps == ["begun", task]


@pytest.mark.parametrize("iterations", [None, 0, 1, 2])
async def test_a_cancellation_arrives_where_it_waits(iterations):
    """Also before the task has run for the first time."""
    seen = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    task = await started(work(), cancelled=iterations is None)
    for _ in range(iterations or 0):
        await asyncio.sleep(0)
    task.cancel()
    await task
    assert seen == ["cancelled"]


async def test_an_error_is_the_tasks():
    async def work():
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await (await started(work()))


async def test_in_task_makes_timeouts_possible():
    async def work():
        await in_task()
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await (await started(work()))


async def test_by_deadline_ends_what_waits_too_long_and_costs_no_task_otherwise():
    loop = asyncio.get_running_loop()
    outcomes = []

    async def waits():
        await asyncio.Event().wait()

    async def is_ready():
        return 3

    async def work():
        outcomes.append(await by_deadline(is_ready(), loop.time() - 1))
        outcomes.append(asyncio.current_task())
        try:
            await by_deadline(waits(), loop.time() + 0.01)
        except TimeoutError:
            outcomes.append("too late")

    await (await started(work()))
    assert outcomes == [3, None, "too late"]


@pytest.mark.parametrize("iterations", [None, 0, 1, 2, 3])
async def test_a_cancellation_arrives_behind_a_deadline_too(iterations):
    seen = []

    async def waits():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def work():
        await by_deadline(waits(), asyncio.get_running_loop().time() + 60)

    task = await started(work(), cancelled=iterations is None)
    for _ in range(iterations or 0):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_what_it_waited_for_is_cancelled_with_it():
    async def work():
        await future

    future = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.CancelledError):
        await (await started(work(), cancelled=True))
    assert future.cancelled()
