"""What other gateways have sent to one rank, by their own account."""

from dataclasses import dataclass
from typing import NamedTuple


class PeerLoad(NamedTuple):
    """What one gateway has in flight at one rank; as in ``RankLoad``.

    Attributes:
        prefill_tokens: Uncached prompt tokens sent there and not yet computed.
        sequences: Engine requests sent there and not yet over.
        prefilling: Those of them whose prompt is not yet computed.
    """

    prefill_tokens: int
    sequences: int
    prefilling: int


NO_LOAD = PeerLoad(0, 0, 0)


@dataclass(slots=True)
class _PeerEntry:
    """A gateway, and the most that it can have had there while the engine was asked for its metrics.

    Attributes:
        load: What it has there now.
        most_sequences: The most of its sequences.
        most_prefilling: The most of its sequences whose prompt was not yet computed.
        settling: Whether what it tells next counts for these, too: what it sent before the engine counted may be heard
            of a moment later.
    """

    load: PeerLoad = NO_LOAD
    most_sequences: int = 0
    most_prefilling: int = 0
    settling: bool = True


class PeerLoads:
    """The loads of all other gateways at one rank.

    Attributes:
        prefill_tokens: Of all together.
        sequences: Of all together.
        most_sequences: The most that the engine can have counted of them at the last look.
        most_prefilling: Likewise.
    """

    def __init__(self) -> None:
        self.prefill_tokens = self.sequences = 0
        self.most_sequences = self.most_prefilling = 0
        self._peers: dict[str, _PeerEntry] = {}
        self._looking = False

    def begin_look(self) -> None:
        """The engine is about to be asked for its metrics."""
        self._looking = True
        for peer in self._peers.values():
            peer.most_sequences, peer.most_prefilling = peer.load.sequences, peer.load.prefilling
        self._sum()

    def end_look(self) -> None:
        """The engine's answer is there."""
        self._looking = False
        for peer in self._peers.values():
            peer.settling = True

    def take(self, name: str, load: PeerLoad) -> bool:
        """A gateway tells what it has there. Returns whether that changes anything."""
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _PeerEntry()
        elif peer.load == load and not peer.settling:
            return False
        peer.load = load
        if self._looking or peer.settling:
            peer.most_sequences = max(peer.most_sequences, load.sequences)
            peer.most_prefilling = max(peer.most_prefilling, load.prefilling)
            peer.settling = self._looking
        self._sum()
        return True

    def forget(self, name: str) -> None:
        """A gateway is not heard any more."""
        self._peers.pop(name, None)
        self._sum()

    def _sum(self) -> None:
        peers = self._peers.values()
        self.prefill_tokens = sum(peer.load.prefill_tokens for peer in peers)
        self.sequences = sum(peer.load.sequences for peer in peers)
        self.most_sequences = sum(peer.most_sequences for peer in peers)
        self.most_prefilling = sum(peer.most_prefilling for peer in peers)
