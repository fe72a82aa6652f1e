"""Messages between gateways through a Redis pub/sub channel.

Every gateway sends a heartbeat a few times a second, and changes at most every ``_SEND_SECONDS``. It receives its own
messages as well, which shows that the channel works in both directions.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import SecretStr
from redis.asyncio.client import PubSub

from gateway.cluster.connect import BACKEND, PAUSE_SECONDS, RedisConnections, RedisHealth, is_ending
from gateway.cluster.messages import PARTS, VERSION, MessageRefused, PeerMessage, decode_part, encode_part
from gateway.cluster.seal import Seal
from gateway.config.state_settings import read_address
from gateway.core.ports import Replicated
from gateway.tasks import TaskGroupOwner

_SEND_SECONDS = 0.05
_BEAT_SECONDS = 0.25
"""Interval of heartbeats without changes."""

_FULL_SECONDS = 1.0
"""Interval of full messages."""

_SILENT_SECONDS = 1.0
"""A peer is removed after this time without a message."""

_LOOPBACK_SECONDS = 2.0
"""The channel counts as broken after this time without even an own message."""

_MESSAGES_PER_TURN = 32
"""Messages processed per turn of the event loop: some milliseconds. One per turn would fall behind on a busy loop."""

_MAX_MESSAGE_BYTES = 8 * 2**20
"""Limit of a message, which is decoded in one step. A full message of a gateway with a thousand replicas has 200
KiB."""

_STOP_SECONDS = 0.5
_NAME_BYTES = 8

_log = structlog.get_logger("gateway.cluster")


@dataclass(slots=True)
class _KnownPeer:
    received_at: float
    number: int


class PeerChannel:
    """Replicates parts of the gateway's state to its peers.

    Args:
        url: Address of Redis, validated by the settings.
        secret: Shared secret of all gateways; messages are encrypted and authenticated with it.
        parts: The replicated parts by their names in messages.
        types: Type of each part.
        on_error: Called with the backend's name on every failure.
        on_peers: Called with the number of peers whenever it changes.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        url: SecretStr,
        secret: SecretStr,
        parts: Mapping[str, Replicated[Any]],
        *,
        types: Mapping[str, type[Any]] = PARTS,
        on_error: Callable[[str], None],
        on_peers: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # One connection to publish, one to subscribe.
        self._connections = RedisConnections(read_address(url.get_secret_value()), most=2)
        self._seal = Seal(secret, "exchange")
        self._channel = f"pgw:peers:{self._seal.name(b'channel').hex()}"
        self._parts = dict(parts)
        self._types = types
        self._on_error = on_error
        self._on_peers = on_peers
        self._clock = clock
        self._sending = RedisHealth("tell", on_error, clock)
        self._receiving = RedisHealth("hear", on_error, clock)
        self._name = os.urandom(_NAME_BYTES)
        self._number = 0
        self._sent_at = self._full_at = -_FULL_SECONDS
        self._send_full = True
        self._peers: dict[str, _KnownPeer] = {}
        self._logged_decode: set[str] = set()
        self._logged_encode: set[str] = set()
        self._tasks = TaskGroupOwner()

    @property
    def peers(self) -> int:
        """Number of connected peers."""
        return len(self._peers)

    def start(self) -> None:
        """Start. Does not wait for Redis."""
        self._tasks.spawn(self._send_loop(), name="state-tell")
        self._tasks.spawn(self._receive_loop(), name="state-hear")
        self._tasks.spawn(self._expire_loop(), name="state-peers")

    async def stop(self) -> None:
        """Send a last message, for at most ``_STOP_SECONDS``, and stop."""
        await self._tasks.cancel()
        if not self._sending.failing:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._publish({}, last=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._connections.close()
        for peer in list(self._peers):
            self._forget(peer)

    # Sending

    async def _send_loop(self) -> None:
        while not is_ending():
            await asyncio.sleep(_SEND_SECONDS)
            if not self._sending.may_try():
                continue
            try:
                await self._send()
            except Exception as error:  # noqa: BLE001 - requests continue, and a full message follows
                self._send_full = True
                self._sending.failed(error)
            else:
                self._sending.worked()

    async def _send(self) -> None:
        now = self._clock()
        everything = self._send_full or now - self._full_at >= _FULL_SECONDS
        payloads = {
            name: self._encode_part(name, part, now, everything=everything) for name, part in self._parts.items()
        }
        parts = {name: each for name, each in payloads.items() if each is not None}
        if not parts and now - self._sent_at < _BEAT_SECONDS:
            return
        if everything:
            self._send_full, self._full_at = False, now
        self._sent_at = now
        await self._publish(parts)

    def _encode_part(self, name: str, part: Replicated[Any], now: float, *, everything: bool) -> bytes | None:
        """The payload of a part; None if it fails, so that the other parts and the heartbeat are still sent."""
        try:
            message = part.changes(now, everything=everything)
            return None if message is None else encode_part(message)
        except Exception:  # noqa: BLE001 - the part sends its full state again in a second
            self._on_error(BACKEND)
            if name not in self._logged_encode:
                self._logged_encode.add(name)
                _log.exception("part_not_sent", part=name)
            return None

    async def _publish(self, parts: dict[str, bytes], *, last: bool = False) -> None:
        self._number += 1  # counted also if publishing fails, as a lost message
        message = PeerMessage(VERSION, self._name, self._number, parts, last)
        await self._connections.client.publish(self._channel, self._sealed(message.encode()))

    def _sealed(self, message: bytes) -> bytes:
        return self._seal.closed_bytes(self._channel.encode(), message)

    # Receiving

    async def _receive_loop(self) -> None:
        while not is_ending():
            try:
                await self._connections.ready()
                async with self._connections.client.pubsub() as listening:
                    await listening.subscribe(self._channel)
                    await self._listen(listening)
            except Exception as error:  # noqa: BLE001 - requests continue with local state
                self._receiving.failed(error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self, listening: PubSub) -> None:
        """Process messages.

        Raises:
            TimeoutError: no message arrives, not even an own one.
        """
        received_at = self._clock()
        received = 0
        while not is_ending():
            message = await listening.get_message(ignore_subscribe_messages=True, timeout=_LOOPBACK_SECONDS)
            now = self._clock()
            if message is not None and self._receive(message["data"], now):
                received_at = now
                self._receiving.worked()
            elif now - received_at >= _LOOPBACK_SECONDS and not self._sending.failing:
                raise TimeoutError
            received += 1
            if received % _MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)  # a busy channel must not keep requests waiting

    def _receive(self, data: bytes, now: float) -> bool:
        """Process one message; returns whether it is valid."""
        is_too_large = len(data) > _MAX_MESSAGE_BYTES
        opened = None if is_too_large else self._seal.opened_bytes(self._channel.encode(), data)
        if opened is None:
            self._on_error(BACKEND)
            return False
        try:
            message = PeerMessage.decode(opened)
        except MessageRefused as refused:
            self._refused("message", str(refused))
            return False
        if message.sender == self._name:
            return True
        name = message.sender.hex()
        if message.last:
            self._forget(name)
            return True
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _KnownPeer(now, message.number)
            self._send_full = True  # it may have just started without any state
            self._on_peers(len(self._peers))
            if message.number > 1:  # what it sent before was lost, as while Redis was unreachable, or is only stored
                self._missed(name, now)
        elif message.number != peer.number + 1:
            self._missed(name, now)
        peer.received_at, peer.number = now, message.number
        for part_name, payload in message.parts.items():
            self._apply(part_name, name, payload, now)
        return True

    def _apply(self, part_name: str, peer: str, payload: bytes, now: float) -> None:
        part = self._parts.get(part_name)
        if part is None:
            return
        try:
            part.receive(peer, decode_part(self._types[part_name], payload), now)
        except MessageRefused as refused:
            self._refused(part_name, str(refused))
        except Exception as error:  # noqa: BLE001 - perhaps of another version; other parts may still work
            self._refused(part_name, type(error).__name__)

    def _refused(self, part_name: str, reason: str) -> None:
        """Count a message or a part that cannot be used; the first of each part is logged."""
        self._on_error(BACKEND)
        if part_name not in self._logged_decode:
            self._logged_decode.add(part_name)
            _log.warning("peer_not_understood", part=part_name, error=reason)

    async def _expire_loop(self) -> None:
        now = self._clock()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            before, now = now, self._clock()
            if now - before > 2 * _BEAT_SECONDS:
                continue  # this gateway was busy: messages may be unread
            for name, peer in list(self._peers.items()):
                if now - peer.received_at >= _SILENT_SECONDS:
                    self._forget(name)

    def _missed(self, name: str, now: float) -> None:
        for part in self._parts.values():
            part.missed(name, now)

    def _forget(self, name: str) -> None:
        if self._peers.pop(name, None) is None:
            return
        now = self._clock()
        self._missed(name, now)
        for part in self._parts.values():
            part.gone(name, now)
        self._on_peers(len(self._peers))
