"""Background tasks with a name, an owner and a kept reference."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

import msgspec

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


def start_eagerly(work: Coroutine[Any, Any, None], name: str) -> "Continuation | None":
    """Run a coroutine up to its first wait at once.

    A coroutine that never waits costs no iteration of the event loop, and one that only waits for futures no task.
    ``asyncio.current_task()`` may be None in it, so that it may use ``asyncio.timeout`` only behind ``in_task``.

    Args:
        work: The coroutine. A cancellation ends it silently; any other exception gets to the loop's handler.
        name: Name of its task, if it needs one.

    Returns:
        What is left of it; None: the coroutine is complete.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    rest = Continuation(work, name)
    rest.wait_for(waits_for)
    return rest


class Continuation(msgspec.Struct, eq=False):
    """A coroutine from its first wait on: continued by the futures that it waits for.

    It gets a task when it waits for an iteration of the event loop, as ``in_task`` does. A task takes more iterations.

    Attributes:
        work: The coroutine; it waits.
        name: Name of its task.
    """

    work: Coroutine[Any, Any, None]
    name: str
    _waits_for: asyncio.Future[Any] | None = None
    _task: asyncio.Task[None] | None = None
    _is_cancelled: bool = False

    def cancel(self) -> None:
        """Raise ``asyncio.CancelledError`` in the coroutine, as ``asyncio.Task.cancel`` does."""
        if self._task is not None:
            self._task.cancel()
        elif self._waits_for is not None and not self._waits_for.cancel():
            self._is_cancelled = True  # what it waited for has happened, and the coroutine is about to continue

    def wait_for(self, waits_for: Any) -> None:
        """Continue the coroutine when a future is done, or, for None, in a task."""
        if isinstance(waits_for, asyncio.Future):
            self._waits_for = waits_for
            waits_for.add_done_callback(self._go_on)
        else:
            rest = _Rest(self.work, waits_for)
            self._task = asyncio.get_running_loop().create_task(rest, name=self.name)

    def _go_on(self, _waited_for: "asyncio.Future[Any]") -> None:
        self._waits_for = None
        is_cancelled, self._is_cancelled = self._is_cancelled, False
        try:
            waits_for = self.work.throw(asyncio.CancelledError()) if is_cancelled else self.work.send(None)
        except (StopIteration, asyncio.CancelledError):
            return
        self.wait_for(waits_for)


async def in_task() -> None:
    """Continue in a task, if ``start_eagerly`` or a ``Continuation`` runs the caller outside of one."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


async def by_deadline(work: Coroutine[Any, Any, T], deadline: float) -> T:
    """Await a coroutine; sets a timer only if it waits.

    Args:
        work: The coroutine.
        deadline: In the running loop's time.

    Raises:
        TimeoutError: the deadline passed.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    rest = _Rest(work, waits_for)
    try:
        await in_task()
    except asyncio.CancelledError as cancelled:
        rest.interrupt(cancelled)
    async with asyncio.timeout_at(deadline):
        return await rest


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine from its first wait on.

    Args:
        work: The coroutine; it waits.
        waits_for: What it waits for: a future, or None for one iteration of the loop.
    """

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for
        self._handed_on = False  # whether the one who runs this knows what it waits for
        self._interruption: BaseException | None = None

    def interrupt(self, error: BaseException) -> None:
        """Raise an exception in the coroutine as soon as it continues."""
        self._interruption = error

    def send(self, value: Any) -> Any:
        """See ``Coroutine``."""
        if self._interruption is not None:
            error, self._interruption = self._interruption, None
            return self.throw(error)
        if self._handed_on:
            return self._work.send(value)
        self._handed_on = True
        return self._waits_for

    def throw(self, *error: Any) -> Any:
        """See ``Coroutine``."""
        if not self._handed_on:
            self._handed_on = True
            if isinstance(self._waits_for, asyncio.Future):
                self._waits_for.cancel()  # as a task cancels what it waits for
        return self._work.throw(*error)

    def close(self) -> None:
        """See ``Coroutine``."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return cast(Generator[Any, Any, T], self)  # it has the methods of one that are called

    def __iter__(self) -> "_Rest[T]":
        return self

    def __next__(self) -> Any:
        if self._interruption is not None:
            return self.send(None)
        if self._handed_on:
            return self._work.send(None)
        self._handed_on = True
        return self._waits_for
