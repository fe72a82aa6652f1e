"""Below HTTP: what a fault does to a connection."""

import asyncio
import socket
import struct


def reset(transport: asyncio.Transport) -> None:
    """Close so that the peer sees a reset and not an orderly end."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
