"""What gateways tell each other of prompts that were computed: their blocks' hashes, when and where. No text."""

import msgspec
import numpy as np

from gateway.core.explanation import SpaceKey
from gateway.explain.seen.block_table import Hashes

_LITTLE = np.dtype("<u8")

_MOST_BYTES = 512 * 1024
"""What may wait to be told. What comes on top of it is not told: others then take it for new, as they always did."""

_PROMPT_BYTES = 64
"""Of a prompt beside its hashes."""


class SeenPromptMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prompt that was computed, perhaps with what was generated behind it.

    Attributes:
        where: Number of its prefix space in ``SeenMessage.wheres``.
        life: As in ``RequestRecord``.
        replica: Likewise.
        at: Likewise.
        hashes: Its blocks, behind the root that all spaces have in common; little-endian u64. Those in front that were
            told a moment ago may be missing.
    """

    where: int
    life: str
    replica: str
    at: float
    hashes: bytes

    def blocks(self) -> Hashes:
        """The hashes.

        Raises:
            ValueError: they are none.
        """
        return np.frombuffer(self.hashes, _LITTLE).astype(np.uint64, copy=False)


class SeenMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is told at once.

    Attributes:
        teller: Stands for the process that tells it; several gateways may tell what one process has gathered.
        wheres: The spaces of the prompts.
        prompts: In the order in which they were answered.
    """

    teller: bytes
    wheres: list[SpaceKey]
    prompts: list[SeenPromptMessage]


_decoder = msgspec.msgpack.Decoder(SeenMessage)


def read_told(data: bytes) -> SeenMessage:
    """What ``SeenPublisher.take`` gave.

    Raises:
        msgspec.MsgspecError: it is something else.
    """
    return _decoder.decode(data)


class SeenPublisher:
    """Gathers what is to be told.

    Args:
        name: Stands for this process.

    Attributes:
        name: Likewise.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self._wheres: dict[SpaceKey, int] = {}
        self._prompts: list[SeenPromptMessage] = []
        self._bytes = 0

    def add(self, where: SpaceKey, life: str, replica: str, at: float, hashes: Hashes) -> None:
        """A prompt was computed; see ``SeenPromptMessage``."""
        if not len(hashes):
            return
        packed = hashes.astype(_LITTLE, copy=False).tobytes()
        if self._bytes + len(packed) > _MOST_BYTES:
            return
        number = self._wheres.setdefault(where, len(self._wheres))
        self._prompts.append(SeenPromptMessage(number, life, replica, at, packed))
        self._bytes += len(packed) + _PROMPT_BYTES

    def take(self) -> bytes:
        """All that was gathered since this was last asked; empty for nothing."""
        if not self._prompts:
            return b""
        told = msgspec.msgpack.encode(SeenMessage(self.name, list(self._wheres), self._prompts))
        self._wheres, self._prompts, self._bytes = {}, [], 0
        return told
