"""Connections to Redis: single server, Sentinel or Cluster, the same to other modules; pauses after failures."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import structlog
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from gateway.config.state_settings import RedisAddress, RedisKind

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


Client = Redis | RedisCluster

_CONNECT_SECONDS = 2.0
_HANG_SECONDS = 1.0


class RedisConnections:
    """Connections to one Redis, for one purpose. They are opened when needed.

    Args:
        address: Its address.
        most: Most connections to each server.

    Attributes:
        client: The client.
    """

    def __init__(self, address: RedisAddress, most: int) -> None:
        self._sentinels: Sentinel | None = None
        options: dict[str, Any] = {
            "socket_connect_timeout": _CONNECT_SECONDS,
            "socket_timeout": _HANG_SECONDS,
            "protocol": 2,
        }
        if address.tls:
            options |= {"ssl": True, **address.tls_files}
        login: dict[str, Any] = {"username": address.username, "password": address.password}
        # No retries in the library: the callers decide.
        once = Retry(NoBackoff(), 0)
        self.client: Client
        if address.kind is RedisKind.CLUSTER:
            self.client = RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
                max_connections=most + 1,  # one for the cluster topology
                # Except after a slot has moved: the second try uses the new node.
                retry=Retry(NoBackoff(), 1),
                **options,
                **login,
            )
        elif address.kind is RedisKind.SENTINEL:
            self._sentinels = Sentinel(  # type: ignore[no-untyped-call]
                address.hosts,
                sentinel_kwargs=options | {"retry": once, **address.sentinel_login},
            )
            self.client = self._sentinels.master_for(
                address.service, db=address.database, max_connections=most, retry=once, **options, **login
            )
        else:
            ((host, port),) = address.hosts
            self.client = Redis(
                host=host, port=port, db=address.database, max_connections=most, retry=once, **options, **login
            )

    async def ready(self) -> None:
        """Discover the nodes of a cluster."""
        if isinstance(self.client, RedisCluster):
            await self.client.initialize()

    async def values(self, names: Sequence[str]) -> "list[bytes | None]":
        """The values of keys; None for missing ones."""
        if isinstance(self.client, RedisCluster):
            return cast("list[bytes | None]", await self.client.mget_nonatomic(names))
        return cast("list[bytes | None]", await self.client.mget(names))

    async def close(self) -> None:
        """Close them all. Never raises."""
        with contextlib.suppress(Exception):
            await self.client.aclose()
        if self._sentinels is not None:
            with contextlib.suppress(Exception):
                await self._sentinels.aclose()
