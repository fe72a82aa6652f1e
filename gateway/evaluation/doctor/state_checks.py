"""Checks of the Redis of ``state``: reachable, its version, what it does when its memory is full."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.tasks import by_deadline

_OLDEST = (6, 2)
"""Release of Redis whose commands the gateway uses."""

_WHERE = "state"


async def state_findings(state: SecretStr | None, timeout_seconds: float, now: float) -> Sequence[DoctorFinding]:
    """What is wrong with the Redis that gateways share; nothing without one.

    Args:
        state: The setting.
        timeout_seconds: Limit for all of it.
        now: The running loop's time.
    """
    if state is None:
        return []
    from gateway.cluster.connect import RedisConnections, named
    from gateway.config.state_settings import read_address

    connections = RedisConnections(read_address(state.get_secret_value()), most=1)
    try:
        info = await by_deadline(_info(connections), now + timeout_seconds)
    except Exception as error:  # noqa: BLE001 - any failure of the library means that it cannot be used
        problem = f"no answer within {timeout_seconds:g} seconds" if isinstance(error, TimeoutError) else named(error)
        return [
            DoctorFinding(
                "redis-unreachable",
                Severity.ERROR,
                _WHERE,
                f"Redis cannot be used ({problem}), so each gateway has loads, spaces and limits of its own.",
                "start Redis, or correct host, port and password in state",
            )
        ]
    finally:
        with contextlib.suppress(Exception):
            await connections.close()
    return list(redis_findings(info))


async def _info(connections: Any) -> Mapping[str, Any]:
    """``INFO`` of one server: of a cluster, that of its first node."""
    await connections.ready()
    client = connections.client
    if hasattr(client, "get_default_node"):
        info = await client.info(target_nodes=client.get_default_node())
    else:
        info = await client.info()
    return dict(info)


def redis_findings(info: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    """What is wrong with a server, by its ``INFO``."""
    version = str(info.get("redis_version", ""))
    parts = [int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit()]
    if len(parts) == len(_OLDEST) and tuple(parts) < _OLDEST:
        yield DoctorFinding(
            "redis-version",
            Severity.ERROR,
            _WHERE,
            f"Redis {version} lacks commands that gateways use.",
            f"run Redis {_OLDEST[0]}.{_OLDEST[1]} or newer",
        )
    limit = info.get("maxmemory")
    if info.get("maxmemory_policy") == "noeviction" and isinstance(limit, int) and limit > 0:
        yield DoctorFinding(
            "redis-eviction",
            Severity.WARNING,
            _WHERE,
            f"Redis refuses writes when its {limit / 2**20:.0f} MiB are full (maxmemory-policy noeviction): "
            "context blocks "
            "of conversations are lost then.",
            "start Redis with --maxmemory-policy volatile-ttl",
        )
