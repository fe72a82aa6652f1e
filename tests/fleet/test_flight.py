"""A request in flight: when its time is over, and when it is called back because its replica is gone."""

import asyncio

import pytest

from gateway.fleet.replica import InflightRequest


@pytest.fixture
def over():
    """When it was ended."""
    return []


@pytest.fixture
async def flight(over):
    loop = asyncio.get_running_loop()
    flight = InflightRequest(loop, loop.time(), lambda: over.append(loop.time()))
    yield flight
    flight.cancel()


async def until(over, seconds=30):
    async with asyncio.timeout(seconds):
        while not over:
            await asyncio.sleep(0.001)


async def test_it_is_called_back_at_once_and_only_once(flight, over):
    flight.wait_until(flight.sent_at + 1000)
    flight.call_back()
    flight.call_back()
    assert len(over) == 1
    assert flight.called_back


async def test_it_ends_with_its_time(flight, over):
    flight.wait_until(flight.sent_at + 0.01)
    await until(over)
    assert not flight.called_back
    assert over[0] >= flight.sent_at + 0.01


async def test_it_ends_later_if_it_is_extended(flight, over):
    flight.wait_until(flight.sent_at + 0.01)
    flight.wait_until(flight.sent_at + 0.05)
    await until(over)
    assert over[0] >= flight.sent_at + 0.05


async def test_calling_back_one_whose_time_is_over_has_no_effect(flight, over):
    flight.wait_until(flight.sent_at + 0.01)
    await until(over)
    flight.call_back()
    assert len(over) == 1
    assert not flight.called_back


async def test_one_that_has_ended_is_not_ended_again(flight, over):
    flight.wait_until(flight.sent_at + 0.01)
    flight.cancel()
    flight.wait_until(flight.sent_at + 0.01)
    flight.call_back()
    await asyncio.sleep(0.03)
    assert not over
