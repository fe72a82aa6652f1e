"""Messages between gateways about computed prompts: block hashes, time and place. They contain no text."""

import sys
from array import array

import msgspec

from gateway.core.explanation import SpaceKey
from gateway.explain.seen.block_tree import Hashes

_MAX_BYTES = 512 * 1024
"""Maximum size of a message. Prompts beyond it are not reported; other gateways then count their tokens as new."""

_PROMPT_BYTES = 64
"""Size of a prompt besides its hashes."""


class SeenPromptMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A computed prompt, possibly with its reply.

    Attributes:
        where: Index of its prefix space in ``SeenMessage.wheres``.
        life: As in ``RequestRecord``.
        replica: As in ``RequestRecord``.
        at: As in ``RequestRecord``.
        hashes: Block hashes, chained from the root common to all spaces; little-endian u64. Leading blocks reported a
            moment ago may be missing.
    """

    where: int
    life: str
    replica: str
    at: float
    hashes: bytes

    def blocks(self) -> Hashes:
        """The hashes.

        Raises:
            ValueError: The length is no multiple of eight.
        """
        return _little(array("Q", self.hashes))


class SeenMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch of computed prompts.

    Attributes:
        sender: Random id of the process that collected it; several gateways may forward the batches of one process.
        wheres: Prefix spaces of the prompts.
        prompts: The prompts, in the order of their replies.
    """

    sender: bytes
    wheres: list[SpaceKey]
    prompts: list[SeenPromptMessage]


_decoder = msgspec.msgpack.Decoder(SeenMessage)


def decode_seen(data: bytes) -> SeenMessage:
    """Decodes the result of ``SeenPublisher.take``.

    Raises:
        msgspec.MsgspecError: The data is no such message.
    """
    return _decoder.decode(data)


class SeenPublisher:
    """Collects computed prompts for other gateways.

    Args:
        name: Random id of this process.

    Attributes:
        name: As given.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self._wheres: dict[SpaceKey, int] = {}
        self._prompts: list[SeenPromptMessage] = []
        self._bytes = 0

    def add(self, where: SpaceKey, life: str, replica: str, at: float, hashes: Hashes) -> None:
        """Add a computed prompt; see ``SeenPromptMessage``."""
        if not len(hashes):
            return
        packed = _little(hashes).tobytes()
        if self._bytes + len(packed) > _MAX_BYTES:
            return
        number = self._wheres.setdefault(where, len(self._wheres))
        self._prompts.append(SeenPromptMessage(number, life, replica, at, packed))
        self._bytes += len(packed) + _PROMPT_BYTES

    def take(self) -> bytes:
        """Encodes all prompts added since the last call; empty for none."""
        if not self._prompts:
            return b""
        message = msgspec.msgpack.encode(SeenMessage(self.name, list(self._wheres), self._prompts))
        self._wheres, self._prompts, self._bytes = {}, [], 0
        return message


def _little(hashes: Hashes) -> Hashes:
    """Hashes of this machine's byte order as little-endian ones, and the reverse."""
    if sys.byteorder == "big":
        hashes = hashes[:]
        hashes.byteswap()
    return hashes
