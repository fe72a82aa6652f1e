"""Connections to Redis: single server, Sentinel or Cluster. Other modules do not distinguish these."""

import contextlib
from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gateway.config.state_settings import RedisAddress, RedisKind

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
