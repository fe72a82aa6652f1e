"""The blocks that one target holds according to its KV events.

An engine's hash only identifies a block: later events refer to it, also as a parent. The content of a block is
identified by its chain hash, computed from its tokens and the chain hash of its parent.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.block_chain import chain_block_size
from gateway.core.ids import ModelId
from gateway.core.kv_events import BlockRemoved, BlockStored, Medium, Unmatched
from gateway.core.ports import BlockHasher
from gateway.core.prompt import TOKEN_BYTES
from gateway.index.engine_blocks import GPU_COPIES, EngineBlocks, PageTokens, add_packed, drop_packed, one_copy
from gateway.index.holders import Holders
from gateway.index.orphans import OrphanBlock, OrphanBlocks

_ADOPTED_PER_STEP = 128
"""Orphans that are placed in one step."""

_MOST_GROUPS = 64
"""Groups of layers that a model may have; real ones have a handful."""

_NAMED_LATE = 65536
"""Most blocks that may be known when a second group begins, whose names are collected at once then."""

_UNDESCRIBED_LIMIT = 65536
"""Most blocks stored without tokens that are remembered until an event with their tokens arrives."""


class UnmatchedCounts:
    """Counts what ``Unmatched`` lists, for one target, over all its ``HeldBlocks``."""

    __slots__ = ("removed", "unfit", "unplaced")

    def __init__(self) -> None:
        self.unfit = self.unplaced = self.removed = 0

    def total(self) -> Unmatched:
        """The counts."""
        return Unmatched(self.unfit, self.unplaced, self.removed)


@dataclass(slots=True)
class OtherGroup:
    """A group of layers beside the one that is followed (vLLM 0.32, ``HybridKVCacheCoordinator``).

    The engine names a block by the prefix that ends with it, so equal names of two groups end at the same token.

    Attributes:
        size: Tokens per block.
        needed: Blocks that it has to hold at the end of a hit.
        copies: Its blocks: packed copies by name.
    """

    size: int
    needed: int
    copies: dict[int, int] = field(default_factory=dict)

    def reach(self, names: Mapping[int, int], hashes: Sequence[int], depth: int, size: int) -> int:
        """The longest hit for this group, of at most ``depth`` blocks of a chain with ``size`` tokens each."""
        step, end, run = self.size // size, 0, 0
        for number in range(depth // step, 0, -1):
            if names.get(hashes[number * step - 1]) not in self.copies:
                run = 0
                continue
            end = end if run else number
            run += 1
            if run >= self.needed:
                break
        return end * step if run else 0


class HeldBlocks:
    """The blocks of one target.

    Args:
        holders: The index that requests are looked up in.
        bit: The target's bit in ``holders``.
        hasher: From tokens to chain hashes.
        model: The model the target serves.
        unmatched: Gets the blocks of events that match nothing. Left out is what a correct stream of events has as
            well: other groups of layers, groups that keep parts of prefixes, other media with blocks of their own.
        on_lost: Called with the chain hash of every block that the target no longer holds.

    Attributes:
        bit: As above.
        holders: As above.
        block_size: Tokens per block of the chains; None before the first event with tokens.
        others: Groups of layers beside the one that is followed, by number. A prefix is reused as far as all groups
            allow.
        problem: Why the events do not say what can be reused; empty if they do. It does not end.
    """

    def __init__(
        self,
        holders: Holders,
        bit: int,
        hasher: BlockHasher,
        model: ModelId,
        unmatched: UnmatchedCounts,
        *,
        on_lost: Callable[[int], None],
    ) -> None:
        self.holders = holders
        self.bit = bit
        self.block_size: int | None = None
        self._hasher = hasher
        self._model = model
        self._unmatched = unmatched
        self._on_lost = on_lost
        self._blocks = EngineBlocks(holders, bit, self._lost)
        self._orphans = OrphanBlocks()
        # Names of stored blocks that orphans wait for.
        self._adoptable: deque[int] = deque()
        self._undescribed: dict[tuple[int, Medium], int] = {}
        self._engine_block_size = 0
        self._pages: PageTokens | None = None
        self._group: int | None = None
        self.others: dict[int, OtherGroup] = {}
        self._others_gpu_copies = 0
        # Name by chain hash of the held blocks; only where there are other groups.
        self._names: dict[int, int] = {}
        self.problem = ""

    @property
    def blocks(self) -> EngineBlocks:
        """The blocks whose parent is known."""
        return self._blocks

    @property
    def only_sparse(self) -> bool:
        """Whether no group of layers keeps whole prefixes, as far as is known."""
        return self._group is None and bool(self.others)

    @property
    def accounted_blocks(self) -> int:
        """Blocks of the engine's GPU cache whose content is known, copies counted; all groups share them."""
        return self._blocks.gpu_copies // self.names_per_block + self._others_gpu_copies

    def reusable(self, hashes: Sequence[int], depth: int) -> int:
        """How many of the first ``depth`` blocks of a chain, which the followed group holds, all groups can reuse."""
        before = 0
        while depth != before:
            before = depth
            for group in self.others.values():
                depth = group.reach(self._names, hashes, depth, self._engine_block_size)
        return depth

    @property
    def names_per_block(self) -> int:
        """Names that events use for one block of the chains."""
        return self._pages.pages_per_block if self._pages else 1

    @property
    def waiting(self) -> int:
        """Orphans: blocks whose parent is not known."""
        return len(self._orphans)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, without ``holders``."""
        return self._blocks.nbytes + (self._pages.nbytes if self._pages else 0)

    def store(self, event: BlockStored) -> None:
        """Apply an event that stores a run of blocks."""
        if not event.names:
            return
        if self._group is None and not event.sparse and event.tokens and event.medium is Medium.GPU:
            self._group = event.group
        if event.group != self._group and (self._group is not None or event.sparse):
            self._store_other(event)
            return
        if not event.tokens:
            # Stored with tokens before, and now on another medium as well. Without tokens the place of an unknown block
            # cannot be derived, and it is not a root although the event has no parent.
            for name in event.names:
                self._store_without_tokens(name, event.medium)
            return
        if not self._fits(event):
            if event.medium is Medium.GPU:
                self._unmatched.unfit += len(event.names)
                whole = _bytes_of(event)
                if self.others or (whole and len(event.tokens) > whole and not len(event.tokens) % event.block_size):
                    self.problem = "a group of layers stores blocks of several sizes, or parts of prefixes"
            return
        self._check_sizes()
        if event.parent is None:
            parent = self._blocks.root(self._hasher.root(self._model, event.adapter, event.salt))
        else:
            parent = self._blocks.find(event.parent)
            if not parent:
                self._store_orphans(event, event.parent)
                return
        if self._pages is not None:
            self._store_pages(self._pages, event, parent)
        else:
            chain = self._blocks.chain(parent)
            one = one_copy(event.medium)
            hashes = self._hasher.extend(chain, event.tokens, event.block_size, event.extras)
            for name, own in zip(event.names, hashes, strict=True):
                parent = self._store_block(name, parent, own, one)

    def remove(self, event: BlockRemoved) -> None:
        """Apply an event that removes one copy of each block."""
        if event.group != self._group:
            if (other := self.others.get(event.group)) is not None:
                for name in event.names:
                    self._set_other(other, name, drop_packed(other.copies.get(name, 0), event.medium))
            return
        for name in event.names:
            slot = self._blocks.find(name)
            if slot:
                self._blocks.drop_copy(slot, event.medium)
            elif (block := self._orphans.get(name)) is not None:
                block.copies = drop_packed(block.copies, event.medium)
                if not block.copies:
                    self._orphans.drop(name)
            elif self._undescribed.pop((name, event.medium), None) is None and event.medium is Medium.GPU:
                self._unmatched.removed += 1

    def advance(self) -> bool:
        """See ``EventIndex``."""
        for _ in range(_ADOPTED_PER_STEP):
            if not self._adoptable:
                break
            self._adopt_child(self._adoptable[0])
        more = self._blocks.free_pending()
        return bool(self._adoptable) or more

    def _store_other(self, event: BlockStored) -> None:
        """Blocks of a group that is not followed: which of the followed one's it holds as well."""
        other = self.others.get(event.group)
        if other is None and event.tokens and event.medium is Medium.GPU:
            other = self._begin_other(event)
        if other is None:
            return
        if event.tokens and event.medium is Medium.GPU and event.block_size != other.size:
            self.problem = "a group of layers stores blocks of several sizes"
            return
        for name in event.names:
            self._set_other(other, name, add_packed(other.copies.get(name, 0), one_copy(event.medium)))

    def _begin_other(self, event: BlockStored) -> OtherGroup | None:
        if not event.block_size or event.sparse is None or (event.sparse and not event.window):
            self.problem = "a group of layers does not say which of its blocks a hit needs"
            return None
        if len(self.others) >= _MOST_GROUPS or self._blocks.held > _NAMED_LATE:
            self.problem = "there are too many groups of layers, or they appear too late"
            return None
        # A group that keeps whole prefixes needs all of its blocks.
        needed = -(-event.window // event.block_size) if event.sparse else sys.maxsize
        other = self.others[event.group] = OtherGroup(event.block_size, needed)
        self._names.update((chain, name) for chain, name, _ in self._blocks.named())
        self._check_sizes()
        return other

    def _set_other(self, other: OtherGroup, name: int, copies: int) -> None:
        before = other.copies.pop(name, 0)
        self._others_gpu_copies += (copies & GPU_COPIES) - (before & GPU_COPIES)
        if copies:
            other.copies[name] = copies

    def _check_sizes(self) -> None:
        """A smaller block of another group ends where no block of the chains ends."""
        size = self._engine_block_size
        if self.others and size and (self._pages or any(each.size % size for each in self.others.values())):
            self.problem = "the blocks of one group of layers are no multiple of another's"

    def _lost(self, chain: int) -> None:
        self._names.pop(chain, None)
        self._on_lost(chain)

    def _fits(self, event: BlockStored) -> bool:
        """Whether a run is one of whole blocks of the target's size."""
        if not event.block_size or len(event.tokens) != _bytes_of(event):
            return False
        if event.extras is not None and len(event.extras) != len(event.names):
            return False
        if not self._engine_block_size:
            if event.medium is not Medium.GPU:
                return False  # other media may be cut into larger blocks
            self._engine_block_size = event.block_size
            self.block_size = chain_block_size(event.block_size)
            if self.block_size != event.block_size:
                self._pages = PageTokens(event.block_size, self.block_size // event.block_size)
        # The extra keys of pages inside of a block are not part of the event.
        plain = self._pages is None or event.extras is None or not any(event.extras)
        return event.block_size == self._engine_block_size and plain

    def _store_block(self, name: int, parent: int, chain: int, copies: int) -> int:
        slot, is_new = self._put_block(name, parent, chain, copies)
        if is_new:
            self._adopt(slot, name)
        return slot

    def _put_block(self, name: int, parent: int, chain: int, copies: int) -> tuple[int, bool]:
        """Returns the block's slot, and whether it was not there before."""
        if self.others:
            self._names[chain] = name
        slot = self._blocks.find(name)
        if slot:
            self._blocks.add_copies(slot, copies)
            return slot, False
        return self._blocks.place(name, parent, chain, copies), True

    def _store_pages(self, pages: PageTokens, event: BlockStored, parent: int) -> None:
        """Pages that are smaller than a block. A block is complete with its last page."""
        size = event.block_size * TOKEN_BYTES
        copies = one_copy(event.medium)
        before, begun = pages.block_so_far(self._blocks, parent)
        for i, name in enumerate(event.names):
            tokens = event.tokens[i * size : (i + 1) * size]
            parent, is_new = self._put_page(name, parent, (before, begun), tokens, copies)
            if is_new:
                self._adopt(parent, name)
            if self._blocks.chain(parent):
                before, begun = parent, b""
            else:
                begun += tokens

    def _put_page(
        self, name: int, parent: int, block: tuple[int, bytes], tokens: bytes, copies: int
    ) -> tuple[int, bool]:
        """Returns the page's slot, and whether it was not there before. ``block`` as ``PageTokens.block_so_far``."""
        pages = self._pages
        assert pages is not None
        slot = self._blocks.find(name)
        if slot:
            self._blocks.add_copies(slot, copies)
            return slot, False
        before, begun = block
        chain = 0
        if len(begun) + len(tokens) == pages.block_bytes:
            (chain,) = self._hasher.extend(self._blocks.chain(before), begun + tokens, self.block_size or 0, None)
        slot = self._blocks.place(name, parent, chain, copies)
        pages.put(slot, tokens)
        return slot, True

    def _store_without_tokens(self, name: int, medium: Medium) -> None:
        slot = self._blocks.find(name)
        if slot:
            self._blocks.add_copies(slot, one_copy(medium))
        elif (block := self._orphans.get(name)) is not None:
            block.copies = add_packed(block.copies, one_copy(medium))
        elif len(self._undescribed) < _UNDESCRIBED_LIMIT or (name, medium) in self._undescribed:
            self._undescribed[name, medium] = 1
        else:
            self._unmatched.unplaced += 1

    def _store_orphans(self, event: BlockStored, parent: int) -> None:
        size = event.block_size * TOKEN_BYTES
        one = one_copy(event.medium)
        for i, name in enumerate(event.names):
            if slot := self._blocks.find(name):
                self._blocks.add_copies(slot, one)
            elif (block := self._orphans.get(name)) is not None:
                block.copies = add_packed(block.copies, one)
            else:
                extra = event.extras[i] if event.extras else None
                self._orphans.put(OrphanBlock(name, parent, event.tokens[i * size : (i + 1) * size], extra, one))
                self._unmatched.unplaced += 1
            parent = name

    def _adopt(self, slot: int, name: int) -> None:
        """A block was stored: add the copies known by name alone, and schedule the orphans that wait for it."""
        self._adopt_copies(slot, name)
        if self._orphans.waits_for(name):
            self._adoptable.append(name)

    def _adopt_child(self, name: int) -> None:
        """Place one of the orphans that wait for a name; without any left, drop the name."""
        parent = self._blocks.find(name)
        block = self._orphans.take_child(name) if parent else None
        if block is None:
            self._adoptable.popleft()
            return
        self._unmatched.unplaced -= 1
        if self._pages is not None:
            so_far = self._pages.block_so_far(self._blocks, parent)
            slot, is_new = self._put_page(block.name, parent, so_far, block.tokens, block.copies)
        else:
            extras = [block.extra] if block.extra else None
            chain = self._blocks.chain(parent)
            (own,) = self._hasher.extend(chain, block.tokens, self._engine_block_size, extras)
            slot, is_new = self._put_block(block.name, parent, own, block.copies)
        if is_new:
            self._adopt(slot, block.name)

    def _adopt_copies(self, slot: int, name: int) -> None:
        for medium in Medium if self._undescribed else ():
            if self._undescribed.pop((name, medium), None):
                self._blocks.add_copies(slot, one_copy(medium))


def _bytes_of(event: BlockStored) -> int:
    """Length of the tokens of a run of whole blocks."""
    return len(event.names) * event.block_size * TOKEN_BYTES
