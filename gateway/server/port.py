"""What the connections of one port share: the handler of requests, limits and times, and the open connections."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Protocol

from gateway.api.cors import Cors
from gateway.config.server_settings import ServerSettings
from gateway.core.exchange import Exchange, Receiver
from gateway.server.open_files import FileLimits, open_files
from gateway.server.read_budget import ReadBudget

Handler = Callable[[Exchange], Receiver]
"""Begins to answer a request whose head is complete."""


class OpenConnection(Protocol):
    """A connection."""

    @property
    def transport(self) -> asyncio.Transport:
        """Its transport."""
        ...

    def shut_down(self) -> None:
        """Close it now if it is idle, else after the responses that are due."""
        ...


@dataclass(frozen=True, slots=True)
class PortOptions:
    """How a port treats its connections.

    Attributes:
        max_header_bytes: Maximum bytes of a request's line and headers together. More is answered with 431.
        receive_seconds: In which a request has to arrive. A later one is answered with 408; a connection on which
            nothing arrived is closed.
        keep_alive_seconds: After which an idle connection is closed.
        grace_seconds: In which open responses may end when the server stops.
        file_limits: Limits of open files for new connections.
    """

    max_header_bytes: int
    receive_seconds: float = 60.0
    keep_alive_seconds: float = 5.0
    grace_seconds: float = 30.0
    file_limits: FileLimits = field(default_factory=FileLimits.endless)

    @classmethod
    def of(cls, server: ServerSettings) -> "PortOptions":
        """Those of the configuration, and of this process's limit of open files."""
        return cls(
            server.max_header_bytes,
            server.receive_seconds,
            server.keep_alive_seconds,
            server.shutdown_grace_seconds,
            FileLimits.of(open_files()),
        )


class Port:
    """What the connections of one port share.

    Args:
        handler: Answers requests.
        options: How it treats its connections.
        cors: Allowed origins, for errors that are sent before there is a request.

    Attributes:
        connections: Those that are open.
        read_budget: Bytes of large bodies that they read in one iteration of the event loop.
        leaving: Whether each connection is closed after its next response.
    """

    def __init__(self, handler: Handler, options: PortOptions, cors: Cors | None = None) -> None:
        self.handler = handler
        self.options = options
        self.cors = cors or Cors(())
        self.connections: set[OpenConnection] = set()
        self.read_budget = ReadBudget()
        self.leaving = False
        self.common_lines = b""
        self.renew_date()

    def renew_date(self) -> None:
        """Set the ``date`` header of responses; to be called each second."""
        self.common_lines = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
