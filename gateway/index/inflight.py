"""Blocks that a target is about to hold, or holds already while its events are still on their way.

An engine can reuse a block from the moment it is scheduled; the event comes a step later. Without these, a burst of one
new prefix would be spread over the fleet, and the next turn of a fast conversation would look cold.
"""

from collections import deque
from collections.abc import Sequence

from gateway.core.ids import Target

_LINGER_SECONDS = 2.0
"""How long blocks of a finished request count without an event that says so. Events follow within milliseconds; this
covers a slow network and a busy gateway."""


class InflightBlocks:
    """Chain hashes by target, each as often as there are requests that bring it."""

    def __init__(self) -> None:
        self._blocks: dict[Target, dict[int, int]] = {}
        self._leaving: deque[tuple[float, Target, Sequence[int]]] = deque()

    def add(self, target: Target, hashes: Sequence[int]) -> None:
        """Blocks a request brings to a target."""
        counts = self._blocks.setdefault(target, {})
        for block in hashes:
            counts[block] = counts.get(block, 0) + 1

    def leave(self, target: Target, hashes: Sequence[int], now: float) -> None:
        """The request is over: its blocks count a little longer."""
        # Here as well: where all requests are other gateways', nobody looks.
        self.expire(now)
        if hashes:
            self._leaving.append((now + _LINGER_SECONDS, target, hashes))

    def remove(self, target: Target, hashes: Sequence[int]) -> None:
        """The request, or its time, is over."""
        counts = self._blocks.get(target)
        if counts is None:
            return
        for block in hashes:
            count = counts.get(block, 0)
            if count > 1:
                counts[block] = count - 1
            elif count:
                del counts[block]

    def expire(self, now: float) -> None:
        """Forget what has lingered long enough."""
        while self._leaving and self._leaving[0][0] <= now:
            _, target, hashes = self._leaving.popleft()
            self.remove(target, hashes)

    def lost(self, target: Target, block: int) -> None:
        """An event says that a block is gone: then it is, whoever brought it."""
        counts = self._blocks.get(target)
        if counts:
            counts.pop(block, None)

    def clear(self, target: Target) -> None:
        """Everything at a target is gone."""
        self._blocks.pop(target, None)

    def extend(self, target: Target, hashes: Sequence[int], depth: int, limit: int) -> int:
        """How far a chain goes that is held up to ``depth``, with what is fresh."""
        counts = self._blocks.get(target)
        if counts:
            while depth < limit and hashes[depth] in counts:
                depth += 1
        return depth
