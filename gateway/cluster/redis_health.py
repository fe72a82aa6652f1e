"""Pauses the use of Redis after failures."""

import asyncio
import time
from collections.abc import Callable

import structlog
from redis.exceptions import ResponseError

BACKEND = "redis"
"""Name of the backend in metrics and logs."""

PAUSE_SECONDS = 1.0
"""Pause after a failure."""

_log = structlog.get_logger("gateway.cluster")


class RedisHealth:
    """Circuit breaker: after a failure there is a pause, then one trial, and after its success normal use again.

    Args:
        doing: The operation, for logs: for example ``read``.
        on_error: Called with the backend's name on every failure.
        clock: Monotonic seconds.
    """

    def __init__(
        self, doing: str, on_error: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._doing = doing
        self._on_error = on_error
        self._clock = clock
        self._failing = False
        self._not_before = 0.0

    @property
    def failing(self) -> bool:
        """Whether the last try failed."""
        return self._failing

    def may_try(self) -> bool:
        """Whether to use Redis now. While it fails, True once after each pause."""
        if not self._failing:
            return True
        now = self._clock()
        if now < self._not_before:
            return False
        self._not_before = now + PAUSE_SECONDS
        return True

    def failed(self, error: Exception) -> None:
        """Record a failure. The first in a row is logged."""
        self._on_error(BACKEND)
        self._not_before = self._clock() + PAUSE_SECONDS
        if not self._failing:
            self._failing = True
            _log.warning("state_store_failed", backend=BACKEND, doing=self._doing, error=named(error))

    def worked(self) -> None:
        """Record a success."""
        if self._failing:
            self._failing = False
            _log.info("state_store_recovered", backend=BACKEND, doing=self._doing)


def named(error: Exception) -> str:
    """An error for the log, without its text: Redis quotes commands, which contain parts of prompts."""
    code = str(error).partition(" ")[0]
    if isinstance(error, ResponseError) and code.isascii() and code.isalpha() and code.isupper():
        return f"{type(error).__name__} {code}"
    return type(error).__name__


def is_ending() -> bool:
    """Whether the running task has been cancelled. redis-py sometimes swallows the cancellation while it connects."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
