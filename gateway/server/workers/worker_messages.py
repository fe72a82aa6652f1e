"""Messages between the supervisor and a worker, over a socket pair.

The first message to a worker is its ``WorkerStart`` (pickled: both run the same code, and only they have an end of the
connection). After that each message is a JSON object on a line of its own. To the worker: ``{"do": "end",
"drain": true}``, ``{"do": "now"}``, ``{"do": "reload"}``, ``{"do": "drain", "order": ["r0", true, 1e9]}``
(``DrainOrder``), ``{"do": "ping"}``. From the worker: ``{"ready": true}``, or ``{"problems": [...]}`` if the
configuration cannot be used, and ``{"pong": true}``. A closed end means that its process has ended.
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
    """The configuration of a worker.

    Attributes:
        settings: The configuration in force. Not read from the file again, which may be invalid by now.
        config: The file it came from.
        place: Which worker it is.
        port: The public port.
    """

    settings: Settings
    config: Path
    place: WorkerPlace
    port: int


def encode_worker_start(start: WorkerStart) -> bytes:
    """Encode the first message to a worker."""
    content = pickle.dumps(start)
    return _LENGTH.pack(len(content)) + content


def read_worker_start(line: socket.socket) -> WorkerStart:
    """Read the first message; blocks.

    Raises:
        EOFError: the supervisor is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    start = pickle.loads(_exactly(line, length))  # noqa: S301 - from the process that started this one
    assert isinstance(start, WorkerStart)
    return start


def message(**members: Any) -> bytes:
    """Encode a message."""
    return orjson.dumps(members) + b"\n"


class WorkerMessageSplitter:
    """Splits received bytes into messages.

    Args:
        take: Called with each of them.
    """

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Bytes were received."""
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
