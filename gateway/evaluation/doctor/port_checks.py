"""Checks of the gateway's own ports: free, or used by a gateway; and an admin port that anybody can use."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

import orjson

from gateway.config.server_settings import is_loopback
from gateway.config.settings import Settings
from gateway.core.errors import ConfigInvalid
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.http_client import HttpClient, HttpResponse, Origin, TransportError
from gateway.server.http_server import bound

_OWN_STATUSES = frozenset({"ready", "not ready", "stopping"})
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
_ELSEWHERE = "192.0.2.1"
"""An address for documentation, which is nowhere: choosing the own address for it sends nothing."""


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
