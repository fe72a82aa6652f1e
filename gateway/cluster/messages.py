"""Messages between gateways: what is sent, how it is encoded, and what is refused.

A ``PeerMessage`` carries one struct per part of the gateway's state. The package that owns the state defines the
struct, gives it and takes it (``Replicated``); bytes appear only here. Parts are encoded one by one, so that one that
cannot be decoded does not affect the others. Gateways of another release are refused by the version of the message, or
by the type of a part.
"""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from gateway.admission.replicated_limits import LimitsMessage
from gateway.explain.worker.explain_replication import SeenMessages
from gateway.fleet.drains import DrainOrder
from gateway.index.replicated_index import IndexMessage
from gateway.spaces.replicated_spaces import SpacesMessage

VERSION = 2
"""Version of ``PeerMessage``; to be raised when its fields change. Version 1 had no such field."""


class MessageRefused(Exception):
    """A message or a part of it that cannot be used. The text is the reason, for the log."""


class LoadsMessage(msgspec.Struct, array_like=True, frozen=True):
    """In-flight load of the ranks that have any; all others have none.

    Attributes:
        loads: Replica, rank, and the attributes of ``PeerLoad``.
    """

    loads: list[tuple[str, int, int, int, int]]


class DrainsMessage(msgspec.Struct, array_like=True, frozen=True):
    """All drain orders of operators."""

    orders: list[DrainOrder]


PARTS: Mapping[str, type[Any]] = {
    "loads": LoadsMessage,
    "drains": DrainsMessage,
    "index": IndexMessage,
    "limits": LimitsMessage,
    "spaces": SpacesMessage,
    "past": SeenMessages,
}
"""Type of each part by its name."""


class PeerMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message.

    Attributes:
        version: ``VERSION`` of the sender.
        sender: Random id of the gateway process.
        number: Sequence number, to detect lost messages.
        parts: Encoded struct of each part by its name; unknown parts are ignored.
        last: Whether the gateway shuts down.
    """

    version: int
    sender: bytes
    number: int
    parts: dict[str, bytes]
    last: bool = False

    def encode(self) -> bytes:
        """The message as bytes (MessagePack)."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The result of ``encode``.

        Raises:
            MessageRefused: It is something else, or of another version.
        """
        message: Self = decode_part(cls, data)
        if message.version != VERSION:
            raise MessageRefused("another version")
        return message


def encode_part(message: Any) -> bytes:
    """The struct of a part as bytes (MessagePack)."""
    return msgspec.msgpack.encode(message)


def decode_part(kind: type[Any], data: bytes) -> Any:
    """The result of ``encode_part``.

    Args:
        kind: Its type; see ``PARTS``.
        data: The bytes.

    Raises:
        MessageRefused: It is something else.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageRefused(type(error).__name__) from error
