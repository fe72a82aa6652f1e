"""State that several gateways in front of the same engines exchange."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

MessageT = TypeVar("MessageT")


class Replicated(Protocol[MessageT]):
    """A component that sends state to its peers, and receives theirs, as msgspec structs of one type.

    A peer is another gateway; its name is that of one process. Synchronous, without I/O; ``now`` is monotonic seconds.
    """

    def changes(self, now: float, *, everything: bool) -> MessageT | None:
        """The message for all peers; None if nothing has changed.

        Args:
            now: Monotonic seconds.
            everything: Send the full state, not only changes: a peer may have missed earlier messages.
        """
        ...

    def receive(self, peer: str, message: MessageT, now: float) -> None:
        """Process a message from a peer.

        Raises:
            Exception: the message is invalid; it is ignored.
        """
        ...

    def missed(self, peer: str, now: float) -> None:
        """Messages of a peer were lost, or sent before the first one that was received, or the peer no longer sends."""
        ...

    def gone(self, peer: str, now: float) -> None:
        """A peer no longer sends. Also called after ``missed``."""
        ...


class SharedRecords(Protocol):
    """Named values in a store that several gateways share."""

    async def read(self) -> Mapping[str, bytes]:
        """All values.

        Raises:
            Exception: the store cannot be read now.
        """
        ...

    async def take(self, name: str) -> bytes | None:
        """Read a value and remove it at once, so that exactly one caller gets it; None if there is none.

        Raises:
            Exception: the store cannot be reached now.
        """
        ...

    async def write(self, changes: Mapping[str, bytes | None]) -> bool:
        """Write values; None removes one.

        Returns:
            Whether earlier values are still there.

        Raises:
            Exception: the store cannot be written now.
        """
        ...
