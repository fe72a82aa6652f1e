"""The cache that one replica is predicted to have: a compressed prefix tree with the engine's eviction order.

A node is a run of consecutive blocks without a branch. Because block hashes are chained, the last hash of a run stands
for the whole path to it, so a lookup compares one number per node, and a node costs eight bytes a block.

Eviction follows vLLM's free queue (``vllm/v1/core/block_pool.py``): a finished request's blocks are freed tail first, a
hit takes a block out of the queue, allocation takes the front. So the blocks go that were used longest ago, and of
those used by one request the end goes before the beginning. In the tree: the leaf with the oldest stamp loses its last
blocks first, and a parent never goes before its children. Blocks of running requests stay. A block that is not full has
no hash and cannot be reused; the engine puts it in front of the queue, so it takes memory only while its request runs.
"""

import heapq
import itertools
from array import array
from bisect import bisect_left
from collections.abc import Container, Sequence

from gateway.core.ids import BlockHash


class Node:
    """A run of blocks below a parent, which gets it as a child.

    Attributes:
        hashes: Chain hashes of the run, at least one (none for the root).
        depth: Blocks above the run.
        stamp: When a request that went through here last ended, on the tree's own counter; 0 for never.
        pins: Running requests whose prompt ends with this run.
        computed: Whether the engine is known to have computed it. Until then it is speculative.
        created_at: Monotonic seconds of its creation.
    """

    __slots__ = ("children", "computed", "created_at", "depth", "hashes", "parent", "pins", "stamp")

    def __init__(self, parent: "Node | None", hashes: "array[int]", depth: int, created_at: float, stamp: int) -> None:
        self.parent = parent
        if parent is not None:
            parent.children[hashes[0]] = self
        self.hashes = hashes
        self.depth = depth
        self.children: dict[int, Node] = {}
        self.stamp = stamp
        self.pins = 0
        self.computed = False
        self.created_at = created_at


class RadixTree:
    """The believed cache content of one replica.

    Args:
        capacity_blocks: Blocks the engine can use.
        speculative_ttl_seconds: How long blocks count that were sent but are not known to be computed.

    Attributes:
        capacity_blocks: The same.
        blocks: Blocks in the tree, with those that are not full.
        beginnings: The first block of every chain in the tree.
        clock: The counter that stamps are taken from.
    """

    def __init__(self, capacity_blocks: int, speculative_ttl_seconds: float) -> None:
        self.capacity_blocks = capacity_blocks
        self.blocks = 0
        self._ttl = speculative_ttl_seconds
        self._root = Node(None, array("Q"), 0, 0.0, 0)
        self._root.computed = True
        self.beginnings: Container[int] = self._root.children
        self.clock = 0
        self._order = itertools.count()
        self._unknown = itertools.count()
        # Leaves by stamp; an entry whose stamp is no longer the node's, or whose node is no leaf any more, is stale.
        self._leaves: list[tuple[int, int, Node]] = []
        self._sweep_at = 64

    def find(
        self, hashes: Sequence[BlockHash], limit: int, now: float, *, below: Node | None = None
    ) -> tuple[int, Node]:
        """Look up the first ``limit`` blocks of a chain.

        Args:
            hashes: The chain.
            limit: Blocks to look at.
            now: Monotonic seconds.
            below: See ``insert``.

        Returns:
            How many of them are held, and the last node that the chain goes through to its end.
        """
        node = self._root if below is None or below.parent is None else below
        depth = node.depth + len(node.hashes)
        while depth < limit:
            child = node.children.get(hashes[depth])
            if child is None or not (child.computed or now - child.created_at <= self._ttl):
                break
            end = depth + len(child.hashes)
            if end > limit or child.hashes[-1] != hashes[end - 1]:
                return _common(child, hashes, limit), node
            node, depth = child, end
        return depth, node

    def insert(
        self, hashes: Sequence[BlockHash], now: float, *, partial: bool = False, below: Node | None = None
    ) -> Node:
        """Make a chain part of the tree, pin its end, and evict what no longer fits.

        Args:
            hashes: The chain.
            now: Monotonic seconds.
            partial: Whether an unfinished block follows; it occupies capacity until the node is released or withdrawn.
            below: A node that the chain is known to go through: the path to it is not compared again. It may have been
                evicted meanwhile.

        Returns:
            The node it ends with.
        """
        node = self._root if below is None or below.parent is None else below
        depth, total = node.depth + len(node.hashes), len(hashes)
        while depth < total:
            child = node.children.get(hashes[depth])
            if child is None:
                node = Node(node, array("Q", hashes[depth:]), depth, now, 0)
                self.blocks += total - depth
                break
            if not child.computed and now - child.created_at > self._ttl:
                child.created_at = now  # dispatched again: counts for another TTL
            end = depth + len(child.hashes)
            if end > total or child.hashes[-1] != hashes[end - 1]:
                end = _common(child, hashes, total)
                child = self._split(child, end)
            node, depth = child, end
        node.pins += 1
        self.blocks += partial
        if self.blocks > self.capacity_blocks:
            self._evict()
        return node

    def recomputed(self, hashes: Sequence[BlockHash], start: int, count: int, *, parent: Node | None = None) -> None:
        """Blocks ``start`` to ``start + count`` of a held chain were computed again: the engine now has them twice.

        Engines do not merge equal blocks. From now on the chain refers to the new copies. The old ones have the same
        content and occupy capacity until they are evicted.

        Args:
            hashes: The chain.
            start: Blocks in front of those.
            count: How many there are.
            parent: The node that ends in front of them, where it is known to be in the tree.
        """
        if parent is None:
            parent = self.insert(hashes[:start], 0.0)
            parent.pins -= 1  # what follows keeps it
        end = self.insert(hashes[: start + count], 0.0, below=parent)
        copies = Node(parent, self.unknown(count), start, 0.0, self.stamp_at(end, start))
        copies.computed = True
        self.blocks += count
        end.pins -= 1
        self._offer(end)
        self._offer(copies)
        if self.blocks > self.capacity_blocks:
            self._evict()

    def unknown(self, count: int) -> "array[int]":
        """Unique hashes for blocks of unknown content, which no request can match."""
        return array("Q", itertools.islice(self._unknown, count))

    def computed(self, node: Node) -> None:
        """The engine has computed everything up to the end of a node."""
        current: Node | None = node
        while current is not None and not current.computed:
            current.computed = True
            current = current.parent

    def release(self, node: Node, *, partial: bool = False) -> None:
        """A request that ended with this node is over: unpin it and make its path the most recently used.

        Args:
            node: The node.
            partial: As given to ``insert``.
        """
        node.pins -= 1
        self.blocks -= partial
        self.clock = clock = self.clock + 1
        current: Node | None = node
        while current is not None:
            current.stamp = clock
            current = current.parent
        if not node.children:
            self._offer(node)
        if self.blocks > self.capacity_blocks:
            self._evict()

    def withdraw(self, node: Node, *, partial: bool = False) -> None:
        """A request that ended with this node never ran: remove the blocks that only it had added.

        Args:
            node: The node.
            partial: As given to ``insert``.
        """
        node.pins -= 1
        self.blocks -= partial
        current = node
        while not current.computed and not current.children and current.pins == 0 and current.parent is not None:
            parent = current.parent
            self._drop(current)
            current = parent
        self._offer(current)

    def stamp_at(self, node: Node, depth: int) -> int:
        """Stamp of block ``depth`` (from 0) on the path to ``node``."""
        current = node
        while current.parent is not None and current.depth > depth:
            current = current.parent
        return current.stamp

    def forget_until(self, stamp: int) -> int:
        """Evict every unpinned block last used at or before a stamp. Returns how many went.

        For when the engine turns out to have evicted a block of that age: its queue is in order, so everything in
        front of that block went before it.
        """
        before = self.blocks
        self._evict(stamp)
        return before - self.blocks

    def resize(self, capacity_blocks: int) -> None:
        """Change the capacity, evicting what no longer fits."""
        self.capacity_blocks = capacity_blocks
        if self.blocks > self.capacity_blocks:
            self._evict()

    def _split(self, node: Node, depth: int) -> Node:
        """Cut a node's run at ``depth``; the lower part stays the same object, so pins and leases keep their end."""
        parent = node.parent
        assert parent is not None
        cut = depth - node.depth
        upper = Node(parent, node.hashes[:cut], node.depth, node.created_at, node.stamp)
        upper.computed = node.computed
        node.hashes = node.hashes[cut:]
        node.depth = depth
        node.parent = upper
        upper.children[node.hashes[0]] = node
        return upper

    def _drop(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.hashes[0]]
        node.parent = None
        self.blocks -= len(node.hashes)

    def _offer(self, node: Node) -> None:
        """Put a node among the leaves that may be evicted, if it is one."""
        if node.children or node.pins or node.parent is None:
            return
        heapq.heappush(self._leaves, (node.stamp, next(self._order), node))
        if len(self._leaves) > self._sweep_at:
            self._leaves = [entry for entry in self._leaves if _is_current(entry)]
            heapq.heapify(self._leaves)
            self._sweep_at = 64 + 2 * len(self._leaves)

    def _evict(self, until_stamp: int | None = None) -> None:
        while self._leaves and (self.blocks > self.capacity_blocks or until_stamp is not None):
            entry = self._leaves[0]
            stamp, _, node = entry
            if not _is_current(entry):
                heapq.heappop(self._leaves)
                continue
            if until_stamp is not None and stamp > until_stamp and self.blocks <= self.capacity_blocks:
                return
            excess = (
                len(node.hashes)
                if until_stamp is not None and stamp <= until_stamp
                else self.blocks - self.capacity_blocks
            )
            if excess < len(node.hashes):
                del node.hashes[-excess:]
                self.blocks -= excess
                continue
            heapq.heappop(self._leaves)
            parent = node.parent
            assert parent is not None
            self._drop(node)
            self._offer(parent)


def _is_current(entry: tuple[int, int, Node]) -> bool:
    stamp, _, node = entry
    return node.stamp == stamp and not node.children and not node.pins and node.parent is not None


def _common(node: Node, hashes: Sequence[BlockHash], limit: int) -> int:
    """Depth up to which a node's run and a chain agree; they agree on the run's first block, and not on all of it."""
    run, depth = node.hashes, node.depth
    end = min(depth + len(run), limit)
    if run[end - depth - 1] == hashes[end - 1]:
        return end
    # Agreement is a prefix property, so the boundary can be found by bisection.
    return bisect_left(range(end), True, lo=depth + 1, key=lambda i: run[i - depth] != hashes[i])
