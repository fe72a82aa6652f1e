"""Replicates the in-flight load of each rank between gateways."""

from collections.abc import Callable, Iterator

import msgspec

from gateway.core.ids import ModelId
from gateway.fleet.fleet import Fleet
from gateway.fleet.rank_load import NO_LOAD, PeerLoad

_Loads = list[tuple[str, int, int, int, int]]
"""Replica, rank, and the attributes of ``PeerLoad``."""

_decoder = msgspec.msgpack.Decoder(_Loads)


class ReplicatedLoads:
    """Implements ``Replicated``. Every message contains all loads, so lost messages do not matter.

    Args:
        fleet: The replicas; loads of unknown replicas are ignored.
        freed: Called with the model whenever the load of one of its replicas decreased.
    """

    def __init__(self, fleet: Fleet, freed: Callable[[ModelId], None]) -> None:
        self._fleet = fleet
        self._freed = freed
        self._last_sent: _Loads = []

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:  # noqa: ARG002 - no clock needed
        """See ``Replicated``."""
        loads = list(self._own())
        if loads == self._last_sent and not everything:
            return None
        self._last_sent = loads
        return msgspec.msgpack.encode(loads)

    def receive(self, peer: str, message: bytes, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        loads = {(name, rank): PeerLoad(*load) for name, rank, *load in _decoder.decode(message)}
        freed = set()
        for replica in self._fleet.replicas:
            for rank, load in replica.loads():
                if load.take_peer(peer, loads.get((replica.id, rank), NO_LOAD)):
                    freed.add(replica.model)
        for model in freed:
            self._freed(model)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message contains everything."""

    def gone(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``. Its requests still count in the engines' metrics, as foreign load."""
        for replica in self._fleet.replicas:
            for _, load in replica.loads():
                load.forget_peer(peer)

    def _own(self) -> Iterator[tuple[str, int, int, int, int]]:
        for replica in self._fleet.replicas:
            for rank, load in replica.loads():
                if load.sequences or load.prefill_tokens:
                    yield replica.id, rank, load.prefill_tokens, load.sequences, load.prefilling
