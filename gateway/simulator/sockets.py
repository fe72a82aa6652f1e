"""ZeroMQ endpoints as the engines use them."""

import asyncio
import re
from dataclasses import dataclass
from typing import Self

import zmq

from gateway.simulator.errors import ListenError
from gateway.values.engine import EngineKind

_PATTERN = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s*]+):([0-9]{1,5})")
_WAIT_SECONDS = 0.02
_TRIES = 50
"""ZeroMQ gives a port back a moment after its socket was closed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``tcp://HOST:PORT``.

    Attributes:
        host: ``*`` for all addresses; IPv6 in brackets.
        port: 0 takes a free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with one sentence for what is no such endpoint."""
        found = _PATTERN.fullmatch(text)
        if found is None or int(found[2]) > 65535:
            raise ValueError(f"an event endpoint must look like tcp://*:5557, not {text!r}")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    def of_rank(self, rank: int) -> "Endpoint":
        """Where a data-parallel rank has its socket: that many ports further."""
        return Endpoint(self.host, self.port + rank if self.port else 0)

    def binds(self, flavor: EngineKind) -> bool:
        """Whether the engine listens there. It connects to whatever does not look like a wildcard."""
        return "*" in self.host or "::" in self.host or (flavor == EngineKind.SGLANG and self.host == "0.0.0.0")  # noqa: S104


async def bind(socket: zmq.Socket[bytes], endpoint: Endpoint) -> Endpoint:
    """Listen, and return the endpoint with the port that was found. Raises ListenError."""
    socket.setsockopt(zmq.IPV6, int(endpoint.host.startswith("[")))
    for attempt in range(_TRIES):
        try:
            socket.bind(str(endpoint))
            break
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or attempt == _TRIES - 1 or not endpoint.port:
                hint = "; choose another port" if error.errno == zmq.EADDRINUSE else ""
                raise ListenError(f"cannot listen on {endpoint}: {error.strerror}{hint}") from error
            await asyncio.sleep(_WAIT_SECONDS)
    found = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    return Endpoint(endpoint.host, int(found.rstrip(b"\0").rpartition(b":")[2]))
