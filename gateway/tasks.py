"""Background tasks with a name, an owner and a kept reference."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_AGAIN_SECONDS = 0.5
"""Seconds until a task is cancelled again: a library may swallow a cancellation (redis-py does now and then)."""


class TaskGroupOwner:
    """Owns tasks: keeps them from being collected, and ends them together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start a task. It belongs to this owner until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks, again if need be, and wait until they have ended."""
        tasks = running = set(self._tasks)
        while running:
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)


def in_daemon_thread(function: Callable[[], T], *, name: str) -> "asyncio.Future[T]":
    """Run a function in a thread that does not keep the process alive.

    For waits that cannot be interrupted, such as a library's own retries against an unreachable server: the exit of the
    process would wait for a thread of an executor.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(call: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            call(value)

    def run() -> None:
        try:
            outcome = (future.set_result, function())
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            outcome = (future.set_exception, error)  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task awaits it
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
