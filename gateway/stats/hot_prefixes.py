"""Hot prefixes: the prefixes shared by many requests, ranked by their current use.

The reused length of a prompt shows where it diverges from all earlier prompts. After a shared prefix, prompts diverge
at the same block again and again; the turns of a conversation diverge at a different block each. So a prefix is tracked
once two requests diverged at its end. Tracked prefixes form a tree: where two of them diverge, their common prefix is
tracked, too. A request counts for every tracked prefix of its prompt, cached or not.

Counts decay exponentially, so they describe the last minutes. Memory is bounded: when there are too many prefixes,
those that represent the fewest tokens are dropped; their requests remain counted in the shorter prefixes above them.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash
from gateway.core.ports import PrefixUse

_MAX_BLOCKS = 4096
"""Longest tracked prefix: 65,536 tokens in blocks of 16, kept in 32 KiB. Longer prompts count for their prefixes."""

_MAX_PLACES = 8192
"""Divergence points held per generation: several seconds' worth at a thousand requests per second."""

_MIN_REQUESTS = 0.01
"""Prefixes with fewer (decayed) requests are not listed: one request decays to this in about seven half-lives."""


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A prefix shared by several requests.

    Attributes:
        chain: Its blocks, all of them reusable.
        tokens: Its length.
        requests: Number of requests that begin with it, decayed by age.
        reused_tokens: Hit tokens of these requests within the prefix, decayed by age.
        last_used: Unix seconds of the last request.
        last_use: The last request.
    """

    chain: BlockChain
    tokens: int
    requests: float
    reused_tokens: float
    last_used: float
    last_use: PrefixUse

    @property
    def id(self) -> str:
        """Hash of its last block: 16 hexadecimal digits."""
        return f"{self.chain.hashes[-1]:016x}"


class _Node:
    """A tracked prefix.

    Attributes:
        parent: The longest tracked prefix of this one.
        hashes: Its whole chain.
        block_size: Tokens per block.
        depth: Number of blocks.
        children: Longer prefixes with this as parent, by their first block after it.
        requests: As in ``HotPrefix``, at ``used_at``.
        reused_tokens: As in ``HotPrefix``, at ``used_at``.
        used_at: Unix seconds of its last use.
        use: Its last use.
    """

    __slots__ = ("block_size", "children", "depth", "hashes", "parent", "requests", "reused_tokens", "use", "used_at")

    def __init__(self, parent: "_Node | None", hashes: "array[int]", block_size: int, now: float) -> None:
        self.parent = parent
        self.hashes = hashes
        self.block_size = block_size
        self.depth = len(hashes)
        self.children: dict[int, _Node] = {}
        self.requests = 0.0
        self.reused_tokens = 0.0
        self.used_at = now
        self.use = PrefixUse("", "", "", "")

    @property
    def own_tokens(self) -> int:
        """Tokens beyond those of its parent."""
        return (self.depth - (self.parent.depth if self.parent else 0)) * self.block_size


class HotPrefixes:
    """Ranks prefixes by how many requests share them. Synchronous, without I/O.

    Args:
        most: Maximum number of tracked prefixes.
        half_life_seconds: Half-life of counts.
    """

    def __init__(self, most: int = 256, half_life_seconds: float = 300.0) -> None:
        self.half_life_seconds = half_life_seconds
        self._most = most
        self._root = _Node(None, array("Q"), 0, 0.0)
        self._nodes: dict[int, _Node] = {}
        # Two generations: when the young one is full it becomes the old one.
        self._young: set[int] = set()
        self._old: set[int] = set()

    def note(self, chain: BlockChain, reused_tokens: int, use: PrefixUse, now: float) -> None:
        """Count an answered request.

        Args:
            chain: Its prompt.
            reused_tokens: Prompt tokens that were cached: the length of the prefix shared with earlier prompts.
            use: The request.
            now: Unix seconds.
        """
        hashes, blocks = chain.hashes, len(chain.hashes)
        place = min(reused_tokens // chain.block_size, blocks)
        if (
            0 < place <= _MAX_BLOCKS
            and hashes[place - 1] not in self._nodes
            and self._diverged_before(hashes[place - 1])
        ):
            self._track(hashes, place, chain.block_size, now)
        node = self._root
        while node.depth < blocks:
            child = node.children.get(hashes[node.depth])
            if child is None or child.depth > blocks or child.hashes[-1] != hashes[child.depth - 1]:
                return
            node = child
            if now > node.used_at:
                left = 0.5 ** ((now - node.used_at) / self.half_life_seconds)
                node.requests *= left
                node.reused_tokens *= left
                node.used_at = now
            node.requests += 1
            node.reused_tokens += min(reused_tokens, node.depth * chain.block_size)
            node.use = use

    def hottest(self, model: str, limit: int, now: float) -> list[HotPrefix]:
        """The prefixes that represent most prompt tokens: requests times the tokens beyond the next shorter prefix.

        Args:
            model: Only prefixes of this model; empty for all models.
            limit: Maximum number.
            now: Unix seconds.
        """
        wanted = [
            node
            for node in self._nodes.values()
            if (not model or node.use.model == model) and self._requests(node, now) >= _MIN_REQUESTS
        ]
        return [self._shown(node, now) for node in heapq.nlargest(limit, wanted, key=lambda p: self._heat(p, now))]

    def _diverged_before(self, place: int) -> bool:
        """Whether a request diverged at this block before; records that one did."""
        if place in self._young or place in self._old:
            return True
        if len(self._young) >= _MAX_PLACES:
            self._old, self._young = self._young, set()
        self._young.add(place)
        return False

    def _track(self, hashes: Sequence[BlockHash], depth: int, block_size: int, now: float) -> None:
        """Track a prefix, and its common prefix with another tracked one if they diverge."""
        if len(self._nodes) > self._most - 2:
            self._prune(now)
        parent = self._root
        while parent.depth < depth and (child := parent.children.get(hashes[parent.depth])) is not None:
            common = _common(child.hashes, hashes, parent.depth + 1, min(child.depth, depth))
            parent = child if common == child.depth else self._split(child, common)
        if parent.depth < depth:
            self._put(_Node(parent, array("Q", hashes[:depth]), block_size, now))

    def _split(self, node: _Node, depth: int) -> _Node:
        """Insert a prefix of ``depth`` blocks between a node and its parent; returns it."""
        upper = _Node(node.parent, node.hashes[:depth], node.block_size, node.used_at)
        upper.requests = node.requests
        upper.reused_tokens = min(node.reused_tokens, node.requests * depth * node.block_size)
        upper.use = node.use
        self._put(upper)
        upper.children[node.hashes[depth]] = node
        node.parent = upper
        return upper

    def _put(self, node: _Node) -> None:
        assert node.parent is not None
        node.parent.children[node.hashes[node.parent.depth]] = node
        self._nodes[node.hashes[-1]] = node

    def _prune(self, now: float) -> None:
        """Drop the quarter of the prefixes that represents the fewest tokens, in one go because ranking reads them all.

        A node with several children stays.
        """
        loose = [node for node in self._nodes.values() if len(node.children) < 2]
        for node in heapq.nsmallest(max(self._most // 4, 2), loose, key=lambda p: self._heat(p, now)):
            parent = node.parent
            assert parent is not None
            del self._nodes[node.hashes[-1]]
            place = node.hashes[parent.depth]
            del parent.children[place]
            for child in node.children.values():
                child.parent = parent
                parent.children[place] = child

    def _requests(self, node: _Node, now: float) -> float:
        return node.requests * self._decay(node, now)

    def _heat(self, node: _Node, now: float) -> float:
        """Prompt tokens that a node represents, beyond those of its parent."""
        return self._requests(node, now) * node.own_tokens

    def _decay(self, node: _Node, now: float) -> float:
        """The factor by which a node's counts have decayed at ``now``."""
        return float(0.5 ** (max(now - node.used_at, 0.0) / self.half_life_seconds))

    def _shown(self, node: _Node, now: float) -> HotPrefix:
        tokens = node.depth * node.block_size
        hashes = [BlockHash(each) for each in node.hashes]
        return HotPrefix(
            # One token more: the last token of a prompt is never reused, and this is not the end of a prompt.
            chain=BlockChain(hashes, node.block_size, tokens + 1),
            tokens=tokens,
            requests=self._requests(node, now),
            reused_tokens=node.reused_tokens * self._decay(node, now),
            last_used=node.used_at,
            last_use=node.use,
        )


def _common(tracked: "array[int]", hashes: Sequence[BlockHash], known: int, limit: int) -> int:
    """Number of blocks a tracked prefix and a chain have in common, of the first ``limit``; at least ``known``."""
    # Chained hashes agree up to one boundary, which bisection finds.
    return bisect_left(range(limit), True, lo=known, key=lambda i: tracked[i] != hashes[i])
