"""Threads for long texts: whose job starts when, which ones are refused, and and jobs whose request is gone."""

import asyncio
import threading

import pytest
from patience import HANG_SECONDS

from gateway.core.errors import Overloaded
from gateway.core.ids import TenantId
from gateway.core.tenant import Tenant
from gateway.routing.fair_threads import FairThreads

A, B = Tenant(TenantId("a")), Tenant(TenantId("b"))
LARGE = 1000


class Work:
    """Jobs that run until they are let go; remembers which ones were begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go: dict[str, threading.Event] = {}

    def job(self, name: str) -> str:
        self.begun.append(name)
        assert self.go.setdefault(name, threading.Event()).wait(HANG_SECONDS)
        return name

    def let_go(self, *names: str) -> None:
        for name in names:
            self.go.setdefault(name, threading.Event()).set()


@pytest.fixture
def work():
    found = Work()
    yield found
    for event in found.go.values():
        event.set()


@pytest.fixture
def make(work):
    made = []

    def build(threads, most=10**6):
        made.append(FairThreads(threads, most, large_bytes=LARGE))
        return made[-1]

    yield build
    for each in made:
        each.shutdown()


async def begun(work, count):
    async with asyncio.timeout(HANG_SECONDS):
        while len(work.begun) < count:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert len(work.begun) == count
    return work.begun


def ask(threads, work, tenant, name, size):
    return asyncio.create_task(threads.run(tenant, size, work.job, name))


async def test_a_tenant_with_many_jobs_does_not_delay_another(work, make):
    threads = make(1)
    many = [ask(threads, work, A, f"a{n}", 500) for n in range(10)]
    await begun(work, 1)
    one = ask(threads, work, B, "b", 500)
    await asyncio.sleep(0)
    work.let_go("a0")
    assert await begun(work, 2) == ["a0", "b"]
    work.let_go("b", *(f"a{n}" for n in range(10)))
    assert await one == "b"
    assert await asyncio.gather(*many) == [f"a{n}" for n in range(10)]


async def test_large_jobs_leave_one_thread_to_others(work, make):
    threads = make(3)
    tasks = [ask(threads, work, A, f"a{n}", LARGE + 1) for n in range(4)]
    assert sorted(await begun(work, 2)) == ["a0", "a1"]
    tasks.append(ask(threads, work, B, "b", LARGE))
    assert (await begun(work, 3))[2] == "b"
    work.let_go("a0", "a1", "a2", "a3", "b")
    await asyncio.gather(*tasks)


async def test_large_jobs_run_where_there_is_one_thread_only(work, make):
    work.let_go("a")
    assert await ask(make(1), work, A, "a", 10 * LARGE) == "a"


async def test_a_job_that_is_cancelled_before_it_begins_is_never_called(work, make):
    threads = make(1)
    first = ask(threads, work, A, "first", 1)
    await begun(work, 1)
    gone = ask(threads, work, A, "gone", 1)
    stays = ask(threads, work, A, "stays", 1)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    work.let_go("first", "gone", "stays")
    assert await asyncio.gather(first, stays) == ["first", "stays"]
    assert work.begun == ["first", "stays"]


async def test_a_thread_whose_caller_left_counts_as_busy_until_it_is_free(work, make):
    threads = make(1)
    left = ask(threads, work, A, "left", 1)
    await begun(work, 1)
    left.cancel()
    await asyncio.wait([left])
    after = ask(threads, work, B, "after", 1)
    await begun(work, 1)
    work.let_go("left", "after")
    assert await after == "after"


async def test_beyond_the_limit_the_newest_of_the_tenant_with_most_waiting_is_refused(work, make):
    threads = make(1, most=300)
    running = ask(threads, work, A, "running", 100)
    await begun(work, 1)
    waiting = [ask(threads, work, A, f"a{n}", 100) for n in range(3)]
    await asyncio.sleep(0)
    small = ask(threads, work, B, "b", 100)
    await asyncio.wait([waiting[2]])
    with pytest.raises(Overloaded) as refused:
        await waiting[2]
    assert refused.value.status == 429
    assert "encode.max_waiting_mib" in refused.value.message
    work.let_go("running", "a0", "a1", "b")
    assert await asyncio.gather(running, *waiting[:2], small) == ["running", "a0", "a1", "b"]


async def test_two_jobs_beyond_the_limit_do_not_both_wait(work, make):
    threads = make(1, most=300)
    running = ask(threads, work, A, "running", 100)
    await begun(work, 1)
    first = ask(threads, work, A, "first", 200)
    await asyncio.sleep(0)
    second = ask(threads, work, A, "second", 101)
    await asyncio.sleep(0)
    work.let_go("running", "first", "second")
    with pytest.raises(Overloaded):
        await second
    assert await asyncio.gather(running, first) == ["running", "first"]


async def test_jobs_up_to_the_limit_of_bytes_all_wait(work, make):
    threads = make(1, most=300)
    tasks = [ask(threads, work, A, "running", 100)]
    await begun(work, 1)
    tasks += [ask(threads, work, A, f"a{n}", 150) for n in range(2)]
    await asyncio.sleep(0)
    work.let_go("running", "a0", "a1")
    assert await asyncio.gather(*tasks) == ["running", "a0", "a1"]


async def test_more_than_so_many_jobs_do_not_wait_however_short(work, make, monkeypatch):
    monkeypatch.setattr("gateway.routing.fair_threads._MAX_JOBS", 3)
    threads = make(1)
    running = ask(threads, work, A, "running", 1)
    await begun(work, 1)
    waiting = [ask(threads, work, A, f"a{n}", 1) for n in range(3)]
    await asyncio.sleep(0)
    last = ask(threads, work, A, "last", 1)
    await asyncio.sleep(0)
    work.let_go("running", "a0", "a1", "a2", "last")
    with pytest.raises(Overloaded):
        await last
    assert await asyncio.gather(running, *waiting) == ["running", "a0", "a1", "a2"]


async def test_a_single_job_beyond_the_limit_may_wait(work, make):
    threads = make(1, most=300)
    running = ask(threads, work, A, "running", 100)
    await begun(work, 1)
    huge = ask(threads, work, B, "huge", 1000)
    await asyncio.sleep(0)
    work.let_go("running", "huge")
    assert await asyncio.gather(running, huge) == ["running", "huge"]


async def test_what_a_job_raises_is_raised_to_its_caller(make):
    threads = make(1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(A, 1, lambda: 1 // 0)
    assert await threads.run(A, 1, lambda: "next") == "next"


async def test_what_waits_at_the_end_is_cancelled(work, make):
    threads = make(1)
    running = ask(threads, work, A, "running", 1)
    await begun(work, 1)
    waits = ask(threads, work, A, "waits", 1)
    await asyncio.sleep(0)
    threads.shutdown()
    await asyncio.wait([waits])
    assert waits.cancelled()
    work.let_go("running")
    assert await running == "running"
    with pytest.raises(RuntimeError):
        await threads.run(A, 1, lambda: None)
