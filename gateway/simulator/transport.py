"""Faults of a connection below HTTP."""

import asyncio
import socket
import struct


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
