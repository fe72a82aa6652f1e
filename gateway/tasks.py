"""Background tasks with a name, an owner and a kept reference."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_AGAIN_SECONDS = 0.5
"""A library may swallow a cancellation (redis-py does now and then), and a loop around it would go on for ever."""


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
            _, running = await asyncio.wait(running, timeout=_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)


def in_daemon_thread(function: Callable[[], T], *, name: str) -> "asyncio.Future[T]":
    """Run a function in a thread that does not keep the process alive.

    For waits that nobody can cut short, such as a library's own retries against a server that is away: a thread of an
    executor would be waited for at exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(call: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            call(value)

    def run() -> None:
        try:
            outcome = (future.set_result, function())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
            outcome = (future.set_exception, error)  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
