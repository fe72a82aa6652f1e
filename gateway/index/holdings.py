"""The blocks that one target holds according to its KV events.

An engine's hash only identifies a block: later events refer to it, also as a parent. The content of a block is
identified by its chain hash, computed from its tokens and the chain hash of its parent.
"""

from collections import deque
from collections.abc import Callable, Iterator

from gateway.core.block_chain import chain_block_size
from gateway.core.ids import ModelId
from gateway.core.kv_events import BlockRemoved, BlockStored, Medium, Unmatched
from gateway.core.ports import BlockHasher
from gateway.core.prompt import TOKEN_BYTES
from gateway.index.engine_blocks import EngineBlocks, PageTokens, add_packed, drop_packed, one_copy
from gateway.index.holders import NONE, Holders
from gateway.index.orphans import OrphanBlock, OrphanBlocks

_ADOPTED_PER_STEP = 128
"""Orphans that are placed in one step."""

_WINDOW_BLOCKS = 4096
"""Most blocks of a run of which the engine kept only some: it cannot be applied in steps. Longer ones are ignored."""

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
        replace: Called with blocks that are cleared together; returns the index and the bit for later blocks.

    Attributes:
        bit: As above.
        holders: As above.
        block_size: Tokens per block of the chains; None before the first event with tokens.
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
        replace: Callable[[EngineBlocks], tuple[Holders, int]],
    ) -> None:
        self.holders = holders
        self.bit = bit
        self.block_size: int | None = None
        self._hasher = hasher
        self._model = model
        self._unmatched = unmatched
        self._on_lost = on_lost
        self._replace = replace
        self._blocks = EngineBlocks(holders, bit, on_lost)
        self._orphans = OrphanBlocks()
        # Names of stored blocks that orphans wait for.
        self._adoptable: deque[int] = deque()
        self._undescribed: dict[tuple[int, Medium], int] = {}
        self._engine_block_size = 0
        self._pages: PageTokens | None = None
        self._group: int | None = None
        # Where only parts of prefixes are kept, blocks without an engine hash lie between those with one. There, blocks
        # are stored by chain hash, and this maps engine hashes to chain hashes.
        self._chain_of: dict[int, int] | None = None

    @property
    def blocks(self) -> EngineBlocks:
        """The blocks whose parent is known."""
        return self._blocks

    @property
    def accounted_blocks(self) -> int:
        """Blocks of the engine's GPU cache whose content is known, copies counted."""
        return self._blocks.gpu_copies // self.names_per_block

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

    def copies(self) -> Iterator[tuple[int, int]]:
        """Engine name and number of GPU copies of every block that has one: for comparing with an engine."""
        return self._blocks.copies()

    def store(self, event: BlockStored) -> None:
        """Apply an event that stores a run of blocks."""
        if not event.names or self._is_other_group(event.group, sparse=event.sparse):
            return
        if not event.tokens:
            # Stored with tokens before, and now on another medium as well. Without tokens the place of an unknown block
            # cannot be derived, and it is not a root although the event has no parent.
            for name in event.names:
                self._store_without_tokens(name, event.medium)
            return
        if self._group is None and event.medium is Medium.GPU:
            self._group = event.group
            if event.sparse:
                self._start_over(sparse=True)
        missing = self._missing_names(event)
        if missing is None:
            if event.medium is Medium.GPU and self._chain_of is None:
                self._unmatched.unfit += len(event.names)
            return
        if event.parent is None:
            parent = self._blocks.root(self._hasher.root(self._model, event.adapter, event.salt))
        else:
            parent = self._find(event.parent)
            if not parent:
                self._store_orphans(event, event.parent, missing)
                return
        if self._pages is not None:
            self._store_pages(self._pages, event, parent)
        elif missing:
            self._store_window(event, parent, missing)
        else:
            chain = self._blocks.chain(parent)
            one = one_copy(event.medium)
            hashes = self._hasher.extend(chain, event.tokens, event.block_size, event.extras)
            for name, own in zip(event.names, hashes, strict=True):
                parent = self._store_block(name, parent, own, one)

    def remove(self, event: BlockRemoved) -> None:
        """Apply an event that removes one copy of each block."""
        if self._is_other_group(event.group, sparse=None):
            return
        for name in event.names:
            slot = self._find(name)
            if slot:
                self._blocks.drop_copy(slot, event.medium)
                if self._chain_of is not None and not self._blocks.has_copies(slot):
                    del self._chain_of[name]
            elif (block := self._orphans.get(name)) is not None:
                block.copies = drop_packed(block.copies, event.medium)
                if not block.copies:
                    self._orphans.drop(name)
            elif (
                self._undescribed.pop((name, event.medium), None) is None
                and event.medium is Medium.GPU
                and self._chain_of is None
            ):
                self._unmatched.removed += 1

    def advance(self) -> bool:
        """See ``EventIndex``."""
        for _ in range(_ADOPTED_PER_STEP):
            if not self._adoptable:
                break
            self._adopt_child(self._adoptable[0])
        more = self._blocks.free_pending()
        return bool(self._adoptable) or more

    def _is_other_group(self, group: int, *, sparse: bool | None) -> bool:
        """Whether an event concerns a group of layers that is not followed.

        A model with several groups caches each separately and reuses the prefix that all of them hold. The first group
        that keeps whole prefixes is followed, which gives an upper bound; without one, a group that keeps parts.
        """
        if self._group is None or group == self._group:
            return False
        if self._chain_of is not None and sparse is False:
            self._start_over(sparse=False)
            self._group = group
            return False
        return True

    def _start_over(self, *, sparse: bool) -> None:
        """Forget all blocks."""
        self.holders, self.bit = self._replace(self._blocks)
        self._blocks = EngineBlocks(self.holders, self.bit, self._on_lost, keeps_ancestors=sparse)
        self._chain_of = {} if sparse else None
        self._orphans = OrphanBlocks()
        self._adoptable.clear()
        self._engine_block_size = 0
        self._pages = None

    def _find(self, name: int) -> int:
        return self._blocks.find(name if self._chain_of is None else self._chain_of.get(name, NONE))

    def _missing_names(self, event: BlockStored) -> int | None:
        """Blocks of the run that the engine did not keep; None for a run that does not fit the target's blocks."""
        if not event.block_size or len(event.tokens) % (TOKEN_BYTES * event.block_size):
            return None
        if event.extras is not None and len(event.extras) != len(event.names):
            return None
        if not self._engine_block_size:
            if event.medium is not Medium.GPU:
                return None  # other media may be cut into larger blocks
            self._engine_block_size = event.block_size
            self.block_size = chain_block_size(event.block_size)
            if self.block_size != event.block_size:
                self._pages = PageTokens(event.block_size, self.block_size // event.block_size)
        missing = len(event.tokens) // (TOKEN_BYTES * event.block_size) - len(event.names)
        if event.block_size != self._engine_block_size or missing < 0:
            return None
        if missing and missing + len(event.names) > _WINDOW_BLOCKS:
            return None
        if missing or self._pages is not None:
            # The extra keys of blocks without a name, and of pages inside of a block, are not part of the event.
            plain = event.extras is None or not any(event.extras)
            return missing if plain and not (missing and self._pages is not None) else None
        return missing

    def _store_block(self, name: int, parent: int, chain: int, copies: int) -> int:
        slot, is_new = self._put_block(name, parent, chain, copies)
        if is_new:
            self._adopt(slot, name)
        return slot

    def _put_block(self, name: int, parent: int, chain: int, copies: int) -> tuple[int, bool]:
        """Returns the block's slot, and whether it was not there before."""
        key = name
        if self._chain_of is not None:
            key = self._chain_of[name] = chain
        slot = self._blocks.find(key)
        if slot:
            if copies:
                self._blocks.add_copies(slot, copies)
            return slot, False
        return self._blocks.place(key, parent, chain, copies), True

    def _store_window(self, event: BlockStored, parent: int, missing: int) -> None:
        """A run of which the engine kept only some blocks, without saying which.

        It keeps the end of a window, so the names are assigned to the last blocks of the run, which gives an upper
        bound. The blocks before them count as held as long as these are.
        """
        if self._chain_of is None:
            # The first sign that this group keeps parts of prefixes.
            chain, begins = self._blocks.chain(parent), self._blocks.parent(parent) == NONE
            self._start_over(sparse=True)
            if not begins:
                return
            parent = self._blocks.root(chain)
        chains = self._hasher.extend(self._blocks.chain(parent), event.tokens, event.block_size, None)
        for own in chains[:missing]:
            # A block without an engine hash is stored by its chain hash.
            parent = self._blocks.find(own) or self._blocks.place(own, parent, own, 0)
        for name, own in zip(event.names, chains[missing:], strict=True):
            parent = self._store_block(name, parent, own, one_copy(event.medium))

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
        slot = self._find(name)
        if slot:
            self._blocks.add_copies(slot, one_copy(medium))
        elif (block := self._orphans.get(name)) is not None:
            block.copies = add_packed(block.copies, one_copy(medium))
        elif len(self._undescribed) < _UNDESCRIBED_LIMIT or (name, medium) in self._undescribed:
            self._undescribed[name, medium] = 1
        elif self._chain_of is None:
            self._unmatched.unplaced += 1

    def _store_orphans(self, event: BlockStored, parent: int, missing: int) -> None:
        counted = self._chain_of is None
        if missing:  # the place of these blocks in the run stays unknown
            self._unmatched.unplaced += len(event.names) * counted
            return
        size = event.block_size * TOKEN_BYTES
        one = one_copy(event.medium)
        for i, name in enumerate(event.names):
            if slot := self._find(name):
                self._blocks.add_copies(slot, one)
            elif (block := self._orphans.get(name)) is not None:
                block.copies = add_packed(block.copies, one)
            else:
                extra = event.extras[i] if event.extras else None
                self._orphans.put(OrphanBlock(name, parent, event.tokens[i * size : (i + 1) * size], extra, one))
                self._unmatched.unplaced += counted
            parent = name

    def _adopt(self, slot: int, name: int) -> None:
        """A block was stored: add the copies known by name alone, and schedule the orphans that wait for it."""
        self._adopt_copies(slot, name)
        if self._orphans.waits_for(name):
            self._adoptable.append(name)

    def _adopt_child(self, name: int) -> None:
        """Place one of the orphans that wait for a name; without any left, drop the name."""
        parent = self._find(name)
        block = self._orphans.take_child(name) if parent else None
        if block is None:
            self._adoptable.popleft()
            return
        if self._chain_of is None:
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
