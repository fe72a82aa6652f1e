"""Ports for servers that are started later: nothing else gets them in between."""

import socket

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A loopback port, reserved for servers of this process until it ends.

    A bound socket that does not listen keeps it: the kernel gives such a port neither to a connection nor to a server
    that asks for any port, and a server that sets ``SO_REUSEADDR`` (nearly all do) listens on it beside that socket.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _reserved.append(held)
    return int(held.getsockname()[1])
