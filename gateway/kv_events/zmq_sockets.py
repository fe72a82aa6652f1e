"""The two ZeroMQ sockets of one event source, non-blocking and without own threads.

ZeroMQ's file descriptor is edge-triggered: once woken, the reader has to read until no message is left.
http://api.zeromq.org/4-3:zmq-getsockopt (ZMQ_FD)
"""

import asyncio
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

_HEARTBEAT_MS = 5000
_DEAD_AFTER_MS = 15000
"""ZeroMQ's own pings: without them a peer that vanished (a pulled cable, a killed pod) is never noticed."""

_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 5000

_QUEUED_BATCHES = 16
"""Live batches that wait in the socket while the gateway is busy, so that their memory is bounded. Further ones wait at
the engine, whose queue is longer (vLLM's and SGLang's ``hwm``, 100,000)."""

_QUEUED_REPLAY_BATCHES = 10_000
"""Batches of a replay that wait: as many as engines keep (``buffer_steps``). With a full queue here, an engine drops
what it sends."""

_END = (-1).to_bytes(8, "big", signed=True)

Context = zmq.Context[zmq.Socket[bytes]]

Frame = tuple[int, bytes]
"""A sequence number and a payload."""


class FrameUnreadable(ValueError):
    """A message that is not an event batch."""


class Subscription:
    """The live batches.

    Args:
        context: ZeroMQ's.
        address: Where the engine publishes.
        topic: Topic of its messages.
        wake: Called when there may be something to read.
        max_bytes: Largest frame; a larger one breaks the connection.

    Raises:
        zmq.ZMQError: the address cannot be used.
    """

    def __init__(self, context: Context, address: str, topic: str, wake: Callable[[], None], *, max_bytes: int) -> None:
        self._socket = socket = context.socket(zmq.SUB)
        socket.linger = 0
        socket.rcvhwm = _QUEUED_BATCHES
        socket.maxmsgsize = max_bytes
        socket.ipv6 = True
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _DEAD_AFTER_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.subscribe(topic)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._loop = asyncio.get_running_loop()
        for watched in (socket, self._monitor):
            self._loop.add_reader(watched, wake)
        try:
            socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def link_change(self) -> bool | None:
        """Whether the connection was made (True) or broke (False) since the last call, one at a time; None: neither."""
        try:
            frames = self._monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return bool(parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def receive(self) -> Frame | None:
        """The next batch; None if there is none at the moment.

        Raises:
            FrameUnreadable: the message is no batch.
        """
        return _received(self._socket)

    def close(self) -> None:
        """Disconnect."""
        for watched in (self._socket, self._monitor):
            self._loop.remove_reader(watched)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)


class Replay:
    """One replay request, on a socket of its own, so that its answer cannot be mistaken for another one's.

    Args:
        context: ZeroMQ's.
        address: Where the engine replays.
        start: First sequence number wanted.
        wake: Called when there may be something to read.
        max_bytes: Largest frame; a larger one breaks the connection.

    Raises:
        zmq.ZMQError: the address cannot be used.
    """

    def __init__(self, context: Context, address: str, start: int, wake: Callable[[], None], *, max_bytes: int) -> None:
        self._socket = socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.maxmsgsize = max_bytes
        socket.rcvhwm = _QUEUED_REPLAY_BATCHES
        socket.ipv6 = True
        self._loop = asyncio.get_running_loop()
        try:
            socket.connect(address)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self._loop.add_reader(socket, wake)
        socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        wake()

    def receive(self) -> Frame | None:
        """The next batch; a sequence of -1 ends the answer. None if there is nothing at the moment.

        Raises:
            FrameUnreadable: the message is no batch.
        """
        return _received(self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._socket)
        self._socket.close(0)


def _received(socket: zmq.Socket[bytes]) -> Frame | None:
    """Sequence and payload are a message's last two frames; the frames before them differ between versions."""
    try:
        frames = socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
    if len(frames) < 2 or len(frames[-2]) != len(_END):
        raise FrameUnreadable(f"{len(frames)} frames where a topic, 8 bytes of sequence and a payload should be")
    if frames[-2] == _END:
        return -1, b""
    return int.from_bytes(frames[-2], "big"), frames[-1]
