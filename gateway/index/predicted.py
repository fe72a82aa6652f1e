"""Predicted holdings: blocks of dispatched requests, bounded by capacity, corrected by reported cached tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ReplicaId, Target
from gateway.index.radix_tree import Node, RadixTree


@dataclass(slots=True, eq=False)
class PredictedLease:
    """The nodes that a request added to a target's tree."""

    target: Target
    held_tokens: int
    tree: RadixTree
    nodes: Sequence[Node]
    chains: Sequence[BlockChain]
    again_blocks: Sequence[int]
    """Blocks of each prompt that were held and are computed again: the last one, if the prompt ends with it."""
    begun_at: int
    """The tree's clock at dispatch."""


class PredictedIndex:
    """Holdings predicted from dispatched requests and from the cached tokens that engines report.

    Args:
        default_blocks: Capacity of a replica until its metrics report it.
        speculative_ttl_seconds: How long dispatched blocks count before they are known to be computed.
    """

    def __init__(self, default_blocks: int, speculative_ttl_seconds: float) -> None:
        self._default_blocks = default_blocks
        self._ttl = speculative_ttl_seconds
        self._trees: dict[Target, RadixTree] = {}

    def depth(self, hashes: Sequence[BlockHash], limit: int, target: Target, now: float) -> int:
        """How many of the first ``limit`` blocks of a chain a target is expected to hold."""
        tree = self._trees.get(target)
        return 0 if tree is None else tree.find(hashes, limit, now)[0]

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> PredictedLease:
        """See ``PrefixIndex``."""
        tree = self._tree(target)
        clock = tree.clock
        held, again, nodes = 0, [], []
        # All prompts are looked up before the first of them becomes part of the tree.
        for chain, (depth, below) in [(chain, tree.find(chain.hashes, len(chain.hashes), now)) for chain in chains]:
            reusable = chain.reusable_blocks
            held += min(depth, reusable) * chain.block_size
            again.append(max(depth - reusable, 0))
            nodes.append(tree.insert(chain.hashes, now, partial=_is_partial(chain), below=below))
        return PredictedLease(target, held, tree, nodes, chains, again, clock)

    def computed(self, lease: PredictedLease) -> None:
        """See ``PrefixIndex``."""
        for node in lease.nodes:
            lease.tree.computed(node)

    def complete(self, lease: PredictedLease, cached_tokens: int | None, filled: Iterable[BlockChain]) -> None:
        """See ``PrefixIndex``."""
        tree = lease.tree
        self.computed(lease)
        if cached_tokens is not None and len(lease.chains) == 1 and cached_tokens < lease.held_tokens:
            # The first block predicted but not reused was evicted. Blocks used no later than it are evicted too, unless
            # another request has used that block since, or it was never known to be computed.
            lost_at = tree.stamp_at(lease.nodes[0], cached_tokens // lease.chains[0].block_size)
            if 0 < lost_at <= lease.begun_at:
                tree.forget_until(lost_at)
        for node, prompt in zip(lease.nodes, lease.chains, strict=True):
            tree.release(node, partial=_is_partial(prompt))
        for prompt, again in zip(lease.chains, lease.again_blocks, strict=True):
            if again:
                tree.recomputed(prompt.hashes, prompt.reusable_blocks, again)
        # Answers do not say which of several prompts they belong to, so their copies are known for one prompt only.
        end = lease.nodes[0] if len(lease.nodes) == 1 else None
        for chain in filled:
            hashes, partial = chain.hashes, _is_partial(chain)
            if end is not None:
                prompt_blocks = len(lease.chains[0].hashes)
                again = tree.find(hashes, len(hashes), 0.0, below=end)[0] - prompt_blocks
                if again > 0:
                    tree.recomputed(hashes, prompt_blocks, again)
            # Full blocks of generated tokens without text occupy capacity like any other.
            unread = chain.tokens // chain.block_size - len(hashes)
            if unread > 0:
                hashes = [*hashes, *map(BlockHash, tree.unknown(unread))]
            node = tree.insert(hashes, 0.0, partial=partial, below=end)
            tree.computed(node)
            tree.release(node, partial=partial)

    def abandon(self, lease: PredictedLease) -> None:
        """See ``PrefixIndex``."""
        for node, chain in zip(lease.nodes, lease.chains, strict=True):
            lease.tree.withdraw(node, partial=_is_partial(chain))

    def set_capacity(self, target: Target, blocks: int) -> None:
        """See ``PrefixIndex``."""
        tree = self._tree(target)
        if tree.capacity_blocks != blocks:
            tree.resize(blocks)

    def remove(self, target: Target) -> None:
        """See ``PrefixIndex``. Requests still running there keep their lease on the forgotten tree, harmlessly."""
        tree = self._trees.pop(target, None)
        if tree is not None:
            self._trees[target] = RadixTree(tree.capacity_blocks, self._ttl)

    def forget(self, replica: ReplicaId) -> None:
        """A replica has left: forget all of it."""
        for target in [target for target in self._trees if target.replica == replica]:
            del self._trees[target]

    def blocks(self, target: Target) -> int:
        """Blocks a target is expected to hold."""
        tree = self._trees.get(target)
        return 0 if tree is None else tree.blocks

    def _tree(self, target: Target) -> RadixTree:
        tree = self._trees.get(target)
        if tree is None:
            tree = self._trees[target] = RadixTree(self._default_blocks, self._ttl)
        return tree


def _is_partial(chain: BlockChain) -> bool:
    """Whether a prompt ends with a block that is not full."""
    return chain.tokens % chain.block_size > 0
