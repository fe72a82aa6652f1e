"""Who holds which prefix."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ModelId, Target
from gateway.core.kv_events import FeedState, IndexSource, KvEvent


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


class PrefixUse(NamedTuple):
    """A request that used a prefix, for people to recognize the prefix by.

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


class PrefixUses(Protocol):
    """Somebody who follows which prefixes requests have in common. Synchronous, without I/O."""

    def note(self, chain: BlockChain, reused_tokens: int, use: PrefixUse, now: float) -> None:
        """A request was answered.

        Args:
            chain: Its prompt.
            reused_tokens: Prompt tokens that were not computed again: where it parts from those before it.
            use: The request.
            now: Unix seconds.
        """
        ...


class EventIndex(Protocol):
    """The part of the index that KV events feed. Synchronous, without I/O."""

    def apply(self, target: Target, event: KvEvent) -> None:
        """Take over one event. Events of a target have to come in the engine's order. Never raises for odd events."""
        ...

    def advance(self, target: Target) -> bool:
        """Do a portion of the work that ``apply`` has left over; returns whether there is more.

        ``apply`` does a bounded part of what one event can cause (a block that thousands waited for, the last block of
        a chain whose others are gone). It finishes what is left before the next event, so call this until it is done.
        """
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
