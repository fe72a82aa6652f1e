"""What gateways tell each other all the time, through a channel of Redis.

Every gateway says a few times a second that it is there, and at most every ``_TELL_SECONDS`` what has changed. It hears
itself as well, and by that it knows that the channel works in both directions.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import structlog
from pydantic import SecretStr
from redis.asyncio.client import PubSub

from gateway.cluster.connect import RedisConnections
from gateway.cluster.redis_health import BACKEND, PAUSE_SECONDS, RedisHealth, is_ending
from gateway.cluster.seal import Seal
from gateway.config.state_settings import read_address
from gateway.core.ports import Replicated
from gateway.tasks import TaskGroupOwner

_TELL_SECONDS = 0.05
_BEAT_SECONDS = 0.25
"""How often a gateway says that it is there, even if nothing has changed."""

_ALL_SECONDS = 1.0
"""How often all is told that there is."""

_SILENT_SECONDS = 1.0
"""A peer that says nothing for so long is forgotten."""

_DEAF_SECONDS = 2.0
"""Not even to hear oneself for so long means that the channel is broken."""

_AT_ONCE = 32
"""Messages taken before requests have their turn: some milliseconds. One at a time would fall behind on a busy loop."""

_MAX_MESSAGE_BYTES = 8 * 2**20
"""Of a peer's message: it is opened and read at once. All that a gateway with a thousand replicas says has 200 KiB."""

_STOP_SECONDS = 0.5
_NAME_BYTES = 8

_log = structlog.get_logger("gateway.cluster")


class _PeerMessage(msgspec.Struct, array_like=True):
    """What is sent.

    Attributes:
        sender: The gateway's name.
        number: Its messages are numbered, so that it is noticed when one is lost.
        parts: What each part tells, by its name; those that are not known are passed over.
        last: Whether it ends.
    """

    sender: bytes
    number: int
    parts: dict[str, bytes]
    last: bool = False


@dataclass(slots=True)
class _KnownPeer:
    heard_at: float
    number: int


_decoder = msgspec.msgpack.Decoder(_PeerMessage)


class PeerChannel:
    """Lets parts of the gateway tell the same parts of its peers what they know.

    Args:
        url: Where Redis is, as ``State`` has checked it.
        secret: What all gateways have in common; nobody else can read what is said, or say anything.
        parts: What takes part, by a name that peers know it by.
        on_error: Called with the backend's name at every failure.
        on_peers: Called with the number of peers whenever it changes.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        url: SecretStr,
        secret: SecretStr,
        parts: Mapping[str, Replicated],
        *,
        on_error: Callable[[str], None],
        on_peers: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A connection to tell, one to listen.
        self._connections = RedisConnections(read_address(url.get_secret_value()), most=2)
        self._seal = Seal(secret, "exchange")
        self._channel = f"pgw:peers:{self._seal.name(b'channel').hex()}"
        self._parts = dict(parts)
        self._on_error = on_error
        self._on_peers = on_peers
        self._clock = clock
        self._telling = RedisHealth("tell", on_error, clock)
        self._hearing = RedisHealth("hear", on_error, clock)
        self._name = os.urandom(_NAME_BYTES)
        self._number = 0
        self._told_at = self._all_at = -_ALL_SECONDS
        self._all = True
        self._peers: dict[str, _KnownPeer] = {}
        self._odd: set[str] = set()
        self._mute: set[str] = set()
        self._tasks = TaskGroupOwner()

    @property
    def peers(self) -> int:
        """How many other gateways are heard."""
        return len(self._peers)

    def start(self) -> None:
        """Begin. Does not wait for Redis."""
        self._tasks.spawn(self._tell_on(), name="state-tell")
        self._tasks.spawn(self._hear_on(), name="state-hear")
        self._tasks.spawn(self._forget_on(), name="state-peers")

    async def stop(self) -> None:
        """Say goodbye, if that is quick, and end."""
        await self._tasks.cancel()
        if not self._telling.failing:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._publish({}, last=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._connections.close()
        for peer in list(self._peers):
            self._forget(peer)

    # To tell

    async def _tell_on(self) -> None:
        while not is_ending():
            await asyncio.sleep(_TELL_SECONDS)
            if not self._telling.may_try():
                continue
            try:
                await self._tell()
            except Exception as error:  # noqa: BLE001 - whatever it is, requests go on, and all is told again
                self._all = True
                self._telling.failed(error)
            else:
                self._telling.worked()

    async def _tell(self) -> None:
        now = self._clock()
        everything = self._all or now - self._all_at >= _ALL_SECONDS
        told = {name: self._told(name, part, now, everything=everything) for name, part in self._parts.items()}
        parts = {name: each for name, each in told.items() if each is not None}
        if not parts and now - self._told_at < _BEAT_SECONDS:
            return
        if everything:
            self._all, self._all_at = False, now
        self._told_at = now
        await self._publish(parts)

    def _told(self, name: str, part: Replicated, now: float, *, everything: bool) -> bytes | None:
        """What a part tells; None if it fails, which must not keep the others, and this gateway, from being known."""
        try:
            return part.encode_changes(now, everything=everything)
        except Exception:  # noqa: BLE001 - whatever it is, the part tells all again in a second
            self._on_error(BACKEND)
            if name not in self._mute:
                self._mute.add(name)
                _log.exception("part_not_sent", part=name)
            return None

    async def _publish(self, parts: dict[str, bytes], *, last: bool = False) -> None:
        self._number += 1  # also if it fails: then it was lost
        message = msgspec.msgpack.encode(_PeerMessage(self._name, self._number, parts, last))
        await self._connections.client.publish(self._channel, self._closed(message))

    def _closed(self, message: bytes) -> bytes:
        return self._seal.closed_bytes(self._channel.encode(), message)

    # To hear

    async def _hear_on(self) -> None:
        while not is_ending():
            try:
                await self._connections.ready()
                async with self._connections.client.pubsub() as listening:
                    await listening.subscribe(self._channel)
                    await self._listen(listening)
            except Exception as error:  # noqa: BLE001 - whatever it is, requests go on with what is known here
                self._hearing.failed(error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self, listening: PubSub) -> None:
        """Hear what is said.

        Raises:
            TimeoutError: nothing is, not even by this gateway.
        """
        heard_at = self._clock()
        heard = 0
        while not is_ending():
            message = await listening.get_message(ignore_subscribe_messages=True, timeout=_DEAF_SECONDS)
            now = self._clock()
            if message is not None and self._hear(message["data"], now):
                heard_at = now
                self._hearing.worked()
            elif now - heard_at >= _DEAF_SECONDS and not self._telling.failing:
                raise TimeoutError
            heard += 1
            if heard % _AT_ONCE == 0:
                await asyncio.sleep(0)  # a busy channel must not keep requests waiting

    def _hear(self, data: bytes, now: float) -> bool:
        """Whether somebody said something."""
        is_too_large = len(data) > _MAX_MESSAGE_BYTES
        opened = None if is_too_large else self._seal.opened_bytes(self._channel.encode(), data)
        try:
            message = None if opened is None else _decoder.decode(opened)
        except msgspec.MsgspecError:
            message = None
        if message is None:
            self._on_error(BACKEND)
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
            self._all = True  # it may have just begun, and knows nothing
            self._on_peers(len(self._peers))
        elif message.number != peer.number + 1:
            for part in self._parts.values():
                part.missed(name, now)
        peer.heard_at, peer.number = now, message.number
        for part_name, told in message.parts.items():
            self._take(part_name, name, told, now)
        return True

    def _take(self, part_name: str, peer: str, told: bytes, now: float) -> None:
        part = self._parts.get(part_name)
        if part is None:
            return
        try:
            part.receive(peer, told, now)
        except Exception as error:  # noqa: BLE001 - of another version perhaps; the others can do with it
            self._on_error(BACKEND)
            if part_name not in self._odd:
                self._odd.add(part_name)
                _log.warning("peer_not_understood", part=part_name, error=type(error).__name__)

    async def _forget_on(self) -> None:
        now = self._clock()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            before, now = now, self._clock()
            if now - before > 2 * _BEAT_SECONDS:
                continue  # this gateway was busy: what they said may lie there unheard
            for name, peer in list(self._peers.items()):
                if now - peer.heard_at >= _SILENT_SECONDS:
                    self._forget(name)

    def _forget(self, name: str) -> None:
        if self._peers.pop(name, None) is None:
            return
        now = self._clock()
        for part in self._parts.values():
            part.missed(name, now)
            part.gone(name, now)
        self._on_peers(len(self._peers))
