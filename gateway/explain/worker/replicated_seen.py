"""Replicates computed prompts between gateways.

The messages are opaque here: the explain workers encode and decode them.
"""

from collections import deque
from collections.abc import Callable

import msgspec

_MAX_BYTES = 512 * 1024
"""Maximum bytes waiting to be sent; beyond it the oldest messages are dropped."""


class SeenMessages(msgspec.Struct, array_like=True, frozen=True):
    """What the explain workers send each other.

    Attributes:
        encoded: Each is a ``SeenMessage``, encoded.
    """

    encoded: tuple[bytes, ...]


class ReplicatedSeen:
    """A replicated component. Prompts in lost messages count as never seen at the other gateways.

    A full update repeats the last messages, which may not have been delivered. Receiving them twice has no effect.

    Args:
        receive: Takes the messages of another gateway.
    """

    def __init__(self, receive: Callable[[tuple[bytes, ...]], None]) -> None:
        self._receive = receive
        self._waiting: deque[bytes] = deque()
        self._sent: list[bytes] = []
        self._bytes = 0

    def add(self, message: bytes) -> None:
        """Add a message of this gateway's worker."""
        self._waiting.append(message)
        self._bytes += len(message)
        self._trim()

    def changes(self, now: float, *, everything: bool) -> SeenMessages | None:  # noqa: ARG002 - it takes no time
        """See ``Replicated``."""
        if everything:
            self._waiting.extendleft(reversed(self._sent))
            self._bytes += sum(map(len, self._sent))
            self._trim()
        self._sent = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return SeenMessages(tuple(self._sent)) if self._sent else None

    def receive(self, peer: str, message: SeenMessages, now: float) -> None:  # noqa: ARG002 - any sender is equal
        """See ``Replicated``."""
        self._receive(message.encoded)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. Messages are independent of each other."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. Its prompts stay recorded."""

    def _trim(self) -> None:
        while self._bytes > _MAX_BYTES:
            self._bytes -= len(self._waiting.popleft())
