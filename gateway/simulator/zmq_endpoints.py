"""ZeroMQ endpoints, with the engines' rules."""

import asyncio
import re
import socket
from dataclasses import dataclass
from typing import Self

import zmq

from gateway.core.engine_facts import EngineKind
from gateway.simulator.engine_errors import ListenError

_PATTERN = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s*]+):([0-9]{1,5})")
_EVERY_INTERFACE = ("0.0.0.0", "::", "")  # noqa: S104 - only compared
_WAIT_SECONDS = 0.02
_TRIES = 50
"""ZeroMQ releases a port shortly after its socket is closed."""


@dataclass(frozen=True, slots=True)
class ZmqEndpoint:
    """``tcp://HOST:PORT``.

    Attributes:
        host: ``*`` for all addresses; IPv6 in brackets.
        port: 0 takes a free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, with one sentence, for an invalid endpoint."""
        found = _PATTERN.fullmatch(text)
        if found is None or int(found[2]) > 65535:
            raise ValueError(f"an event endpoint must look like tcp://*:5557, not {text!r}")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    def of_rank(self, rank: int) -> "ZmqEndpoint":
        """The endpoint of a data-parallel rank: its port plus the rank."""
        return ZmqEndpoint(self.host, self.port + rank if self.port else 0)

    def listening_at(self, host: str) -> "ZmqEndpoint":
        """Where the socket of a wildcard listens, for an engine that serves HTTP at ``host``.

        vLLM and SGLang listen on every interface for a wildcard. A simulated engine runs on laptops: it
        publishes only to machines to which its HTTP port is open. It still reports the wildcard.

        Raises:
            ListenError: The host has no address.
        """
        if self.host != "*" or host in _EVERY_INTERFACE:
            return self
        try:
            address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise ListenError(f"cannot listen on {host}: {error.strerror}") from error
        return ZmqEndpoint(f"[{address}]" if ":" in str(address) else str(address), self.port)

    def binds(self, flavor: EngineKind) -> bool:
        """Whether the engine listens there. It connects to addresses without a wildcard."""
        return "*" in self.host or "::" in self.host or (flavor == EngineKind.SGLANG and self.host == "0.0.0.0")  # noqa: S104


async def bind(opened: zmq.Socket[bytes], endpoint: ZmqEndpoint, host: str) -> ZmqEndpoint:
    """Listen, and return the endpoint with the port that was found. Raises ListenError.

    Args:
        opened: The socket.
        endpoint: The configured endpoint.
        host: Where it serves HTTP; see ``ZmqEndpoint.listening_at``.
    """
    address = endpoint.listening_at(host)
    opened.setsockopt(zmq.IPV6, int(address.host.startswith("[")))
    for attempt in range(_TRIES):
        try:
            opened.bind(str(address))
            break
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or attempt == _TRIES - 1 or not endpoint.port:
                hint = "; choose another port" if error.errno == zmq.EADDRINUSE else ""
                raise ListenError(f"cannot listen on {endpoint}: {error.strerror}{hint}") from error
            await asyncio.sleep(_WAIT_SECONDS)
    found = opened.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    return ZmqEndpoint(endpoint.host, int(found.rstrip(b"\0").rpartition(b":")[2]))
