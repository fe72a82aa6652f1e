"""What was computed for this gateway's requests is told to others, and what they tell is handed on.

Both pass through as they are: the processes that explain make them, and make sense of them.
"""

from collections import deque
from collections.abc import Callable

import msgspec

_MOST_BYTES = 512 * 1024
"""What may wait to be told, while nobody can be; more, and the oldest is not told any more."""

_decoder = msgspec.msgpack.Decoder(tuple[bytes, ...])


class ReplicatedSeen:
    """Implements ``ports.Shared``. What is lost counts as never seen at the others, as it would without them.

    What was told last is told again where everything is asked for: it may be that it could not be told. To hear it
    twice changes nothing.

    Args:
        hear: Takes what another gateway tells.
    """

    def __init__(self, hear: Callable[[tuple[bytes, ...]], None]) -> None:
        self._hear = hear
        self._waiting: deque[bytes] = deque()
        self._told: list[bytes] = []
        self._bytes = 0

    def add(self, told: bytes) -> None:
        """This gateway's process has something to tell."""
        self._waiting.append(told)
        self._bytes += len(told)
        self._trim()

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:  # noqa: ARG002 - it takes no time
        """See ``Replicated``."""
        if everything:
            self._waiting.extendleft(reversed(self._told))
            self._bytes += sum(map(len, self._told))
            self._trim()
        self._told = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return msgspec.msgpack.encode(self._told) if self._told else None

    def receive(self, peer: str, told: bytes, now: float) -> None:  # noqa: ARG002 - who tells does not matter
        """See ``Replicated``."""
        self._hear(_decoder.decode(told))

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. Each message stands for itself."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. What was computed for it stays known."""

    def _trim(self) -> None:
        while self._bytes > _MOST_BYTES:
            self._bytes -= len(self._waiting.popleft())
