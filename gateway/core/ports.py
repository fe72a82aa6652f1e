"""Protocols between packages of the same layer, and the values that they pass.

Grouped by subject: the path of a request, changes to its prompt, auxiliary calls to engines, the prefix index, state
that several gateways in front of the same engines exchange, warm-up jobs, observers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from gateway.core.block_chain import BlockChain
from gateway.core.canonical import Canonicalized, PersonalFinding, RuleMode, RuleName
from gateway.core.ids import BlockHash, ModelId, ReplicaId, Target
from gateway.core.kv_events import FeedState, IndexSource, KvEvent, Unmatched
from gateway.core.prompt import LaterSystem
from gateway.core.reasons import Reason
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import SpaceEnd
from gateway.core.tenant import Caller, Tenant

T = TypeVar("T")
MessageT = TypeVar("MessageT")


class Sink(Protocol):
    """Where an answer goes: the client's connection."""

    @property
    def gone(self) -> bool:
        """Whether the client closed the connection."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether the answer has to be ended because the gateway is shutting down."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the client reads more slowly than is written."""
        ...

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call back once when ``congested`` ends. Not called if the client disconnects before."""
        ...

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send status and headers, together with the first piece of the body."""
        ...

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:
        """Send a piece of the body. Does nothing if the client is gone.

        Args:
            data: The piece; may be empty.
            more: Whether others follow.
            chunk: The same as one chunk of HTTP/1.1, if it came so; only with ``more``, and never empty.
        """
        ...


class Grant(Protocol):
    """The admission of a request: its caller, and its share of the tenant's limits."""

    @property
    def caller(self) -> Caller:
        """The authenticated caller."""
        ...

    @property
    def counts_tokens(self) -> bool:
        """Whether the tenant's prompt tokens are limited; if not, charges have no effect."""
        ...

    def charge(self, prompt_tokens: int, now: float) -> None:
        """Count the prompt's tokens against the tenant's limit, replacing an earlier charge.

        Args:
            prompt_tokens: Their number; an estimate before encoding and without a tokenizer.
            now: Monotonic seconds.

        Raises:
            RateLimited: they exceed the limit; nothing is counted for the request any more.
        """
        ...

    def correct(self, prompt_tokens: int) -> None:
        """Replace the charge by the engine's token count; 0 if it never computed them. Call at most once."""
        ...

    def refuse(self, now: float) -> None:
        """Give back the charge of a request refused for its content, or left by its client before it was computed. It
        counts as refused, unless requests are counted. Idempotent."""
        ...

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """The rate-limit headers of the answer; none for a tenant without limits."""
        ...

    def release(self) -> None:
        """The request is over. Idempotent."""
        ...


class CanonicalRequest(msgspec.Struct, frozen=True):
    """A request after canonicalization.

    Attributes:
        request: The changed request; the given object itself if nothing was changed.
        record: The part of the request record about canonicalization.
        edits: How many places each applied rule changed.
        cut_messages: Messages left out of a conversation that became too long.
    """

    request: ChatRequest
    record: Canonicalized
    edits: Mapping[RuleName, int] = {}
    cut_messages: int = 0


class LongTexts(Protocol):
    """Threads for work on long texts, shared between tenants fairly by bytes; see ``routing.fair_threads``."""

    async def run(self, tenant: Tenant, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread when it is the tenant's turn. If cancelled before, it is never called.

        Args:
            tenant: The tenant of the request.
            size: Bytes, or characters, of the text it works on.
            function: The function; must be safe to call in a thread.
            arguments: Its arguments.

        Raises:
            Overloaded: too much work waits, most of it of this tenant.
        """
        ...


class ContextStore(Protocol):
    """Context blocks of conversations, shared by several gateways. Must not raise; has a short timeout."""

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        """The blocks that exist; empty also if the store cannot be reached in time."""
        ...

    def keep(self, blocks: Mapping[bytes, str]) -> None:
        """Store blocks in the background. Returns at once."""
        ...


class ModelTexts(Protocol):
    """Token counts and context limits of models."""

    def token_counter(self, model: ModelId, tenant: str) -> Callable[[str], int] | None:
        """A thread-safe function that counts a text's tokens; None without a tokenizer in this process.

        Args:
            model: The model.
            tenant: The tenant; counts are cached per tenant.
        """
        ...

    def context_limit(self, model: ModelId) -> int:
        """Maximum tokens of prompt and answer together; 0 if unknown."""
        ...

    def later_system(self, model: ModelId) -> LaterSystem:
        """How its template takes system messages inside a conversation; ``joined`` without one in this process."""
        ...


class EngineUnavailable(Exception):
    """No replica of a model could answer an auxiliary call.

    Attributes:
        status: The engine's HTTP status, if it answered (403 and 404: the endpoint does not exist there).
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineCaller(Protocol):
    """Auxiliary calls to any replica of a model."""

    async def ask(
        self, model: ModelId, path: str, body: bytes, timeout_seconds: float, regions: frozenset[str] = frozenset()
    ) -> bytes:
        """POST a JSON body to ``path`` of one routable replica and return the body of its 200 answer.

        Args:
            model: The model.
            path: Path at the engine.
            body: A JSON document.
            timeout_seconds: Limit for the whole call.
            regions: Only replicas in these regions are called; empty for all.

        Raises:
            EngineUnavailable: no replica is up, none answered in time, or the answer was not 200.
        """
        ...


class EngineReader(Protocol):
    """Reads pages of one engine."""

    async def read(self, replica: ReplicaId, path: str, timeout_seconds: float) -> bytes:
        """GET ``path`` of one replica and return the body of its 200 answer.

        Raises:
            EngineUnavailable: it did not answer in time, or not with 200.
        """
        ...


class Lease(Protocol):
    """A request's hold on the blocks of its prompts at one target, from dispatch to the end of the answer."""

    @property
    def held_tokens(self) -> int:
        """Prompt tokens expected to be cached there at dispatch: the prediction."""
        ...


class Holding(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens of a request that a target is expected to hold.

    Attributes:
        tokens: Prompt tokens it need not compute.
        worth: The same, with tokens on a slower medium weighted less, because fetching them takes time.
    """

    tokens: int
    worth: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index's state of one target, for the admin port.

    Attributes:
        source: Where the holdings come from: events or predictions.
        blocks: Blocks expected to be held.
        digest: Equal in two gateways with equal holdings from events; None without events.
    """

    source: IndexSource
    blocks: int
    digest: int | None


class PrefixIndex(Protocol):
    """Which target holds which blocks. Synchronous, without I/O; ``now`` is monotonic seconds."""

    def holdings(self, chains: Sequence[BlockChain], targets: Sequence[Target], now: float) -> list[Holding]:
        """Holdings of each target, summed over the prompts of a request; zero for an unknown target.

        Args:
            chains: One per prompt, all with the targets' block size.
            targets: The candidates.
            now: Monotonic seconds.
        """
        ...

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> Lease:
        """A request was sent to a target: expect its blocks there for a short time, so that a burst stays together."""
        ...

    def computed(self, lease: Lease) -> None:
        """The target began to answer: the prompt's blocks are in its cache."""
        ...

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain], now: float) -> None:
        """The answer is complete.

        Args:
            lease: What ``begin`` returned; not to be used again.
            cached_tokens: What the engine reported as reused; None if it reports nothing. Less than the prediction
                means that older blocks are gone too.
            filled: The blocks that the request left in the engine's cache, one chain per choice: ``tokens`` counts all
                computed tokens; the hashes end earlier if the generated tokens are unknown.
            now: Monotonic seconds.
        """
        ...

    def abandon(self, lease: Lease) -> None:
        """The request was not computed: remove the blocks that only it was expected to bring."""
        ...

    def set_capacity(self, target: Target, blocks: int | None, *, caching: bool = True) -> None:
        """Set the target's capacity; None if unknown. With ``caching`` off the target holds nothing."""
        ...

    def remove(self, target: Target) -> None:
        """Remove the holdings of a target that left or restarted."""
        ...

    def block_size(self, target: Target) -> int | None:
        """Tokens per block according to the target's events; None without events."""
        ...

    def state(self, target: Target) -> IndexState:
        """The state of one target."""
        ...


class PrefixUse(msgspec.Struct, frozen=True, gc=False):
    """A request that used a prefix; shown with the prefix at the admin port.

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


class SettledPrompt(NamedTuple):
    """An answered request with one prompt, and how much of it was cached.

    Attributes:
        request: The request as it was sent.
        ids: Token ids of its prompt, as in ``TokenizedPrompt``; empty if they are placeholders or stand for media.
        chain: The prompt's block chain.
        target: Where it was sent.
        reused_tokens: Prompt tokens that were cached there: as the engine reported, else as predicted.
        prefill_seconds_per_token: The replica's learned rate.
        at: Unix seconds.
    """

    request: ChatRequest
    ids: bytes
    chain: BlockChain
    target: Target
    reused_tokens: int
    prefill_seconds_per_token: float
    at: float


class PromptObserver(Protocol):
    """Gets the prompts of answered requests, of clients and of warm-up. Must not wait."""

    @property
    def awaits_clients(self) -> bool:
        """Whether it is to get the prompts of clients' requests now; those of warm-up it always gets."""
        ...

    def on_prompt(self, prompt: SettledPrompt) -> None:
        """A request was answered."""
        ...


class EventIndex(Protocol):
    """The part of the index that KV events feed. Synchronous, without I/O."""

    def apply(self, target: Target, event: KvEvent) -> None:
        """Apply one event. A target's events have to be in the engine's order. Never raises for invalid events."""
        ...

    def advance(self, target: Target) -> bool:
        """Do a portion of the work that ``apply`` deferred; returns whether there is more.

        ``apply`` does a bounded part of the work that one event causes (a block that thousands waited for, the last
        block of a chain). The next ``apply`` would finish the rest at once, so call this until it returns False.
        """
        ...

    def clear(self, target: Target) -> None:
        """Remove the holdings of a target that come from events."""
        ...

    def set_feed(self, target: Target, state: FeedState) -> None:
        """Set the state of a target's event feed."""
        ...

    def problem(self, target: Target) -> str:
        """Why a target's events do not say what it can reuse, so that it is predicted; empty if they do."""
        ...

    def is_complete(self, target: Target) -> bool:
        """Whether the events cover the target's whole cache, even if some of them were missed."""
        ...

    def is_impossible(self, target: Target) -> bool:
        """Whether the blocks from events exceed the capacity of the target's cache."""
        ...

    def unmatched(self, target: Target) -> Unmatched:
        """The blocks that matched nothing since the target's first event."""
        ...

    def is_contradicted(self, target: Target, blocks: int) -> bool:
        """Whether so many blocks that match nothing are more than a cache that counts as known can have."""
        ...

    def tidy(self) -> None:
        """Do a part of the deferred cleaning up. Called about twice a second."""
        ...


class BlockHasher(Protocol):
    """Chain hashes of blocks that an engine describes."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """The root hash of a prompt's chain."""
        ...

    def extend(
        self, parent: int, tokens: bytes, block_size: int, extras: Sequence[bytes | None] | None
    ) -> list[BlockHash]:
        """Hashes of the full blocks of ``tokens`` (little-endian u32) behind ``parent``; extras as in ``BlockStored``,
        one per block."""
        ...


class Replicated(Protocol[MessageT]):
    """A component that sends state to its peers, and receives theirs, as msgspec structs of one type.

    A peer is another gateway; its name is that of one process. Synchronous, without I/O; ``now`` is monotonic seconds.
    """

    def changes(self, now: float, *, everything: bool) -> MessageT | None:
        """The message for all peers; None if nothing has changed.

        Args:
            now: Monotonic seconds.
            everything: Send the full state, not only changes: a peer may have missed earlier messages.
        """
        ...

    def receive(self, peer: str, message: MessageT, now: float) -> None:
        """Process a message from a peer.

        Raises:
            Exception: the message is invalid; it is ignored.
        """
        ...

    def missed(self, peer: str, now: float) -> None:
        """Messages of a peer were lost, or sent before the first one that was received, or the peer no longer sends."""
        ...

    def gone(self, peer: str, now: float) -> None:
        """A peer no longer sends. Also called after ``missed``."""
        ...


class SharedRecords(Protocol):
    """Named values in a store that several gateways share."""

    async def read(self) -> Mapping[str, bytes]:
        """All values.

        Raises:
            Exception: the store cannot be read now.
        """
        ...

    async def take(self, name: str) -> bytes | None:
        """Read a value and remove it at once, so that exactly one caller gets it; None if there is none.

        Raises:
            Exception: the store cannot be reached now.
        """
        ...

    async def write(self, changes: Mapping[str, bytes | None]) -> bool:
        """Write values; None removes one.

        Returns:
            Whether earlier values are still there.

        Raises:
            Exception: the store cannot be written now.
        """
        ...


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An action, or a refused one. Never holds text of a prompt or a key.

    Attributes:
        event: Its name, such as ``spaces_reset`` or ``admin_refused``.
        by: Id of a key or of an admin token; empty for the gateway itself or an unknown client.
        tenant: Id of the tenant concerned; empty for none.
        details: Further fields, JSON-ready.
    """

    event: str
    by: str = ""
    tenant: str = ""
    details: Mapping[str, object] = field(default_factory=dict)


class EventObserver(Protocol):
    """Gets KV events. Must not raise and must not wait."""

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """Events of a kind (``stored``, ``removed``, ``cleared``, ``unknown``) were received."""
        ...

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """Batches of events are missing."""
        ...

    def on_kv_unmatched(self, replica: ReplicaId, kind: str, blocks: int) -> None:
        """Blocks of a kind (the fields of ``Unmatched``) matched nothing although their target's were all known."""
        ...


class Observer(Protocol):
    """Gets finished requests. Must not raise and must not wait."""

    def on_settled(self, settlement: Settlement) -> None:
        """A request is over."""
        ...

    def on_refused(self, refusal: Refusal) -> None:
        """A request was refused before the flow."""
        ...


class PersonalDataObserver(Protocol):
    """Gets findings of personal data. Must not raise and must not wait."""

    def on_personal_data(
        self, request: ChatRequest, space: str, finding: PersonalFinding, *, shared: bool, new: bool
    ) -> None:
        """A finding in one more request.

        Args:
            request: The request.
            space: Short name of its prefix space.
            finding: Kind and position.
            shared: Whether it is in a part that prompts of several conversations share.
            new: Whether it is reported for the first time, or was not shared before.
        """
        ...

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """A request was not searched completely, because of overload or its length."""
        ...

    def on_detector_failed(self, tenant: Tenant, *, refused: bool) -> None:
        """The operator's detector gave no valid answer for a request that is masked or blocked.

        Args:
            tenant: The request's tenant.
            refused: Whether the request is refused; otherwise it goes on with what the patterns found.
        """
        ...


class SpaceObserver(Protocol):
    """Gets epochs of prefix spaces that end. Must not raise and must not wait."""

    def on_space_end(self, end: SpaceEnd) -> None:
        """An epoch ended, by a reset or by its age."""
        ...


class QueueObserver(Protocol):
    """Gets the state of the queue. Must not raise and must not wait."""

    def on_queue_length(self, model: ModelId, requests: int) -> None:
        """The number of waiting requests changed."""
        ...

    def on_queued(self, model: ModelId, seconds: float) -> None:
        """A request left the queue after so many seconds."""
        ...

    def on_shed(self, model: ModelId, tenant: Tenant, reason: str) -> None:
        """A request was refused: ``full`` (too many waited) or ``too_long`` (it waited too long)."""
        ...


class ExplainObserver(Protocol):
    """Gets the results of explanations. Must not raise and must not wait."""

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """Tokens were computed again; ``tenant`` is a label value."""
        ...

    def on_explain_skipped(self, count: int) -> None:
        """Requests were counted without a comparison of their text, because of overload."""
        ...

    def on_canonical(self, rule: str, mode: RuleMode, edits: float, saved: float, lost: float) -> None:
        """A rule changed prompts, or would have.

        Args:
            rule: As in ``RuleOutcome``.
            mode: As in ``RuleOutcome``.
            edits: Number of edits. As the tokens, times the weight of the request (``Explanation.weight``).
            saved: Prompt tokens that were, or would be, reused because of it.
            lost: Prompt tokens that were, or would be, computed again because of it.
        """
        ...
