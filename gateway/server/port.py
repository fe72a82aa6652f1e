"""What the connections of one port share: the handler of requests, limits and times, and the open connections."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING

from gateway.api.cors import Cors
from gateway.config.settings import Settings
from gateway.core.exchange import Exchange, Receiver
from gateway.http_client.open_files import FileLimits, open_files
from gateway.server.work_budget import WorkBudget

if TYPE_CHECKING:
    from gateway.server.client_connection import ClientConnection

Handler = Callable[[Exchange], Receiver]
"""Begins to answer a request whose head is complete."""


@dataclass(frozen=True, slots=True)
class PortOptions:
    """How a port treats its connections.

    Attributes:
        max_header_bytes: Maximum bytes of a request's line and headers together. More is answered with 431.
        receive_seconds: In which a request has to arrive. A later one is answered with 408; a connection on which
            nothing arrived is closed.
        keep_alive_seconds: After which an idle connection is closed.
        unread_seconds: After which a connection is ended whose client has read nothing of what was written.
        grace_seconds: In which open responses may end when the server stops.
        file_limits: Limits of open files for new connections.
    """

    max_header_bytes: int
    receive_seconds: float = 60.0
    keep_alive_seconds: float = 5.0
    unread_seconds: float = 120.0
    grace_seconds: float = 30.0
    file_limits: FileLimits = field(default_factory=FileLimits)

    @classmethod
    def of(cls, settings: Settings, limits: Callable[[float], FileLimits]) -> "PortOptions":
        """Those of the configuration.

        Args:
            settings: The configuration.
            limits: The limits of a process that may have a number of files open.
        """
        server = settings.server
        return cls(
            server.max_header_bytes,
            server.receive_seconds,
            server.keep_alive_seconds,
            settings.relay.chunk_timeout_seconds,
            server.shutdown_grace_seconds,
            limits(open_files()),
        )


class Port:
    """What the connections of one port share.

    Args:
        handler: Answers requests.
        options: How it treats its connections.
        cors: Allowed origins, for errors that are sent before there is a request.

    Attributes:
        connections: Those that are open.
        work: What they may do in one iteration of the event loop.
        leaving: Whether each connection is closed after its next response.
    """

    def __init__(self, handler: Handler, options: PortOptions, cors: Cors | None = None) -> None:
        self.handler = handler
        self.options = options
        self.cors = cors or Cors(())
        self.connections: set[ClientConnection] = set()
        self.work = WorkBudget()
        self.leaving = False
        self.common_lines = b""
        self.renew_date()

    def renew_date(self) -> None:
        """Set the ``date`` header of responses; to be called each second."""
        self.common_lines = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
