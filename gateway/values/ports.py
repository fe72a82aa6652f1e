"""The protocols through which rooms see each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.values.blocks import BlockChain
from gateway.values.ids import BlockHash, ModelId, ReplicaId, Target
from gateway.values.kv_events import FeedState, IndexSource, KvEvent
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


class EngineReader(Protocol):
    """What an engine says about itself."""

    async def read(self, replica: ReplicaId, path: str, timeout_seconds: float) -> bytes:
        """GET ``path`` of one replica and return the body of its 200 answer.

        Raises:
            EngineUnavailable: it did not answer in time, or not with 200.
        """
        ...


class EventObserver(Protocol):
    """Somebody who counts KV events. Must not raise and must not wait."""

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """Events of a kind (``stored``, ``removed``, ``cleared``, ``unknown``) came in."""
        ...

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """Batches of events are missing."""
        ...


class Lease(Protocol):
    """A request's hold on the blocks of its prompts at one target, from dispatch to the end of the answer."""

    @property
    def held_tokens(self) -> int:
        """Prompt tokens the index believed cached there at dispatch: the prediction."""
        ...


class Holding(NamedTuple):
    """What a target is believed to hold of a request.

    Attributes:
        tokens: Prompt tokens it need not compute.
        worth: The same, with tokens on a slower medium counted for less, because fetching them takes time.
    """

    tokens: int
    worth: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """What the index knows of one target, for people to look at.

    Attributes:
        source: What the belief rests on at present.
        blocks: Blocks believed held.
        digest: A number that two gateways share when the same events left them the same holdings; None without events.
    """

    source: IndexSource
    blocks: int
    digest: int | None


class PrefixIndex(Protocol):
    """Who holds which prefix. Synchronous, without I/O; ``now`` is monotonic seconds."""

    def holdings(self, chains: Sequence[BlockChain], targets: Sequence[Target], now: float) -> list[Holding]:
        """What each target is believed to hold of a request, summed over its prompts. An unknown target: nothing.

        Args:
            chains: One per prompt, all with the targets' block size.
            targets: Whom to look at.
            now: Monotonic seconds.
        """
        ...

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> Lease:
        """A request was sent to a target: believe in its blocks for a short while, so that a burst stays together."""
        ...

    def computed(self, lease: Lease) -> None:
        """The target has begun to answer, so the prompt's blocks are in its cache."""
        ...

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain], now: float) -> None:
        """The answer is complete.

        Args:
            lease: What ``begin`` returned; not to be used again.
            cached_tokens: What the engine reported as reused; None if it reports nothing. Less than the prediction
                means that older blocks are gone too.
            filled: What the request left in the engine's cache, one chain per choice: ``tokens`` counts all that was
                computed, the hashes may end before where the generated tokens are not known.
            now: Monotonic seconds.
        """
        ...

    def abandon(self, lease: Lease) -> None:
        """The request was never computed: forget what only it had brought."""
        ...

    def set_capacity(self, target: Target, blocks: int | None, *, caching: bool = True) -> None:
        """What the engine can hold; None if it does not say. With ``caching`` off the target holds nothing."""
        ...

    def remove(self, target: Target) -> None:
        """Forget a target that left or restarted."""
        ...

    def block_size(self, target: Target) -> int | None:
        """Tokens per block of the chains a target is known by, if its events have told; else its metrics do."""
        ...

    def state(self, target: Target) -> IndexState:
        """What is known of one target."""
        ...


class EventIndex(Protocol):
    """The part of the index that KV events feed. Synchronous, without I/O."""

    def apply(self, target: Target, event: KvEvent) -> None:
        """Take over one event. Events of a target have to come in the engine's order. Never raises for odd events."""
        ...

    def clear(self, target: Target) -> None:
        """Forget what events have told about a target."""
        ...

    def set_feed(self, target: Target, state: FeedState) -> None:
        """How far the events of a target can be trusted from now on."""
        ...

    def is_complete(self, target: Target) -> bool:
        """Whether what events have told accounts for the target's whole cache, even if some of them were missed."""
        ...

    def is_impossible(self, target: Target) -> bool:
        """Whether events have told of more than the target's cache has room for."""
        ...

    def tidy(self) -> None:
        """Do some of the cleaning up that was put off. Called about twice a second."""
        ...


class BlockHasher(Protocol):
    """Chain hashes of blocks that an engine describes."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """Where the chain of a prompt begins."""
        ...

    def extend(
        self, parent: int, tokens: bytes, block_size: int, extras: Sequence[bytes | None] | None
    ) -> list[BlockHash]:
        """Hashes of the full blocks of ``tokens`` (little-endian u32) behind ``parent``; extras as in ``BlockStored``,
        one per block."""
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
