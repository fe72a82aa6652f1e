"""Aborts closed connections whose clients do not read.

A closed connection stays open until its client has read all data, which it may never do.
"""

import asyncio
import contextlib
import fcntl
import struct
import termios
from collections.abc import Iterable
from typing import Protocol

import structlog

_LINGER_SECONDS = 10.0
"""Seconds without progress after which a closed connection is aborted."""

_log = structlog.get_logger("gateway.api")


class OpenConnection(Protocol):
    """A connection."""

    @property
    def transport(self) -> asyncio.Transport:
        """Its transport."""
        ...


class SlowClients:
    """Aborts closed connections whose clients do not read."""

    def __init__(self) -> None:
        self._left: dict[OpenConnection, tuple[int, float]] = {}

    def look(self, connections: Iterable[OpenConnection], now: float) -> None:
        """Check all connections; to be called regularly.

        Args:
            connections: The server's connections.
            now: Monotonic seconds.
        """
        left: dict[OpenConnection, tuple[int, float]] = {}
        for connection in connections:
            transport = connection.transport
            if not transport.is_closing():
                continue
            size = _not_taken(transport)
            before, since = self._left.get(connection, (size + 1, now))
            if size < before:
                since = now
            if now - since >= _LINGER_SECONDS:
                _log.info("connection_cut", bytes_left=size)
                transport.abort()
            else:
                left[connection] = size, since
        self._left = left


def _not_taken(transport: asyncio.Transport) -> int:
    """Bytes that the client has not read: those buffered here and, where the system reports them, those in its
    buffers."""
    size = transport.get_write_buffer_size()
    with contextlib.suppress(OSError, AttributeError):
        sock = transport.get_extra_info("socket")
        (sent,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))
        size += sent
    return size
