"""A request in flight: when its time is over, and when it is called back because its replica is gone."""

import asyncio
from types import SimpleNamespace

import pytest
from patience import HANG_SECONDS
from pieces import asking
from relaying import watched

from gateway.core.outcome import Ending
from gateway.proxy.forward import Deadlines

PLAIN = asking(stream=False)
LONG = 1000.0


class Client:
    """A client that reads everything."""

    gone = interrupted = congested = False


class Waiting:
    """Something watched; notes when its time was over, and how often."""

    def __init__(self, until, over):
        self.until = until
        self.over = over

    def time_over(self, now):
        self.over.append(now)


def watching(*seconds, least_seconds=LONG):
    """A watch, and what it watches."""
    deadlines, over = Deadlines(least_seconds), []
    now = asyncio.get_running_loop().time()
    all_of_them = [Waiting(now + each, over) for each in seconds]
    for each in all_of_them:
        deadlines.add(each, now)
    return deadlines, all_of_them, over


async def until(over, count=1):
    async with asyncio.timeout(HANG_SECONDS):
        while len(over) < count:
            await asyncio.sleep(0.001)


async def ended(relay):
    return await asyncio.wait_for(relay.ended, HANG_SECONDS)


@pytest.mark.parametrize("order", [(0.01, 0.03, LONG), (LONG, 0.03, 0.01)], ids=str)
async def test_each_ends_with_its_own_time(order):
    _, all_of_them, over = watching(*order)
    await until(over, 2)
    assert over == sorted(over)
    ends = sorted(each.until for each in all_of_them)
    assert over[0] >= ends[0]
    assert over[1] >= ends[1]
    await asyncio.sleep(0.03)
    assert len(over) == 2


@pytest.mark.parametrize("least_seconds", [LONG, 0.02])
async def test_it_ends_later_if_its_time_is_moved(least_seconds):
    _, (waiting,), over = watching(0.02, least_seconds=least_seconds)
    waiting.until += 0.05
    await until(over)
    assert over[0] >= waiting.until


async def test_it_ends_earlier_if_its_time_is_moved_to_the_least_that_is_announced():
    _, (waiting,), over = watching(LONG, least_seconds=0.02)
    waiting.until = asyncio.get_running_loop().time() + 0.02
    await until(over)


async def test_what_is_watched_no_longer_is_not_ended():
    deadlines, (first, _), over = watching(0.01, 0.02)
    deadlines.discard(first)
    await until(over)
    await asyncio.sleep(0.03)
    assert len(over) == 1


async def test_a_watch_goes_on_after_a_time_without_anything_to_watch():
    deadlines, (first,), over = watching(0.01)
    deadlines.discard(first)
    await asyncio.sleep(0.03)
    now = asyncio.get_running_loop().time()
    deadlines.add(Waiting(now + 0.01, over), now)
    await until(over)


async def test_a_replica_that_sends_nothing_has_timed_out():
    assert await ended(watched(Client(), PLAIN, first_byte_seconds=0.02)) is Ending.TIMED_OUT


async def test_a_request_whose_own_time_is_over_has_expired():
    loop = asyncio.get_running_loop()
    assert await ended(watched(Client(), PLAIN, deadline=loop.time() + 0.02)) is Ending.EXPIRED


@pytest.mark.parametrize("first_byte_seconds", [LONG, 0.02])
async def test_after_the_first_byte_the_limit_is_that_of_a_pause(first_byte_seconds):
    relay = watched(Client(), PLAIN, first_byte_seconds=first_byte_seconds, chunk_seconds=0.05)
    relay.response_begun(200, [(b"content-type", b"application/json")])
    relay.body_received(b"{")
    sent = relay.last_byte_at
    assert await ended(relay) is Ending.TIMED_OUT
    assert asyncio.get_running_loop().time() >= sent + 0.05


async def test_one_that_is_called_back_has_broken_off():
    relay = watched(Client(), PLAIN)
    relay.call_back("its health checks fail")
    assert await ended(relay) is Ending.BROKEN
    assert relay.problem == "its health checks fail"


async def test_calling_back_one_that_has_ended_has_no_effect():
    relay = watched(Client(), PLAIN)
    relay.response_complete()
    relay.call_back("its health checks fail")
    assert await ended(relay) is Ending.COMPLETE
    assert not relay.problem


class Clock:
    """An event loop with one timer; its time passes by `pass_to`."""

    def __init__(self):
        self.now = 1000.0
        self.due = LONG * 10
        self.fired = 0

    def time(self):
        return self.now

    def call_at(self, due, callback):
        self.due, self._callback = due, callback
        return self

    def cancel(self):
        self.due = LONG * 10

    def pass_to(self, now):
        self.now = now
        if self.due <= now:
            self.due = LONG * 10
            self.fired += 1
            self._callback()


def test_many_short_times_are_looked_at_together(monkeypatch):
    clock, over = Clock(), []
    monkeypatch.setattr("gateway.proxy.forward.asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    deadlines = Deadlines(LONG)
    deadlines.add(Waiting(clock.now + LONG, over), clock.now)
    for step in range(100):
        deadlines.add(Waiting(clock.now + 0.0005, over), clock.now)
        clock.pass_to(1000 + 0.001 * (step + 1))
    clock.pass_to(1001)
    assert len(over) == 100
    assert clock.fired <= 12


def test_a_short_time_is_over_when_it_ends_unless_others_ended_just_before(monkeypatch):
    clock, over = Clock(), []
    monkeypatch.setattr("gateway.proxy.forward.asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    deadlines = Deadlines(LONG)
    deadlines.add(Waiting(clock.now + 0.002, over), clock.now)
    clock.pass_to(1000.002)
    assert over == [1000.002]
    deadlines.add(Waiting(clock.now + 0.002, over), clock.now)
    clock.pass_to(1000.004)
    assert len(over) == 1
    clock.pass_to(1000.013)
    assert over == [1000.002, 1000.013]
