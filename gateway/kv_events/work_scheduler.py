"""Runs the steps of all feeds on the event loop, within a time budget per turn."""

import asyncio
import time
from collections import OrderedDict
from typing import Protocol

import structlog

_log = structlog.get_logger("gateway.kv_events")

_BUDGET_SECONDS = 0.0005
"""Work between two turns of the event loop. A request takes a few turns, so this bounds what events can add to it."""


class PortionedWork(Protocol):
    """Work that is done in small steps."""

    def step(self) -> bool:
        """Do one step. Returns whether there may be more to do; if not, ``WorkScheduler.wake`` is called later.

        After an exception, no step is done until then.
        """
        ...


class WorkScheduler:
    """Runs workers in turn."""

    def __init__(self) -> None:
        self._ready: OrderedDict[PortionedWork, None] = OrderedDict()
        self._scheduled = False

    def wake(self, worker: PortionedWork) -> None:
        """A worker may have work."""
        self._ready[worker] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def forget(self, worker: PortionedWork) -> None:
        """A worker has ended."""
        self._ready.pop(worker, None)

    def _run(self) -> None:
        # Still scheduled: a worker that wakes itself in its step runs again in this turn.
        until = time.perf_counter() + _BUDGET_SECONDS
        while self._ready:
            worker, _ = self._ready.popitem(last=False)
            try:
                more = worker.step()
            except Exception:  # noqa: BLE001 - a failing worker must not stop the others
                _log.exception("kv_events_step_failed")
                more = False
            if more:
                self._ready[worker] = None
            if time.perf_counter() >= until:
                break
        self._scheduled = bool(self._ready)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._run)
