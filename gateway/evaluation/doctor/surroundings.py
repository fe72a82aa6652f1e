"""Checks of what a gateway needs besides its engines.

Its own ports: free, or used by a gateway, and an admin port that anybody can use. The Redis of ``state``: reachable,
its version, what it does when its memory is full. A discovery source: its first answer, with at least one replica.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import SecretStr

from gateway.config.server_settings import is_loopback
from gateway.config.settings import ModelSettings, Settings
from gateway.core.errors import ConfigInvalid
from gateway.discovery.discovered import SourceFailed
from gateway.discovery.discovery import source_of
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import ExaminedReplica
from gateway.http_client import HttpClient, HttpResponse, Origin, TransportError
from gateway.server.http_server import bound
from gateway.tasks import by_deadline

_OWN_STATUSES = frozenset({"ready", "not ready", "stopping"})
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
_ELSEWHERE = "192.0.2.1"
"""An address for documentation, which is nowhere: choosing the own address for it sends nothing."""
_OLDEST = (6, 2)
"""Release of Redis whose commands the gateway uses."""

_WHERE = "state"


def own_address() -> str:
    """The address of this machine that others reach; empty without a network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE, 9))
        return str(probe.getsockname()[0])
    return ""


async def port_findings(
    settings: Settings, client: HttpClient, timeout_seconds: float, address: Callable[[], str] = own_address
) -> Sequence[DoctorFinding]:
    """What is wrong with the ports.

    Args:
        settings: The configuration.
        client: Makes connections.
        timeout_seconds: Limit of a request.
        address: Gives the address of this machine that others reach.
    """
    server = settings.server
    findings: list[DoctorFinding] = []
    for name, host, port in (
        ("server.port", server.host, server.port),
        ("server.admin_port", server.admin_host, server.admin_port),
    ):
        if port and (problem := await asyncio.to_thread(_in_use, name, host, port)):
            is_own = await _is_gateway(client, host, port, timeout_seconds, admin=name == "server.admin_port")
            if not is_own:
                findings.append(
                    DoctorFinding(
                        "port-in-use",
                        Severity.ERROR,
                        name,
                        f"The gateway cannot listen at {host}:{port} ({problem}), and what listens there is no "
                        "gateway.",
                        f"end what uses the port (ss -ltnp 'sport = :{port}'), or set {name} to another one",
                    )
                )
    findings += await _open_admin(settings, client, timeout_seconds, address())
    return findings


def _in_use(name: str, host: str, port: int) -> str:
    """Why the port cannot be bound; empty if it can."""
    try:
        bound(name, host, port).close()
    except ConfigInvalid as invalid:
        return invalid.problems[0].partition(": ")[2]
    return ""


async def _is_gateway(client: HttpClient, host: str, port: int, timeout_seconds: float, *, admin: bool) -> bool:
    path = "/healthz" if admin else "/readyz"
    answer = await _get(client, _EVERY_ADDRESS.get(host, host), port, path, timeout_seconds)
    try:
        document = orjson.loads(answer.body) if answer is not None else None
    except orjson.JSONDecodeError:
        return False
    status = document.get("status") if isinstance(document, dict) else None
    return status == "ok" if admin else status in _OWN_STATUSES


async def _open_admin(
    settings: Settings, client: HttpClient, timeout_seconds: float, address: str
) -> Sequence[DoctorFinding]:
    server = settings.server
    has_token = server.admin_token is not None or bool(server.admin_tokens)
    fix = "set server.admin_token, or server.admin_tokens (prefix-gateway key --admin makes one)"
    if address and server.admin_port and not is_loopback(address):
        # Something may forward the port: a container's published port, a proxy.
        answer = await _get(client, address, server.admin_port, "/admin/api/replicas", timeout_seconds)
        if answer is not None and answer.status == 200 and b'"replicas"' in answer.body:
            return [
                DoctorFinding(
                    "admin-open",
                    Severity.ERROR,
                    "server.admin_port",
                    f"The admin port answers at {address}:{server.admin_port} without a token: other machines can read "
                    "every client's figures and reset spaces.",
                    fix,
                )
            ]
    if not has_token and not is_loopback(server.host):
        return [
            DoctorFinding(
                "admin-open",
                Severity.WARNING,
                "server.admin_token",
                f"The public port is open to other machines ({server.host}), and the admin port asks for no "
                "token: every "
                "process of this machine, and what forwards to it, can read all figures and reset spaces.",
                fix,
            )
        ]
    return []


async def _get(client: HttpClient, host: str, port: int, path: str, timeout_seconds: float) -> HttpResponse | None:
    shown = f"[{host}]" if ":" in host else host
    with contextlib.suppress(TransportError):
        return await client.fetch_response(
            "GET",
            Origin.parse(f"http://{shown}:{port}"),
            path,
            [],
            timeout_seconds=timeout_seconds,
            max_bytes=8 * 2**20,
        )
    return None


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


async def discovered(
    model: ModelSettings, place: str, timeout_seconds: float
) -> tuple[Sequence[ExaminedReplica], Sequence[DoctorFinding]]:
    """The replicas that the source of a model lists, and what is wrong with it.

    Args:
        model: The model; it has a source.
        place: Place of the model in the configuration.
        timeout_seconds: Limit for the first answer.
    """
    assert model.discover is not None
    named = {replica.id for replica in model.replicas}
    problem = "it lists no replica"
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            contextlib.aclosing(source_of(model.discover).answers()) as answers,
        ):
            async for found in answers:
                if found:
                    listed = [each.replica for each in found if each.replica.id not in named]
                    return [ExaminedReplica(model, place, f"{place}.discover", each) for each in listed], []
                break
    except TimeoutError:
        problem = f"no answer within {timeout_seconds:g} seconds"
    except SourceFailed as failure:
        problem = str(failure)
    finding = DoctorFinding(
        "discovery-fails",
        Severity.ERROR,
        f"{place}.discover",
        f"The replicas of {model.id} cannot be found ({problem}).",
        f"correct {place}.discover.{model.discover.source}",
    )
    return [], [finding]
