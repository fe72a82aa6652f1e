"""The protocols through which rooms see each other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.values.blocks import BlockChain
from gateway.values.ids import ModelId, ReplicaId
from gateway.values.load import Rates
from gateway.values.settlement import Refusal, Settlement


class EngineUnavailable(Exception):
    """No replica of a model could answer an auxiliary call.

    Attributes:
        status: The engine's HTTP status where it gave one (403 and 404 mean: this endpoint will not appear by itself).
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineCaller(Protocol):
    """Auxiliary calls to whichever replica of a model answers."""

    async def ask(self, model: ModelId, path: str, body: bytes, timeout_seconds: float) -> bytes:
        """POST a JSON body to ``path`` of one routable replica and return the body of its 200 answer.

        Raises:
            EngineUnavailable: no replica is up, none answered in time, or the answer was not 200.
        """
        ...


class Lease(Protocol):
    """A request's hold on the blocks of its prompts at one replica, from dispatch to the end of the answer."""

    @property
    def replica(self) -> ReplicaId:
        """Where the request was sent."""
        ...

    @property
    def held_tokens(self) -> int:
        """Prompt tokens the index believed cached there at dispatch: the prediction."""
        ...


class PrefixIndex(Protocol):
    """Who holds which prefix. Synchronous, without I/O; ``now`` is monotonic seconds."""

    def holdings(self, chains: Sequence[BlockChain], replica: ReplicaId, now: float) -> int:
        """Prompt tokens of a request the replica is believed to hold, summed over its prompts. Unknown replica: 0."""
        ...

    def begin(self, chains: Sequence[BlockChain], replica: ReplicaId, now: float) -> Lease:
        """A request was sent to a replica: believe in its blocks for a short while, so that a burst stays together."""
        ...

    def computed(self, lease: Lease) -> None:
        """The replica has begun to answer, so the prompt's blocks are in its cache."""
        ...

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain]) -> None:
        """The answer is complete.

        Args:
            lease: What ``begin`` returned; not to be used again.
            cached_tokens: What the engine reported as reused; None if it reports nothing. Less than the prediction
                means that older blocks are gone too.
            filled: What the request left in the engine's cache, one chain per choice: ``tokens`` counts all that was
                computed, the hashes may end before where the generated tokens are not known.
        """
        ...

    def abandon(self, lease: Lease) -> None:
        """The request was never computed: forget what only it had brought."""
        ...

    def set_capacity(self, replica: ReplicaId, blocks: int, *, caching: bool = True) -> None:
        """What the engine can hold. With ``caching`` off the replica holds nothing."""
        ...

    def remove(self, replica: ReplicaId) -> None:
        """Forget a replica that left or restarted."""
        ...

    def statistics(self) -> Mapping[ReplicaId, int]:
        """Blocks believed held, per replica."""
        ...


class RateLearner(Protocol):
    """How fast one replica is, learned from its answers."""

    @property
    def rates(self) -> Rates:
        """The present belief."""
        ...

    def observe_first_token(self, prefill_tokens: int, seconds: float) -> None:
        """A first token came ``seconds`` after dispatch, ``prefill_tokens`` having been prefilled meanwhile."""
        ...

    def observe_decode(self, completion_tokens: int, seconds: float) -> None:
        """``completion_tokens`` after the first took ``seconds``."""
        ...

    def observe_request(self, prefill_tokens: int, completion_tokens: int, seconds: float, *, streamed: bool) -> None:
        """A whole request took ``seconds``."""
        ...


class Sink(Protocol):
    """Where an answer goes: the client's connection."""

    @property
    def gone(self) -> bool:
        """Whether the client closed the connection."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether the answer has to be ended because the gateway is shutting down."""
        ...

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send status and headers."""
        ...

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body; with ``more`` false it is the last one."""
        ...


class Observer(Protocol):
    """Somebody who wants to know of finished requests. Must not raise and must not wait."""

    def on_settled(self, settlement: Settlement) -> None:
        """A request is over."""
        ...

    def on_refused(self, refusal: Refusal) -> None:
        """A request was answered before it got anywhere."""
        ...
