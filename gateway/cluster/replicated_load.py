"""Tells other gateways what this one has in flight, and takes from them what they have."""

from collections.abc import Callable, Iterator

import msgspec

from gateway.core.ids import ModelId
from gateway.fleet.fleet import Fleet
from gateway.fleet.peer_load import NO_LOAD, PeerLoad

_Loads = list[tuple[str, int, int, int, int]]
"""Replica, rank, and the attributes of ``PeerLoad``."""

_decoder = msgspec.msgpack.Decoder(_Loads)


class ReplicatedLoads:
    """Implements ``ports.Shared``. What is told is always all there is, so nothing depends on what was lost before.

    Args:
        fleet: The replicas; those that a peer names and that are not among them are passed over.
        freed: Told whenever a replica of a model has less to do.
    """

    def __init__(self, fleet: Fleet, freed: Callable[[ModelId], None]) -> None:
        self._fleet = fleet
        self._freed = freed
        self._told: _Loads = []

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:  # noqa: ARG002 - it takes no time
        """See ``Replicated``."""
        loads = list(self._own())
        if loads == self._told and not everything:
            return None
        self._told = loads
        return msgspec.msgpack.encode(loads)

    def receive(self, peer: str, told: bytes, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        loads = {(name, rank): PeerLoad(*load) for name, rank, *load in _decoder.decode(told)}
        freed = set()
        for replica in self._fleet.replicas:
            for rank, load in replica.loads():
                if load.take_peer(peer, loads.get((replica.id, rank), NO_LOAD)):
                    freed.add(replica.model)
        for model in freed:
            self._freed(model)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message tells all."""

    def gone(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``. What it has in flight is seen in the engines' metrics, as that of strangers."""
        for replica in self._fleet.replicas:
            for _, load in replica.loads():
                load.forget_peer(peer)

    def _own(self) -> Iterator[tuple[str, int, int, int, int]]:
        for replica in self._fleet.replicas:
            for rank, load in replica.loads():
                if load.sequences or load.prefill_tokens:
                    yield replica.id, rank, load.prefill_tokens, load.sequences, load.prefilling
