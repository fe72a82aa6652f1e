"""The prefix index: which target holds which blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ModelId, Target
from gateway.core.kv_events import FeedState, IndexSource, KvEvent, Unmatched
from gateway.core.request import ChatRequest


class Lease(Protocol):
    """A request's hold on the blocks of its prompts at one target, from dispatch to the end of the answer."""

    @property
    def held_tokens(self) -> int:
        """Prompt tokens expected to be cached there at dispatch: the prediction."""
        ...


class Holding(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens of a request that a target is expected to hold.

    Attributes:
        tokens: Prompt tokens it need not compute.
        worth: The same, with tokens on a slower medium weighted less, because fetching them takes time.
    """

    tokens: int
    worth: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index's state of one target, for the admin port.

    Attributes:
        source: Where the holdings come from: events or predictions.
        blocks: Blocks expected to be held.
        digest: Equal in two gateways with equal holdings from events; None without events.
    """

    source: IndexSource
    blocks: int
    digest: int | None


class PrefixIndex(Protocol):
    """Which target holds which blocks. Synchronous, without I/O; ``now`` is monotonic seconds."""

    def holdings(self, chains: Sequence[BlockChain], targets: Sequence[Target], now: float) -> list[Holding]:
        """Holdings of each target, summed over the prompts of a request; zero for an unknown target.

        Args:
            chains: One per prompt, all with the targets' block size.
            targets: The candidates.
            now: Monotonic seconds.
        """
        ...

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> Lease:
        """A request was sent to a target: expect its blocks there for a short time, so that a burst stays together."""
        ...

    def computed(self, lease: Lease) -> None:
        """The target began to answer: the prompt's blocks are in its cache."""
        ...

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain], now: float) -> None:
        """The answer is complete.

        Args:
            lease: What ``begin`` returned; not to be used again.
            cached_tokens: What the engine reported as reused; None if it reports nothing. Less than the prediction
                means that older blocks are gone too.
            filled: The blocks that the request left in the engine's cache, one chain per choice: ``tokens`` counts all
                computed tokens; the hashes end earlier if the generated tokens are unknown.
            now: Monotonic seconds.
        """
        ...

    def abandon(self, lease: Lease) -> None:
        """The request was not computed: remove the blocks that only it was expected to bring."""
        ...

    def set_capacity(self, target: Target, blocks: int | None, *, caching: bool = True) -> None:
        """Set the target's capacity; None if unknown. With ``caching`` off the target holds nothing."""
        ...

    def remove(self, target: Target) -> None:
        """Remove the holdings of a target that left or restarted."""
        ...

    def block_size(self, target: Target) -> int | None:
        """Tokens per block according to the target's events; None without events."""
        ...

    def state(self, target: Target) -> IndexState:
        """The state of one target."""
        ...


class PrefixUse(msgspec.Struct, frozen=True, gc=False):
    """A request that used a prefix; shown with the prefix at the admin port.

    Attributes:
        model: Id of the model.
        tenant: Id of the tenant.
        source: Client family.
        request_id: Its id.
    """

    model: str
    tenant: str
    source: str
    request_id: str


class SettledPrompt(NamedTuple):
    """An answered request with one prompt, and how much of it was cached.

    Attributes:
        request: The request as it was sent.
        ids: Token ids of its prompt, as in ``TokenizedPrompt``; empty if they are placeholders or stand for media.
        chain: The prompt's block chain.
        target: Where it was sent.
        reused_tokens: Prompt tokens that were cached there: as the engine reported, else as predicted.
        prefill_seconds_per_token: The replica's learned rate.
        at: Unix seconds.
    """

    request: ChatRequest
    ids: bytes
    chain: BlockChain
    target: Target
    reused_tokens: int
    prefill_seconds_per_token: float
    at: float


class PromptObserver(Protocol):
    """Gets the prompts of answered requests, of clients and of warm-up. Must not wait."""

    @property
    def awaits_clients(self) -> bool:
        """Whether it is to get the prompts of clients' requests now; those of warm-up it always gets."""
        ...

    def on_prompt(self, prompt: SettledPrompt) -> None:
        """A request was answered."""
        ...


class EventIndex(Protocol):
    """The part of the index that KV events feed. Synchronous, without I/O."""

    def apply(self, target: Target, event: KvEvent) -> None:
        """Apply one event. A target's events have to be in the engine's order. Never raises for invalid events."""
        ...

    def advance(self, target: Target) -> bool:
        """Do a portion of the work that ``apply`` deferred; returns whether there is more.

        ``apply`` does a bounded part of the work that one event causes (a block that thousands waited for, the last
        block of a chain). The next ``apply`` would finish the rest at once, so call this until it returns False.
        """
        ...

    def clear(self, target: Target) -> None:
        """Remove the holdings of a target that come from events."""
        ...

    def set_feed(self, target: Target, state: FeedState) -> None:
        """Set the state of a target's event feed."""
        ...

    def problem(self, target: Target) -> str:
        """Why a target's events do not say what it can reuse, so that it is predicted; empty if they do."""
        ...

    def is_complete(self, target: Target) -> bool:
        """Whether the events cover the target's whole cache, even if some of them were missed."""
        ...

    def is_impossible(self, target: Target) -> bool:
        """Whether the blocks from events exceed the capacity of the target's cache."""
        ...

    def unmatched(self, target: Target) -> Unmatched:
        """The blocks that matched nothing since the target's first event."""
        ...

    def is_contradicted(self, target: Target, blocks: int) -> bool:
        """Whether so many blocks that match nothing are more than a cache that counts as known can have."""
        ...

    def tidy(self) -> None:
        """Do a part of the deferred cleaning up. Called about twice a second."""
        ...


class BlockHasher(Protocol):
    """Chain hashes of blocks that an engine describes."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """The root hash of a prompt's chain."""
        ...

    def extend(
        self, parent: int, tokens: bytes, block_size: int, extras: Sequence[bytes | None] | None
    ) -> list[BlockHash]:
        """Hashes of the full blocks of ``tokens`` (little-endian u32) behind ``parent``; extras as in ``BlockStored``,
        one per block."""
        ...
