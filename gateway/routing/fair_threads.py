"""Thread pool for work on long texts, shared fairly between tenants.

Jobs start in the order of ``FairOrder``, by the size of their texts and the tenants' shares: a tenant with many long
prompts delays its own further prompts, not those of others. A job cannot be interrupted, so large ones never occupy the
last thread: there a short one starts as soon as the short one before it is done. With one thread, large jobs use it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gateway.core.errors import Overloaded
from gateway.core.ids import ReplicaId, Target
from gateway.core.tenant import Tenant
from gateway.routing.fair_order import FairOrder, WaitingRequest

LARGE_BYTES = 256 * 1024
"""A job of more than this is large. Encoding 256 KiB of text that was never seen before takes about 25 ms."""

_MAX_JOBS = 10_000
_RETRY_SECONDS = 1.0
_THREADS = Target(ReplicaId("threads"))
"""One target for all jobs: the order's targets are not used."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """A waiting or running job.

    Attributes:
        waiting: Its entry in the order; tokens are bytes here.
        call: The function to run.
        done: Receives the result.
        large: Whether it must not use the last thread.
    """

    waiting: WaitingRequest
    call: Callable[[], Any]
    done: asyncio.Future[Any]
    large: bool


class FairThreads:
    """Implements ``ports.LongTexts``. Used from the event loop's thread alone.

    Args:
        threads: How many.
        max_waiting_bytes: Most bytes of text that wait; a single job of any size may always wait.
        large_bytes: Jobs of more than this never use the last thread.
    """

    def __init__(self, threads: int, max_waiting_bytes: int, *, large_bytes: int = LARGE_BYTES) -> None:
        self._threads = threads
        self._max_large = max(threads - 1, 1)
        self._max_waiting_bytes = max_waiting_bytes
        self._large_bytes = large_bytes
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="long-text")
        self._order = FairOrder()
        self._jobs: dict[int, _Job] = {}
        self._waiting_bytes = 0
        self._running = self._running_large = 0
        self._closed = False

    async def run(self, tenant: Tenant, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread; see ``ports.LongTexts``."""
        if self._closed:
            raise RuntimeError("the gateway is shutting down")
        waiting = WaitingRequest(str(tenant.id), tenant.share, _THREADS, size)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Job(waiting, partial(function, *arguments), done, size > self._large_bytes)
        self._add(job)
        self._start()
        try:
            return await done
        finally:
            if waiting.number in self._jobs:  # it was cancelled before it began
                self._remove(job)
            del done, job  # an error that is raised here has this frame: a cycle would keep the text in memory

    def shutdown(self) -> None:
        """Start no further job, cancel those that wait, and do not wait for those that run."""
        self._closed = True
        for job in self._jobs.values():
            job.done.cancel()
        self._pool.shutdown(wait=False)

    def _add(self, job: _Job) -> None:
        self._order.add(job.waiting)
        self._jobs[job.waiting.number] = job
        self._waiting_bytes += job.waiting.tokens
        while len(self._jobs) > 1 and (self._waiting_bytes > self._max_waiting_bytes or len(self._jobs) > _MAX_JOBS):
            refused = self._jobs[self._order.newest_of_heaviest().number]
            self._remove(refused)
            if not refused.done.done():
                refused.done.set_exception(_full())

    def _remove(self, job: _Job) -> None:
        del self._jobs[job.waiting.number]
        self._waiting_bytes -= job.waiting.tokens
        self._order.remove(job.waiting)

    def _start(self) -> None:
        while not self._closed and self._running < self._threads and (job := self._next()) is not None:
            self._order.serve(job.waiting)
            del self._jobs[job.waiting.number]
            self._waiting_bytes -= job.waiting.tokens
            self._running += 1
            self._running_large += job.large
            self._pool.submit(job.call).add_done_callback(partial(self._report, job))

    def _report(self, job: _Job, future: "Future[Any]") -> None:
        """Called in the thread that did the work."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            job.done.get_loop().call_soon_threadsafe(self._ended, job, future)

    def _next(self) -> _Job | None:
        """The job that may start now and whose turn it is."""
        full = self._running_large >= self._max_large
        for waiting, _ in self._order.in_turn(lambda each: not (full and self._jobs[each.number].large)):
            return self._jobs[waiting.number]
        return None

    def _ended(self, job: _Job, future: "Future[Any]") -> None:
        self._running -= 1
        self._running_large -= job.large
        if not job.done.done():
            error = future.exception()
            if error is None:
                job.done.set_result(future.result())
            else:
                job.done.set_exception(error)
        self._start()


def _full() -> Overloaded:
    return Overloaded(
        "Too many long prompts wait to be read, most of them of this tenant (encode.max_waiting_mib). Try again in a"
        " moment.",
        retry_after_seconds=_RETRY_SECONDS,
    )
