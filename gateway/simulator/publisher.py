"""Publishes the KV events of one data-parallel rank: PUB socket, replay buffer, ROUTER socket, and their endpoints.

As vLLM does it (0.32, ``vllm/distributed/kv_events.py``), but in the event loop and never waiting: a subscriber that
cannot keep up loses batches, and replays are sent in portions. The engine's replay socket drops what a slow reader
does not take; this one does not.
"""

import asyncio
import re
import socket
from collections import deque
from dataclasses import dataclass
from typing import Self

import zmq

from gateway.core.engine_facts import EngineKind
from gateway.simulator.faults import Fault, FaultSpec, Rhythm

_PATTERN = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s*]+):([0-9]{1,5})")
_EVERY_INTERFACE = ("0.0.0.0", "::", "")  # noqa: S104 - only compared
_WAIT_SECONDS = 0.02
_TRIES = 50
"""ZeroMQ releases a port shortly after its socket is closed."""


class ListenError(Exception):
    """Listening at an address failed. The message names the address, the cause and the fix."""


@dataclass(frozen=True, slots=True)
class ZmqEndpoint:
    """``tcp://HOST:PORT``.

    Attributes:
        host: ``*`` for all addresses; IPv6 in brackets.
        port: 0 takes a free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, with one sentence, for an invalid endpoint."""
        found = _PATTERN.fullmatch(text)
        if found is None or int(found[2]) > 65535:
            raise ValueError(f"an event endpoint must look like tcp://*:5557, not {text!r}")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    def of_rank(self, rank: int) -> "ZmqEndpoint":
        """The endpoint of a data-parallel rank: its port plus the rank."""
        return ZmqEndpoint(self.host, self.port + rank if self.port else 0)

    def listening_at(self, host: str) -> "ZmqEndpoint":
        """Where the socket of a wildcard listens, for an engine that serves HTTP at ``host``.

        vLLM and SGLang listen on every interface for a wildcard. A simulated engine runs on laptops: it
        publishes only to machines to which its HTTP port is open. It still reports the wildcard.

        Raises:
            ListenError: The host has no address.
        """
        if self.host != "*" or host in _EVERY_INTERFACE:
            return self
        try:
            address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise ListenError(f"cannot listen on {host}: {error.strerror}") from error
        return ZmqEndpoint(f"[{address}]" if ":" in str(address) else str(address), self.port)

    def binds(self, flavor: EngineKind) -> bool:
        """Whether the engine listens there. It connects to addresses without a wildcard."""
        return "*" in self.host or "::" in self.host or (flavor == EngineKind.SGLANG and self.host == "0.0.0.0")  # noqa: S104


async def bind(opened: zmq.Socket[bytes], endpoint: ZmqEndpoint, host: str) -> ZmqEndpoint:
    """Listen, and return the endpoint with the port that was found. Raises ListenError.

    Args:
        opened: The socket.
        endpoint: The configured endpoint.
        host: Where it serves HTTP; see ``ZmqEndpoint.listening_at``.
    """
    address = endpoint.listening_at(host)
    opened.setsockopt(zmq.IPV6, int(address.host.startswith("[")))
    for attempt in range(_TRIES):
        try:
            opened.bind(str(address))
            break
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or attempt == _TRIES - 1 or not endpoint.port:
                hint = "; choose another port" if error.errno == zmq.EADDRINUSE else ""
                raise ListenError(f"cannot listen on {endpoint}: {error.strerror}{hint}") from error
            await asyncio.sleep(_WAIT_SECONDS)
    found = opened.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    return ZmqEndpoint(endpoint.host, int(found.rstrip(b"\0").rpartition(b":")[2]))


HIGH_WATER_MARK = 100_000
"""Batches kept for a subscriber that does not read, before more are dropped."""

_END = (-1).to_bytes(8, "big", signed=True)
_PORTION = 200


class EventPublisher:
    """The sockets of one rank.

    Args:
        events: Where to publish; port 0 is replaced by the chosen one.
        replay: Where past batches can be requested; None: nowhere.
        host: Where the engine serves HTTP; a wildcard listens there too.
        topic: First frame of each message.
        buffer: How many past batches to keep.
        flavor: Decides which endpoints the engine binds.

    Attributes:
        next_number: Sequence number that the next batch gets.
    """

    def __init__(
        self, events: ZmqEndpoint, replay: ZmqEndpoint | None, *, host: str, topic: str, buffer: int, flavor: EngineKind
    ) -> None:
        self.events = events
        self.replay = replay
        self._host = host
        self._topic = topic.encode()
        self._flavor = flavor
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=buffer)
        self.next_number = 0
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._asked: deque[list[bytes]] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._fault: FaultSpec | None = None
        self._rhythm = Rhythm()
        self._held: list[bytes] | None = None
        self._opened = False
        self._life = 0

    async def open(self) -> None:
        """Open the sockets. Raises ListenError if an address cannot be had."""
        try:
            if self._fault is None or self._fault.fault is not Fault.EVENTS_CLOSE:
                await self._open_pub()
            await self._open_router()
            self._opened = True
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the sockets at once; unsent batches are lost. The buffer stays."""
        self._opened = False
        self._close_pub()
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait({self._answering})
        self._asked.clear()
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.fileno())
            self._router.close(linger=0)
            self._router = None

    async def set_fault(self, spec: FaultSpec | None) -> None:
        """Put an event fault in force, or end it. Raises ListenError if a closed socket cannot be opened again."""
        before, self._fault = self._fault, spec
        self._rhythm = Rhythm() if spec is None else Rhythm(every=spec.every, times=spec.times)
        if self._held is not None:
            self._send(self._held)
            self._held = None
        fault = None if spec is None else spec.fault
        if fault is Fault.EVENTS_CLOSE:
            self._close_pub()
        elif before is not None and before.fault is Fault.EVENTS_CLOSE and self._opened:
            await self._open_pub()
        if before is not None and before.fault is Fault.EVENTS_STOP and self._router is not None:
            self._read()

    def restart(self) -> None:
        """Count from 0 again, with nothing to replay."""
        self.next_number = 0
        self._kept.clear()
        self._held = None
        self._life += 1

    def publish(self, payload: bytes) -> None:
        """Send one batch, subject to the fault in force."""
        number = self.next_number.to_bytes(8, "big")
        self.next_number += 1
        frames = [self._topic, number, payload]
        fault = self._fault.fault if self._fault is not None and self._rhythm.due() else None
        if fault is not Fault.EVENTS_DROP_HARD:
            self._kept.append((number, payload))
        held, self._held = self._held, None
        match fault:
            case Fault.EVENTS_DROP | Fault.EVENTS_DROP_HARD | Fault.EVENTS_STOP:
                pass
            case Fault.EVENTS_DELAY:
                assert self._fault is not None
                asyncio.get_running_loop().call_later(self._fault.value, self._send_late, frames, self._life)
            case Fault.EVENTS_REORDER if held is None:
                self._held = frames
            case Fault.EVENTS_DUPLICATE:
                self._send(frames)
                self._send(frames)
            case _:
                self._send(frames)
        if held is not None:
            self._send(held)

    def _send(self, frames: list[bytes]) -> None:
        if self._pub is not None:
            self._pub.send_multipart(frames, zmq.NOBLOCK)

    def _send_late(self, frames: list[bytes], life: int) -> None:
        if life == self._life:
            self._send(frames)

    async def _open_pub(self) -> None:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._pub = socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(HIGH_WATER_MARK)
        if self.events.binds(self._flavor):
            self.events = await bind(socket, self.events, self._host)
        else:
            # As the engine does: it connects, so no subscriber receives anything.
            socket.connect(str(self.events))

    async def _open_router(self) -> None:
        if self.replay is None:
            return
        self._router = zmq.Context.instance().socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.set_hwm(0)
        self.replay = await bind(self._router, self.replay, self._host)
        asyncio.get_running_loop().add_reader(self._router.fileno(), self._read)

    def _close_pub(self) -> None:
        self._life += 1
        if self._pub is not None:
            self._pub.close(linger=0)
            self._pub = None

    def _read(self) -> None:
        """Take every waiting request: the descriptor signals only once."""
        if self._router is None or (self._fault is not None and self._fault.fault is Fault.EVENTS_STOP):
            return
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) == 3:
                self._asked.append(frames)
        if self._asked and self._answering is None:
            self._answering = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        router = self._router
        assert router is not None
        try:
            while self._asked:
                client, _, start = self._asked.popleft()
                # Unsigned, as in the engine: a request from -1 on returns nothing.
                first = int.from_bytes(start, "big")
                for count, (number, payload) in enumerate(list(self._kept), start=1):
                    if int.from_bytes(number, "big") >= first:
                        router.send_multipart([client, b"", self._topic, number, payload], zmq.NOBLOCK)
                    if count % _PORTION == 0:
                        await asyncio.sleep(0)
                router.send_multipart([client, b"", b"", _END, b""], zmq.NOBLOCK)
                # Sending may have consumed the descriptor's signal for a request that came meanwhile.
                self._read()
        finally:
            self._answering = None
