"""The prefixes that many requests have in common, by how much they are asked for at present.

How far a prompt was reused tells where it parts from all that came before it. Behind a shared prefix, prompts part at
the same place again and again; the turns of a conversation each part at another one. So a place is followed once two
requests parted there. Prefixes of prefixes are a tree: where two of them part from each other, there is a shared one,
too. A request counts for every followed prefix that it begins with, whether that was cached or not.

Counts decay, so that they tell of the last minutes. Memory is bounded: of too many prefixes those go that stand for the
fewest tokens, and what they counted stays with the shorter ones they begin with.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash
from gateway.core.ports import PrefixUse

_MOST_BLOCKS = 4096
"""Longest prefix that is followed: 65,536 tokens in blocks of 16, kept in 32 KiB. Longer ones count for their parts."""

_MOST_PLACES = 8192
"""Places at which one request parted that are remembered, twice: seconds of them at a thousand requests a second."""

_FORGOTTEN_REQUESTS = 0.01
"""What was asked for less than that is not shown: one request, not quite seven half-lives ago."""


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A prefix that several requests have in common.

    Attributes:
        chain: Its blocks, all of them reusable.
        tokens: Its length.
        requests: How many requests begin with it, older ones counted for less.
        reused_tokens: How many of its tokens these did not have to compute, counted likewise.
        last_used: Unix seconds of the last of them.
        last_use: That request.
    """

    chain: BlockChain
    tokens: int
    requests: float
    reused_tokens: float
    last_used: float
    last_use: PrefixUse

    @property
    def id(self) -> str:
        """Its last block's hash: 16 hexadecimal digits."""
        return f"{self.chain.hashes[-1]:016x}"


class _Part:
    """A followed prefix.

    Attributes:
        parent: The longest followed one it begins with.
        hashes: Its whole chain.
        block_size: Tokens per block.
        depth: Blocks.
        children: Those of which this is the parent, by their first block behind it.
        requests: As in ``HotPrefix``, as of ``used_at``.
        reused_tokens: Likewise.
        used_at: Unix seconds of its last use.
        use: Its last use.
    """

    __slots__ = ("block_size", "children", "depth", "hashes", "parent", "requests", "reused_tokens", "use", "used_at")

    def __init__(self, parent: "_Part | None", hashes: "array[int]", block_size: int, now: float) -> None:
        self.parent = parent
        self.hashes = hashes
        self.block_size = block_size
        self.depth = len(hashes)
        self.children: dict[int, _Part] = {}
        self.requests = 0.0
        self.reused_tokens = 0.0
        self.used_at = now
        self.use = PrefixUse("", "", "", "")

    @property
    def own_tokens(self) -> int:
        """Tokens behind its parent's."""
        return (self.depth - (self.parent.depth if self.parent else 0)) * self.block_size


class HotPrefixes:
    """A ``PrefixUses`` that knows the hottest.

    Args:
        most: Prefixes that are followed at a time.
        half_life_seconds: After so long a request counts half.
    """

    def __init__(self, most: int = 256, half_life_seconds: float = 300.0) -> None:
        self.half_life_seconds = half_life_seconds
        self._most = most
        self._root = _Part(None, array("Q"), 0, 0.0)
        self._parts: dict[int, _Part] = {}
        # Two generations: when the young one is full it becomes the old one.
        self._young: set[int] = set()
        self._old: set[int] = set()

    def note(self, chain: BlockChain, reused_tokens: int, use: PrefixUse, now: float) -> None:
        """See ``PrefixUses``."""
        hashes, blocks = chain.hashes, len(chain.hashes)
        place = min(reused_tokens // chain.block_size, blocks)
        if 0 < place <= _MOST_BLOCKS and hashes[place - 1] not in self._parts and self._again(hashes[place - 1]):
            self._follow(hashes, place, chain.block_size, now)
        part = self._root
        while part.depth < blocks:
            child = part.children.get(hashes[part.depth])
            if child is None or child.depth > blocks or child.hashes[-1] != hashes[child.depth - 1]:
                return
            part = child
            if now > part.used_at:
                left = 0.5 ** ((now - part.used_at) / self.half_life_seconds)
                part.requests *= left
                part.reused_tokens *= left
                part.used_at = now
            part.requests += 1
            part.reused_tokens += min(reused_tokens, part.depth * chain.block_size)
            part.use = use

    def hottest(self, model: str, limit: int, now: float) -> list[HotPrefix]:
        """The prefixes that stand for most prompt tokens: requests times the tokens behind the next shorter one.

        Args:
            model: Only its prefixes; empty for those of all models.
            limit: How many at most.
            now: Unix seconds.
        """
        wanted = [
            part
            for part in self._parts.values()
            if (not model or part.use.model == model) and self._requests(part, now) >= _FORGOTTEN_REQUESTS
        ]
        return [self._shown(part, now) for part in heapq.nlargest(limit, wanted, key=lambda p: self._heat(p, now))]

    def _again(self, place: int) -> bool:
        """Whether a request parted at a place before, as far as that is remembered; else one did from now on."""
        if place in self._young or place in self._old:
            return True
        if len(self._young) >= _MOST_PLACES:
            self._old, self._young = self._young, set()
        self._young.add(place)
        return False

    def _follow(self, hashes: Sequence[BlockHash], depth: int, block_size: int, now: float) -> None:
        """Follow a prefix from now on, and the one at which it parts from another that is followed."""
        if len(self._parts) > self._most - 2:
            self._prune(now)
        parent = self._root
        while parent.depth < depth and (child := parent.children.get(hashes[parent.depth])) is not None:
            common = _common(child.hashes, hashes, parent.depth + 1, min(child.depth, depth))
            parent = child if common == child.depth else self._split(child, common)
        if parent.depth < depth:
            self._put(_Part(parent, array("Q", hashes[:depth]), block_size, now))

    def _split(self, part: _Part, depth: int) -> _Part:
        """Put a prefix of ``depth`` blocks between a part and its parent; returns it."""
        upper = _Part(part.parent, part.hashes[:depth], part.block_size, part.used_at)
        upper.requests = part.requests
        upper.reused_tokens = min(part.reused_tokens, part.requests * depth * part.block_size)
        upper.use = part.use
        self._put(upper)
        upper.children[part.hashes[depth]] = part
        part.parent = upper
        return upper

    def _put(self, part: _Part) -> None:
        assert part.parent is not None
        part.parent.children[part.hashes[part.parent.depth]] = part
        self._parts[part.hashes[-1]] = part

    def _prune(self, now: float) -> None:
        """Let go of the quarter that stands for the fewest tokens; all at once, because finding them takes a look at
        each. One at which several others part has to stay."""
        loose = [part for part in self._parts.values() if len(part.children) < 2]
        for part in heapq.nsmallest(max(self._most // 4, 2), loose, key=lambda p: self._heat(p, now)):
            parent = part.parent
            assert parent is not None
            del self._parts[part.hashes[-1]]
            place = part.hashes[parent.depth]
            del parent.children[place]
            for child in part.children.values():
                child.parent = parent
                parent.children[place] = child

    def _requests(self, part: _Part, now: float) -> float:
        return part.requests * self._left(part, now)

    def _heat(self, part: _Part, now: float) -> float:
        """Prompt tokens that a part stands for, those of its parent not counted."""
        return self._requests(part, now) * part.own_tokens

    def _left(self, part: _Part, now: float) -> float:
        """What is left of a part's counts at ``now``."""
        return float(0.5 ** (max(now - part.used_at, 0.0) / self.half_life_seconds))

    def _shown(self, part: _Part, now: float) -> HotPrefix:
        tokens = part.depth * part.block_size
        hashes = [BlockHash(each) for each in part.hashes]
        return HotPrefix(
            # One token more: the last of a prompt is never reused, and this is not the end of one.
            chain=BlockChain(hashes, part.block_size, tokens + 1),
            tokens=tokens,
            requests=self._requests(part, now),
            reused_tokens=part.reused_tokens * self._left(part, now),
            last_used=part.used_at,
            last_use=part.use,
        )


def _common(followed: "array[int]", hashes: Sequence[BlockHash], known: int, limit: int) -> int:
    """How many blocks a followed prefix and a chain have in common, of the first ``limit``; ``known`` are."""
    # Agreement is a prefix property, so the boundary can be found by bisection.
    return bisect_left(range(limit), True, lo=known, key=lambda i: followed[i] != hashes[i])
