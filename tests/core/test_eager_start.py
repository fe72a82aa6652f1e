"""A coroutine that runs at once up to its first wait."""

import asyncio
import gc
from contextvars import ContextVar

import pytest

from gateway.tasks import by_deadline, in_task, start_eagerly


async def started(work, *, cancelled=False):
    """Start work where requests are started: in a callback of the loop, outside of any task. ``cancelled``: at once.

    Returns:
        What ``start_eagerly`` returns, and a future with the work's result.
    """
    loop = asyncio.get_running_loop()
    begun, ended = loop.create_future(), loop.create_future()

    async def noted():
        try:
            result = await work
        except asyncio.CancelledError:
            ended.cancel()
            raise
        except Exception as error:
            ended.set_exception(error)
        else:
            ended.set_result(result)

    def start():
        rest = start_eagerly(noted(), "work")
        if cancelled:
            rest.cancel()
        begun.set_result(rest)

    loop.call_soon(start)
    return await begun, ended


async def test_one_that_does_not_wait_is_over_at_once_and_has_no_task():
    steps = []

    async def work():
        steps.append(asyncio.current_task())

    rest, _ = await started(work())
    assert rest is None
    assert steps == [None]


async def test_one_that_only_waits_for_futures_has_no_task():
    steps = []
    events = asyncio.Event(), asyncio.Event()

    async def work():
        steps.append("begun")
        for event in events:
            await event.wait()
            steps.append(asyncio.current_task())
        await asyncio.sleep(0)
        steps.append(asyncio.current_task().get_name())

    _, ended = await started(work())
    assert steps == ["begun"]
    for event in events:
        event.set()
        await asyncio.sleep(0)
    await ended
    assert steps == ["begun", None, None, "work"]


async def test_one_that_lets_the_loop_run_has_a_task():
    steps = []

    async def work():
        await asyncio.sleep(0)
        steps.append(asyncio.current_task().get_name())

    _, ended = await started(work())
    await ended
    assert steps == ["work"]


async def test_a_context_variable_keeps_its_value_across_waits():
    number = ContextVar("number")
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    seen = []

    async def work():
        for place, future in enumerate(futures):
            number.set(place)
            await future
            seen.append(number.get())

    _, ended = await started(work())
    for future in futures:
        future.set_result(None)
    await ended
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("iterations", [None, 0, 1, 2])
async def test_a_cancellation_arrives_where_it_waits(iterations):
    """Also before the task has run for the first time."""
    seen = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    rest, ended = await started(work(), cancelled=iterations is None)
    for _ in range(iterations or 0):
        await asyncio.sleep(0)
    rest.cancel()
    await ended
    assert seen == ["cancelled"]


@pytest.mark.parametrize("error", [None, ValueError("x")])
async def test_a_cancellation_arrives_although_what_it_waited_for_has_just_happened(error):
    loop = asyncio.get_running_loop()
    seen, logged = [], []
    loop.set_exception_handler(lambda _, context: logged.append(context["message"]))

    async def work():
        try:
            await futures.pop()
        except asyncio.CancelledError:
            seen.append("cancelled")
        await asyncio.sleep(0)
        seen.append("goes on")

    futures = [loop.create_future()]
    (future,) = futures
    rest, ended = await started(work())
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    rest.cancel()
    await ended
    assert seen == ["cancelled", "goes on"]
    del future
    gc.collect()
    assert logged == []  # an error that nothing waits for any more


async def test_a_second_cancellation_arrives_at_its_second_wait():
    event = asyncio.Event()
    seen = []

    async def work():
        for wait in ("first", "second"):
            try:
                await event.wait()
            except asyncio.CancelledError:
                seen.append(wait)

    rest, ended = await started(work())
    rest.cancel()
    while not seen:
        await asyncio.sleep(0)
    rest.cancel()
    await ended
    assert seen == ["first", "second"]


async def test_a_cancellation_as_it_continues_arrives_once():
    loop = asyncio.get_running_loop()
    futures = [loop.create_future(), loop.create_future()]
    seen = []

    async def work():
        for future in futures:
            try:
                await future
            except asyncio.CancelledError:
                seen.append("cancelled")
            else:
                seen.append("continued")

    rest, ended = await started(work())
    futures[0].set_result(None)
    rest.cancel()
    await asyncio.sleep(0)
    futures[1].set_result(None)
    await ended
    assert seen == ["cancelled", "continued"]


async def test_a_cancellation_of_what_is_over_is_without_effect():
    future = asyncio.get_running_loop().create_future()

    async def work():
        await future
        return 3

    rest, ended = await started(work())
    future.set_result(None)
    assert await ended == 3
    rest.cancel()
    await asyncio.sleep(0)


async def test_an_error_gets_to_the_loops_handler():
    future = asyncio.get_running_loop().create_future()
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

    async def work():
        await future
        raise KeyError("x")

    asyncio.get_running_loop().call_soon(start_eagerly, work(), "work")
    await asyncio.sleep(0)
    future.set_result(None)
    while not errors:
        await asyncio.sleep(0)
    assert [str(error) for error in errors] == ["'x'"]


async def test_in_task_makes_timeouts_possible():
    async def work():
        await in_task()
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    _, ended = await started(work())
    with pytest.raises(TimeoutError):
        await ended


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

    _, ended = await started(work())
    await ended
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

    rest, ended = await started(work(), cancelled=iterations is None)
    for _ in range(iterations or 0):
        await asyncio.sleep(0)
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended
    assert seen == ["cancelled"]


async def test_what_it_waited_for_is_cancelled_with_it():
    async def work():
        await future

    future = asyncio.get_running_loop().create_future()
    _, ended = await started(work(), cancelled=True)
    with pytest.raises(asyncio.CancelledError):
        await ended
    assert future.cancelled()
