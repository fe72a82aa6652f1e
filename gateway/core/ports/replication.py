"""What several gateways in front of the same engines tell each other."""

from collections.abc import Mapping
from typing import Protocol


class Replicated(Protocol):
    """A part of the gateway that tells its peers something, and hears the same from them.

    A peer is another gateway; its name is that of one process. Synchronous, without I/O; ``now`` is monotonic seconds.
    """

    def tell(self, now: float, *, everything: bool) -> bytes | None:
        """What peers should know; None if nothing has changed.

        Args:
            now: Monotonic seconds.
            everything: Tell all there is, also what was told before: somebody may not have heard it.
        """
        ...

    def heard(self, peer: str, told: bytes, now: float) -> None:
        """A peer told something.

        Raises:
            Exception: it is nothing that ``tell`` gave. Nothing else is lost by that.
        """
        ...

    def missed(self, peer: str, now: float) -> None:
        """Something that a peer told was lost, or the peer is not heard any more."""
        ...

    def gone(self, peer: str, now: float) -> None:
        """A peer is not heard any more. Also called after ``missed``."""
        ...


class SharedRecords(Protocol):
    """Some named values that several gateways keep together, and that outlive them."""

    async def read(self) -> Mapping[str, bytes]:
        """All of them.

        Raises:
            Exception: they cannot be read now.
        """
        ...

    async def write(self, changes: Mapping[str, bytes | None]) -> bool:
        """Write some; None removes one.

        Returns:
            Whether what was written before is still there.

        Raises:
            Exception: they cannot be written now.
        """
        ...
