"""What was computed before: in the same prefix space, and in any.

Every prompt is hashed again, behind a root for its space without the life, behind one that all spaces of its owner have
in common, and behind one for everybody. The first tells what was computed here, in which life and by which replica; the
others where else, and an owner's own is told before that of others.
"""

from typing import NamedTuple, Protocol

from gateway.settle.past.blocks import BlockTable
from gateway.settle.past.fates import Fates
from gateway.values.blocks import BlockChain
from gateway.values.explain import Finished, Where
from gateway.values.ids import ModelId
from gateway.values.prompt import TOKEN_BYTES
from gateway.values.reasons import Reason

_PLACES_KEPT = 50_000


class Chains(Protocol):
    """Hashes prompts."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """Where chains begin."""
        ...

    def chain(self, root: int, tokens: bytes, block_size: int) -> BlockChain:
        """The chain of a prompt."""
        ...


class Seen(NamedTuple):
    """How much of a prompt was computed before, and why it cannot be had any more, block by block.

    Attributes:
        here: For each block from the first on that was computed in this space, and not before a reset: why nobody
            holds it, should nobody hold it.
        anywhere: For each block behind those that was computed in any space: why that does not help.
    """

    here: tuple[Reason, ...]
    anywhere: tuple[Reason, ...]


class _Place(NamedTuple):
    life: str
    replica: str


class Memory:
    """Remembers which blocks were computed, and where.

    Args:
        chains: Hashes prompts.
        fates: Knows what became of replicas and lives.
        blocks: How many blocks are remembered, in each of two tables of 16 bytes a block.
    """

    def __init__(self, chains: Chains, fates: Fates, blocks: int) -> None:
        self._chains = chains
        self._fates = fates
        self._here = BlockTable(blocks)
        self._anywhere = BlockTable(blocks)
        self._places: list[_Place] = []
        self._place_numbers: dict[_Place, int] = {}
        self._wheres: list[Where] = []
        self._where_numbers: dict[tuple[object, ...], int] = {}
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        return self._here.nbytes + self._anywhere.nbytes

    def seen(self, finished: Finished, tokens: bytes, held_tokens: int = 0) -> Seen:
        """What was computed before of one prompt of a request.

        Args:
            finished: The request.
            tokens: The prompt's token ids, little-endian u32.
            held_tokens: How many from the first on are held by somebody, so that nobody asks what became of them.
        """
        chain = self._chains.chain(self._root(finished.where), tokens, finished.block_size)
        limit = chain.reusable_blocks
        here: list[Reason] = []
        anywhere: list[Reason] = []
        # Once a block was reached only before a reset, those behind it were, too, or are not reached at all.
        held = min(held_tokens // finished.block_size, limit)
        if held:
            here = [Reason.EVICTED] * held
        for record in self._here.beginning(chain.hashes[held:limit]):
            place = self._places[record.place]
            if anywhere or (reason := self._why_here(place, record.at, finished.life)) is None:
                anywhere.append(self._fates.of_life(place.life))
            else:
                here.append(reason)
        known = len(here) + len(anywhere)
        if known < limit:
            for root in self._common_roots(finished.where):
                common = self._chains.chain(root, tokens, finished.block_size)
                records = self._anywhere.beginning(common.hashes[:limit])[known:]
                anywhere.extend(_why_not(self._wheres[record.place], finished.where) for record in records)
                known += len(records)
        return Seen(tuple(here), tuple(anywhere))

    def remember(self, finished: Finished, tokens: bytes) -> None:
        """A prompt, perhaps with what was generated behind it, was computed.

        Args:
            finished: The request.
            tokens: All token ids that were computed.
        """
        if len(tokens) < finished.block_size * TOKEN_BYTES:
            return
        if len(self._places) >= _PLACES_KEPT or len(self._wheres) >= _PLACES_KEPT:
            self._forget_all()
        if self._began_at is None:
            self._began_at = finished.at
        at = max(finished.at - self._began_at, 0.0)
        here = self._chains.chain(self._root(finished.where), tokens, finished.block_size)
        place = _Place(finished.life, finished.replica)
        self._here.put(here.hashes, _number(place, self._place_numbers, self._places), at)
        key = _parts(finished.where)
        number = self._where_numbers.get(key)
        if number is None:
            number = self._where_numbers[key] = len(self._wheres)
            self._wheres.append(finished.where)
        for root in self._common_roots(finished.where):
            common = self._chains.chain(root, tokens, finished.block_size)
            self._anywhere.put(common.hashes, number, at)

    def _why_here(self, place: _Place, at: float, life: str) -> Reason | None:
        """Why nobody holds a block of this space; None if that was before a reset."""
        if place.life == life:
            return self._fates.of_replica(place.replica, at + (self._began_at or 0.0))
        reason = self._fates.of_life(place.life)
        return reason if reason is Reason.EXPIRED else None

    def _root(self, where: Where) -> int:
        return self._chains.root(ModelId(where.model), where.adapter, "\0".join(map(str, _parts(where))))

    def _common_roots(self, where: Where) -> list[int]:
        """Of the owner's spaces, and of everybody's; one alone where nobody is told apart."""
        owners = ["", where.owner] if where.owner else [""]
        return [self._chains.root(ModelId(""), owner, where.variant) for owner in reversed(owners)]

    def _forget_all(self) -> None:
        self._here.clear()
        self._anywhere.clear()
        for each in (self._places, self._place_numbers, self._wheres, self._where_numbers):
            each.clear()


def _number(place: _Place, numbers: dict[_Place, int], places: list[_Place]) -> int:
    number = numbers.get(place)
    if number is None:
        number = numbers[place] = len(places)
        places.append(place)
    return number


def _parts(where: Where) -> tuple[object, ...]:
    return tuple(getattr(where, name) for name in where.__struct_fields__)


def changed(then: Where, now: Where) -> Reason | None:
    """By what two spaces differ, as far as it makes for other tokens or other keys and values; None if by nothing."""
    if then.tokenizer != now.tokenizer:
        return Reason.TOKENIZER_CHANGED
    if then.adapter != now.adapter:
        return Reason.ADAPTER_CHANGED
    if then.model != now.model:
        return Reason.MODEL_CHANGED
    if then.template != now.template:
        return Reason.TEMPLATE_CHANGED
    return Reason.MODEL_CHANGED if then.context_limit != now.context_limit else None


def _why_not(then: Where, now: Where) -> Reason:
    """Why what was computed in some space does not help in another one."""
    if (reason := changed(then, now)) is not None:
        return reason
    if then.owner != now.owner:
        return Reason.TENANT_ISOLATED
    # Of the same space it is known only where the other table has forgotten it.
    return Reason.SCOPE_ISOLATED if then != now else Reason.EVICTED
