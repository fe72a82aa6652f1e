"""What the supervisor and a worker say to each other, over a socket pair.

The first message to a worker is its ``WorkerStart`` (pickled: both run the same code, and only they have an end of the
connection). After that each message is a JSON object on a line of its own. To the worker: ``{"do": "end",
"drain": true}``, ``{"do": "now"}``, ``{"do": "reload"}``, ``{"do": "drain", "order": ["r0", true, 1e9]}``
(``DrainOrder``), ``{"do": "ping"}``. From the worker: ``{"ready": true}``, or ``{"problems": [...]}`` if the
configuration cannot be used, and ``{"pong": true}``. An end that is closed tells that its owner has ended.
"""

import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.config.settings import Settings
from gateway.core.worker_place import WorkerPlace

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker goes by.

    Attributes:
        settings: The configuration in force. It is not read from the file again: that may hold a mistake by now.
        config: The file it came from.
        place: Which worker it is.
        port: The public port.
    """

    settings: Settings
    config: Path
    place: WorkerPlace
    port: int


def pack_told(told: WorkerStart) -> bytes:
    """As it is sent."""
    content = pickle.dumps(told)
    return _LENGTH.pack(len(content)) + content


def read_told(line: socket.socket) -> WorkerStart:
    """Wait for it, and take it in.

    Raises:
        EOFError: the supervisor is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    told = pickle.loads(_exactly(line, length))  # noqa: S301 - from the process that started this one
    assert isinstance(told, WorkerStart)
    return told


def message(**members: Any) -> bytes:
    """A message as it is sent."""
    return orjson.dumps(members) + b"\n"


class WorkerMessageSplitter:
    """Cuts what comes in into messages.

    Args:
        take: Called with each of them.
    """

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Bytes came in."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(orjson.loads(line))


def _exactly(line: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = line.recv(count - len(content))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)
