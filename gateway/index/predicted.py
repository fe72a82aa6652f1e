"""Predicted holdings: blocks of dispatched requests, bounded by capacity, corrected by reported cached tokens."""

from collections.abc import Iterable, Sequence

import msgspec

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ReplicaId, Target
from gateway.index.radix_tree import Node, RadixTree


class PredictedLease(msgspec.Struct, frozen=True, eq=False):
    """The nodes that a request added to a target's tree.

    Attributes:
        held_tokens: Prompt tokens that the target was expected to hold.
        tree: The tree.
        nodes: The node that each prompt ends with.
        chains: The prompts.
        partials: Whether each prompt ends with a block that is not full.
        again_blocks: Blocks of each prompt that were held and are computed again: the last one, if the prompt ends with
            it.
        begun_at: The tree's clock at dispatch.
    """

    held_tokens: int
    tree: RadixTree
    nodes: Sequence[Node]
    chains: Sequence[BlockChain]
    partials: Sequence[bool]
    again_blocks: Sequence[int]
    begun_at: int


class PredictedIndex:
    """Holdings predicted from dispatched requests and from the cached tokens that engines report.

    Args:
        default_blocks: Capacity of a replica until its metrics report it.
        speculative_ttl_seconds: How long dispatched blocks count before they are known to be computed.

    Attributes:
        trees: What each target is expected to hold.
    """

    def __init__(self, default_blocks: int, speculative_ttl_seconds: float) -> None:
        self._default_blocks = default_blocks
        self._ttl = speculative_ttl_seconds
        self.trees: dict[Target, RadixTree] = {}

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> PredictedLease:
        """See ``PrefixIndex``."""
        tree = self.trees.get(target) or self._plant(target)
        clock = tree.clock
        held, nodes, partials, again = 0, [], [], []
        # All prompts are looked up before the first of them becomes part of the tree.
        for chain, (depth, below) in [(chain, tree.find(chain.hashes, len(chain.hashes), now)) for chain in chains]:
            reusable, partial = chain.reusable_blocks, chain.tokens % chain.block_size > 0
            held += min(depth, reusable) * chain.block_size
            nodes.append(tree.insert(chain.hashes, now, partial=partial, below=below))
            partials.append(partial)
            again.append(max(depth - reusable, 0))
        return PredictedLease(held, tree, nodes, chains, partials, again, clock)

    def computed(self, lease: PredictedLease) -> None:
        """See ``PrefixIndex``."""
        for node in lease.nodes:
            if not node.computed:
                lease.tree.computed(node)

    def complete(self, lease: PredictedLease, cached_tokens: int | None, filled: Iterable[BlockChain]) -> None:
        """See ``PrefixIndex``."""
        tree = lease.tree
        self.computed(lease)
        if cached_tokens is not None and cached_tokens < lease.held_tokens and len(lease.chains) == 1:
            # The first block predicted but not reused was evicted. Blocks used no later than it are evicted too, unless
            # another request has used that block since, or it was never known to be computed.
            lost_at = tree.stamp_at(lease.nodes[0], cached_tokens // lease.chains[0].block_size)
            if 0 < lost_at <= lease.begun_at:
                tree.forget_until(lost_at)
        for node, partial in zip(lease.nodes, lease.partials, strict=True):
            tree.release(node, partial=partial)
        for prompt, again in zip(lease.chains, lease.again_blocks, strict=True):
            if again:
                tree.recomputed(prompt.hashes, prompt.reusable_blocks, again)
        # Answers do not say which of several prompts they belong to, so their copies are known for one prompt only.
        end = lease.nodes[0] if len(lease.nodes) == 1 else None
        for chain in filled:
            hashes = chain.hashes
            # Full blocks of generated tokens without text occupy capacity like any other. A report of more is wrong.
            unread = min(chain.tokens // chain.block_size - len(hashes), tree.capacity_blocks)
            if end is not None and unread <= 0 and hashes is lease.chains[0].hashes:
                continue  # decode filled no block: the prompt's are released already
            partial = chain.tokens % chain.block_size > 0
            if end is not None and end.children:
                prompt_blocks = len(lease.chains[0].hashes)
                again = tree.find(hashes, len(hashes), 0.0, below=end)[0] - prompt_blocks
                if again > 0:
                    tree.recomputed(hashes, prompt_blocks, again, parent=end)
            if unread > 0:
                hashes = [*hashes, *map(BlockHash, tree.unknown(unread))]
            node = tree.insert(hashes, 0.0, partial=partial, below=end)
            if not node.computed:
                tree.computed(node)
            tree.release(node, partial=partial)

    def abandon(self, lease: PredictedLease) -> None:
        """See ``PrefixIndex``."""
        for node, partial in zip(lease.nodes, lease.partials, strict=True):
            lease.tree.withdraw(node, partial=partial)

    def set_capacity(self, target: Target, blocks: int) -> None:
        """See ``PrefixIndex``."""
        tree = self.trees.get(target) or self._plant(target)
        if tree.capacity_blocks != blocks:
            tree.resize(blocks)

    def remove(self, target: Target) -> None:
        """See ``PrefixIndex``. Requests still running there keep their lease on the forgotten tree, harmlessly."""
        tree = self.trees.pop(target, None)
        if tree is not None:
            self.trees[target] = RadixTree(tree.capacity_blocks, self._ttl)

    def forget(self, replica: ReplicaId) -> None:
        """A replica has left: forget all of it."""
        for target in [target for target in self.trees if target.replica == replica]:
            del self.trees[target]

    def blocks(self, target: Target) -> int:
        """Blocks a target is expected to hold."""
        tree = self.trees.get(target)
        return 0 if tree is None else tree.blocks

    def _plant(self, target: Target) -> RadixTree:
        tree = self.trees[target] = RadixTree(self._default_blocks, self._ttl)
        return tree
