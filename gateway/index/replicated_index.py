"""A prefix index that is replicated between gateways.

Each operation of a request on its gateway's index (begin, computed, complete, abandon) is repeated on the indexes of
the peers. Only hashes are sent, which are computed with the space's salt.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from sys import byteorder

import msgspec

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ReplicaId, Target
from gateway.core.ports import Holding, IndexState, Lease, PrefixIndex

_MAX_BLOCKS = 65_536
"""Most blocks of requests that wait to be sent: half a mebibyte. Requests beyond are not sent, which only costs
hits."""


class RouteStage(IntEnum):
    """Operations on a request's blocks."""

    BEGIN = 0
    COMPUTED = 1
    COMPLETE = 2
    ABANDON = 3


class ChainMessage(msgspec.Struct, array_like=True):
    """A chain.

    Attributes:
        hashes: Little-endian u64 each. With ``after``, only those behind the prompt's hashes.
        block_size: Tokens per block.
        tokens: Length of the whole prompt.
        after: Position of the prompt that it continues; -1 for none.
    """

    hashes: bytes
    block_size: int
    tokens: int
    after: int = -1


class RouteMessage(msgspec.Struct, array_like=True):
    """One operation of a request.

    Attributes:
        what: The operation.
        number: Number of the request at its gateway.
        replica: Its replica; with ``BEGIN``.
        rank: Its rank; with ``BEGIN``.
        cached_tokens: Reported by the engine; with ``COMPLETE``.
        chains: Its prompts; with ``COMPLETE`` the chains it left in the cache.
    """

    what: RouteStage
    number: int
    replica: str = ""
    rank: int = 0
    cached_tokens: int | None = None
    chains: list[ChainMessage] = []


class IndexMessage(msgspec.Struct, array_like=True):
    """Operations in their order."""

    steps: list[RouteMessage]


@dataclass(slots=True, eq=False)
class _ReplicatedLease:
    """A request of this gateway; ``number`` is None if it is not sent to peers."""

    inner: Lease
    number: int | None
    chains: Sequence[BlockChain]

    @property
    def held_tokens(self) -> int:
        """See ``Lease``."""
        return self.inner.held_tokens


@dataclass(slots=True, eq=False)
class _PeerRequest:
    """A peer's request."""

    lease: Lease
    chains: Sequence[BlockChain]
    computed: bool = False


class ReplicatedIndex:
    """A ``PrefixIndex`` in front of another one, and a ``Replicated``.

    Args:
        inner: The index of this gateway.
        is_known: Whether this gateway has the target.
    """

    def __init__(self, inner: PrefixIndex, is_known: Callable[[Target], bool]) -> None:
        self._inner = inner
        self._is_known = is_known
        self._steps: list[
            tuple[RouteStage, int, Target | None, int | None, Sequence[BlockChain], Sequence[BlockChain]]
        ] = []
        self._waiting_blocks = 0
        self._number = 0
        self._peer_requests: dict[str, dict[int, _PeerRequest]] = {}

    # Requests of this gateway

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> Lease:
        """See ``PrefixIndex``."""
        inner = self._inner.begin(chains, target, now)
        blocks = 1 + sum(len(chain.hashes) for chain in chains)
        if self._waiting_blocks + blocks > _MAX_BLOCKS:
            return _ReplicatedLease(inner, None, chains)
        self._waiting_blocks += blocks
        self._number += 1
        self._steps.append((RouteStage.BEGIN, self._number, target, None, chains, ()))
        return _ReplicatedLease(inner, self._number, chains)

    def computed(self, lease: Lease) -> None:
        """See ``PrefixIndex``."""
        assert isinstance(lease, _ReplicatedLease)
        self._inner.computed(lease.inner)
        self._step(RouteStage.COMPUTED, lease)

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain], now: float) -> None:
        """See ``PrefixIndex``."""
        assert isinstance(lease, _ReplicatedLease)
        filled = list(filled)
        self._inner.complete(lease.inner, cached_tokens, filled, now)
        self._step(RouteStage.COMPLETE, lease, cached_tokens, filled)

    def abandon(self, lease: Lease) -> None:
        """See ``PrefixIndex``."""
        assert isinstance(lease, _ReplicatedLease)
        self._inner.abandon(lease.inner)
        self._step(RouteStage.ABANDON, lease)

    def holdings(self, chains: Sequence[BlockChain], targets: Sequence[Target], now: float) -> list[Holding]:
        """See ``PrefixIndex``."""
        return self._inner.holdings(chains, targets, now)

    def set_capacity(self, target: Target, blocks: int | None, *, caching: bool = True) -> None:
        """See ``PrefixIndex``."""
        self._inner.set_capacity(target, blocks, caching=caching)

    def remove(self, target: Target) -> None:
        """See ``PrefixIndex``."""
        self._inner.remove(target)

    def block_size(self, target: Target) -> int | None:
        """See ``PrefixIndex``."""
        return self._inner.block_size(target)

    def state(self, target: Target) -> IndexState:
        """See ``PrefixIndex``."""
        return self._inner.state(target)

    # Requests of peers

    def changes(self, now: float, *, everything: bool) -> IndexMessage | None:  # noqa: ARG002 - ended requests are not sent again
        """See ``Replicated``."""
        if not self._steps:
            return None
        steps, self._steps, self._waiting_blocks = self._steps, [], 0
        return IndexMessage(
            [
                RouteMessage(
                    what,
                    number,
                    target.replica if target else "",
                    target.rank if target else 0,
                    cached,
                    [_encode_chain(chain, prompts) for chain in chains],
                )
                for what, number, target, cached, chains, prompts in steps
            ]
        )

    def receive(self, peer: str, message: IndexMessage, now: float) -> None:
        """See ``Replicated``."""
        requests = self._peer_requests.setdefault(peer, {})
        for step in message.steps:
            if step.what is RouteStage.BEGIN:
                target = Target(ReplicaId(step.replica), step.rank)
                if self._is_known(target):
                    chains = [_decode_chain(chain, ()) for chain in step.chains]
                    requests[step.number] = _PeerRequest(self._inner.begin(chains, target, now), chains)
            elif step.what is RouteStage.COMPUTED:
                self._computed(requests.get(step.number))
            else:
                self._end(step, requests.pop(step.number, None), now)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. Its requests may have ended without a message: computed prompts count as held."""
        for request in self._peer_requests.pop(peer, {}).values():
            if request.computed:
                self._inner.complete(request.lease, None, request.chains, now)
            else:
                self._inner.abandon(request.lease)

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``."""

    def _step(
        self, what: RouteStage, lease: _ReplicatedLease, cached: int | None = None, filled: Sequence[BlockChain] = ()
    ) -> None:
        if lease.number is not None:
            self._steps.append((what, lease.number, None, cached, filled, lease.chains))

    def _computed(self, request: _PeerRequest | None) -> None:
        if request is not None:
            request.computed = True
            self._inner.computed(request.lease)

    def _end(self, step: RouteMessage, request: _PeerRequest | None, now: float) -> None:
        if request is None:
            return
        if step.what is RouteStage.COMPLETE:
            filled = [_decode_chain(chain, request.chains) for chain in step.chains]
            self._inner.complete(request.lease, step.cached_tokens, filled, now)
        else:
            self._inner.abandon(request.lease)


def _encode_chain(chain: BlockChain, prompts: Sequence[BlockChain]) -> ChainMessage:
    """Encode a chain; of a chain that continues a prompt, only the blocks behind it, as peers have the prompt."""
    for position, prompt in enumerate(prompts):
        length = len(prompt.hashes)
        # A chain hash covers all blocks before it.
        if length and len(chain.hashes) >= length and chain.hashes[length - 1] == prompt.hashes[-1]:
            return ChainMessage(_pack_hashes(chain.hashes[length:]), chain.block_size, chain.tokens, position)
    return ChainMessage(_pack_hashes(chain.hashes), chain.block_size, chain.tokens)


def _decode_chain(chain: ChainMessage, prompts: Sequence[BlockChain]) -> BlockChain:
    hashes = _unpack_hashes(chain.hashes)
    if chain.after >= 0:
        hashes = [*prompts[chain.after].hashes, *hashes]
    if chain.block_size < 1 or chain.tokens < len(hashes) * chain.block_size:
        raise ValueError("a chain has more blocks than its tokens fill")
    return BlockChain(hashes, chain.block_size, chain.tokens)


def _pack_hashes(hashes: Sequence[BlockHash]) -> bytes:
    packed = array("Q", hashes)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack_hashes(data: bytes) -> list[BlockHash]:
    hashes = array("Q", data)
    if byteorder == "big":
        hashes.byteswap()
    return [BlockHash(each) for each in hashes]
