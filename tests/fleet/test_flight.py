"""A request on its way, called back because its replica is gone."""

import asyncio

import pytest

from gateway.fleet.replica import InflightRequest


async def flying(timeout_seconds, meanwhile):
    """How an attempt ends that receives nothing, with what happens in the meantime."""
    now = asyncio.get_running_loop().time()
    timeout = asyncio.timeout_at(now + timeout_seconds)
    flight = InflightRequest(timeout, now)
    task = asyncio.create_task(meanwhile(flight))
    try:
        async with timeout:
            await asyncio.Event().wait()
    except TimeoutError:
        return flight
    finally:
        await task
    raise AssertionError


async def test_it_ends_as_soon_as_it_is_cancelled_and_that_is_reported():
    async def meanwhile(flight):
        flight.call_back()
        flight.call_back()

    flight = await flying(1000, meanwhile)
    assert flight.called_back


async def test_a_drain_that_is_not_cancelled_ends_with_its_time():
    async def meanwhile(flight):
        pass

    flight = await flying(0.01, meanwhile)
    assert not flight.called_back


async def test_cancelling_a_drain_whose_time_has_just_run_out_has_no_effect():
    called = []

    async def meanwhile(flight):
        # Both become due in the same turn of the loop: the time is over, and its task has not run yet.
        loop = asyncio.get_running_loop()
        loop.call_at(flight.sent_at + 0.01, lambda: called.append(flight.call_back()))

    flight = await flying(0.01, meanwhile)
    await asyncio.sleep(0.02)
    assert called == [None]
    assert flight.sent_at == pytest.approx(flight.last_byte_at)
