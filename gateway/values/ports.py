"""The protocols through which rooms see each other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.values.audit import AuditEvent
from gateway.values.blocks import BlockChain
from gateway.values.canonical import Canonicalized, RuleMode, RuleName
from gateway.values.decision import Decision
from gateway.values.explain import Finished, Happened
from gateway.values.ids import BlockHash, ModelId, ReplicaId, Target
from gateway.values.kv_events import FeedState, IndexSource, KvEvent
from gateway.values.load import Rates
from gateway.values.outcome import Outcome
from gateway.values.personal import Finding, FindingReport
from gateway.values.reasons import Reason
from gateway.values.request import ChatRequest
from gateway.values.settlement import Refusal, Settlement
from gateway.values.space import SpaceEnd, SpaceSelection
from gateway.values.tenant import Caller, Tenant


class EngineUnavailable(Exception):
    """No replica of a model could answer an auxiliary call.

    Attributes:
        status: The engine's HTTP status where it gave one (403 and 404 mean: this endpoint will not appear by itself).
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineCaller(Protocol):
    """Auxiliary calls to whichever replica of a model answers."""

    async def ask(
        self, model: ModelId, path: str, body: bytes, timeout_seconds: float, regions: frozenset[str] = frozenset()
    ) -> bytes:
        """POST a JSON body to ``path`` of one routable replica and return the body of its 200 answer.

        Args:
            model: Whose replicas.
            path: Path of the engine.
            body: A JSON document.
            timeout_seconds: Limit for the whole call.
            regions: Only replicas there are asked; empty for all.

        Raises:
            EngineUnavailable: no replica is up, none answered in time, or the answer was not 200.
        """
        ...


class EngineReader(Protocol):
    """What an engine says about itself."""

    async def read(self, replica: ReplicaId, path: str, timeout_seconds: float) -> bytes:
        """GET ``path`` of one replica and return the body of its 200 answer.

        Raises:
            EngineUnavailable: it did not answer in time, or not with 200.
        """
        ...


class EventObserver(Protocol):
    """Somebody who counts KV events. Must not raise and must not wait."""

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """Events of a kind (``stored``, ``removed``, ``cleared``, ``unknown``) came in."""
        ...

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """Batches of events are missing."""
        ...


class Lease(Protocol):
    """A request's hold on the blocks of its prompts at one target, from dispatch to the end of the answer."""

    @property
    def held_tokens(self) -> int:
        """Prompt tokens the index believed cached there at dispatch: the prediction."""
        ...


class Holding(NamedTuple):
    """What a target is believed to hold of a request.

    Attributes:
        tokens: Prompt tokens it need not compute.
        worth: The same, with tokens on a slower medium counted for less, because fetching them takes time.
    """

    tokens: int
    worth: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """What the index knows of one target, for people to look at.

    Attributes:
        source: What the belief rests on at present.
        blocks: Blocks believed held.
        digest: A number that two gateways share when the same events left them the same holdings; None without events.
    """

    source: IndexSource
    blocks: int
    digest: int | None


class PrefixIndex(Protocol):
    """Who holds which prefix. Synchronous, without I/O; ``now`` is monotonic seconds."""

    def holdings(self, chains: Sequence[BlockChain], targets: Sequence[Target], now: float) -> list[Holding]:
        """What each target is believed to hold of a request, summed over its prompts. An unknown target: nothing.

        Args:
            chains: One per prompt, all with the targets' block size.
            targets: Whom to look at.
            now: Monotonic seconds.
        """
        ...

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> Lease:
        """A request was sent to a target: believe in its blocks for a short while, so that a burst stays together."""
        ...

    def computed(self, lease: Lease) -> None:
        """The target has begun to answer, so the prompt's blocks are in its cache."""
        ...

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain], now: float) -> None:
        """The answer is complete.

        Args:
            lease: What ``begin`` returned; not to be used again.
            cached_tokens: What the engine reported as reused; None if it reports nothing. Less than the prediction
                means that older blocks are gone too.
            filled: What the request left in the engine's cache, one chain per choice: ``tokens`` counts all that was
                computed, the hashes may end before where the generated tokens are not known.
            now: Monotonic seconds.
        """
        ...

    def abandon(self, lease: Lease) -> None:
        """The request was never computed: forget what only it had brought."""
        ...

    def set_capacity(self, target: Target, blocks: int | None, *, caching: bool = True) -> None:
        """What the engine can hold; None if it does not say. With ``caching`` off the target holds nothing."""
        ...

    def remove(self, target: Target) -> None:
        """Forget a target that left or restarted."""
        ...

    def block_size(self, target: Target) -> int | None:
        """Tokens per block of the chains a target is known by, if its events have told; else its metrics do."""
        ...

    def state(self, target: Target) -> IndexState:
        """What is known of one target."""
        ...


class PrefixUse(NamedTuple):
    """A request that used a prefix, for people to recognize the prefix by.

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


class PrefixUses(Protocol):
    """Somebody who follows which prefixes requests have in common. Synchronous, without I/O."""

    def note(self, chain: BlockChain, reused_tokens: int, use: PrefixUse, now: float) -> None:
        """A request was answered.

        Args:
            chain: Its prompt.
            reused_tokens: Prompt tokens that were not computed again: where it parts from those before it.
            use: The request.
            now: Unix seconds.
        """
        ...


class EventIndex(Protocol):
    """The part of the index that KV events feed. Synchronous, without I/O."""

    def apply(self, target: Target, event: KvEvent) -> None:
        """Take over one event. Events of a target have to come in the engine's order. Never raises for odd events."""
        ...

    def clear(self, target: Target) -> None:
        """Forget what events have told about a target."""
        ...

    def set_feed(self, target: Target, state: FeedState) -> None:
        """How far the events of a target can be trusted from now on."""
        ...

    def is_complete(self, target: Target) -> bool:
        """Whether what events have told accounts for the target's whole cache, even if some of them were missed."""
        ...

    def is_impossible(self, target: Target) -> bool:
        """Whether events have told of more than the target's cache has room for."""
        ...

    def tidy(self) -> None:
        """Do some of the cleaning up that was put off. Called about twice a second."""
        ...


class BlockHasher(Protocol):
    """Chain hashes of blocks that an engine describes."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """Where the chain of a prompt begins."""
        ...

    def extend(
        self, parent: int, tokens: bytes, block_size: int, extras: Sequence[bytes | None] | None
    ) -> list[BlockHash]:
        """Hashes of the full blocks of ``tokens`` (little-endian u32) behind ``parent``; extras as in ``BlockStored``,
        one per block."""
        ...


class RateLearner(Protocol):
    """How fast one replica is, learned from its answers."""

    @property
    def rates(self) -> Rates:
        """The present belief."""
        ...

    def observe_first_token(self, prefill_tokens: int, seconds: float) -> None:
        """A first token came ``seconds`` after dispatch, ``prefill_tokens`` having been prefilled meanwhile."""
        ...

    def observe_decode(self, completion_tokens: int, seconds: float) -> None:
        """``completion_tokens`` after the first took ``seconds``."""
        ...

    def observe_request(self, prefill_tokens: int, completion_tokens: int, seconds: float, *, streamed: bool) -> None:
        """A whole request took ``seconds``."""
        ...


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

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send status and headers."""
        ...

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body; with ``more`` false it is the last one."""
        ...


class Observer(Protocol):
    """Somebody who wants to know of finished requests. Must not raise and must not wait."""

    def on_settled(self, settlement: Settlement) -> None:
        """A request is over."""
        ...

    def on_refused(self, refusal: Refusal) -> None:
        """A request was answered before it got anywhere."""
        ...


class Trace(Protocol):
    """One request, as it is told to whoever collects traces. Must not raise and must not wait.

    Its clock runs from ``Tracer.begin``: a room begins where the one before ended.
    """

    def lap(self, room: str) -> None:
        """The request leaves a room."""
        ...

    def resume(self) -> None:
        """What went before belongs to no room."""
        ...

    def relay(self, decision: Decision, host: str, port: int) -> Sequence[tuple[bytes, bytes]] | None:
        """An attempt at a replica begins.

        Returns:
            Headers that go to the replica in place of the client's ``traceparent`` and ``tracestate``; None leaves
            those as they came.
        """
        ...

    def relayed(self, outcome: Outcome) -> None:
        """The attempt is over."""
        ...

    def settled(self, settlement: Settlement) -> None:
        """The request is over, and this is what is known of it."""
        ...

    def refused(self, refusal: Refusal) -> None:
        """The request was answered before it got anywhere."""
        ...

    def end(self) -> None:
        """Nothing more will come, whether or not the request was answered. Call once."""
        ...


class Tracer(Protocol):
    """Tells requests to whoever collects traces. Must not raise and must not wait."""

    def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> Trace:
        """A request has come.

        Args:
            headers: Its headers, names in lower case.
        """
        ...


class Grant(Protocol):
    """What a request was admitted with: who asks, and its share of the tenant's limits."""

    @property
    def caller(self) -> Caller:
        """On whose behalf it comes."""
        ...

    def charge(self, prompt_tokens: int, now: float) -> None:
        """Count the prompt's tokens against the tenant's limit.

        Args:
            prompt_tokens: How many; an estimate where there is no tokenizer.
            now: Monotonic seconds.

        Raises:
            RateLimited: they do not fit; nothing was counted.
        """
        ...

    def correct(self, prompt_tokens: int) -> None:
        """The engine counted the prompt's tokens; 0 if it never computed them. Call at most once."""
        ...

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """The rate-limit headers of the answer; none for a tenant without limits."""
        ...

    def release(self) -> None:
        """The request is over, however it ended. May be repeated."""
        ...


class Gate(Protocol):
    """Decides who may ask, and how much. Synchronous, without I/O."""

    def identify(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float) -> Caller:
        """Who asks; counts against no limit.

        Args:
            headers: The request's, names in lower case.
            peer: Address that the connection comes from; empty if unknown.
            wall: Unix seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: what the client should be told.
        """
        ...

    def admit(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float, now: float) -> Grant:
        """As ``identify``, and takes a request's share of the tenant's limits; ``now`` is monotonic seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: what the client should be told.
            RateLimited: the tenant has no request left.
        """
        ...

    def tenant(self, tenant: str) -> Tenant | None:
        """The tenant of a name; None if there is none."""
        ...


class Screen(Protocol):
    """Looks for personal data in prompts."""

    async def inspect(self, request: ChatRequest) -> ChatRequest:
        """The request as it may go on: itself, or with what was found masked.

        Looks only where the tenant's mode needs it before the request goes on (``mask``, ``block``).

        Raises:
            BadRequest: the tenant's mode is ``block``, and something was found.
        """
        ...

    def answered(self, request: ChatRequest, space: str) -> None:
        """The request was answered: count what is found in it. Returns at once; the work is done later.

        Args:
            request: The request as the client sent it, before anything was masked.
            space: Short name of its prefix space.
        """
        ...

    def reports(self, space: str) -> Sequence[FindingReport]:
        """What was found in the prompts of a space, most frequent first."""
        ...


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A request after canonicalization.

    Attributes:
        request: As it goes on; the very object that was given if nothing was changed.
        told: What is handed over to be explained.
        edits: How many places each applied rule changed.
        cut_messages: Messages left out of a conversation that became too long.
        affinity: Requests of one go to one replica where nothing else decides; None if the client says nothing.
    """

    request: ChatRequest
    told: Canonicalized
    edits: Mapping[RuleName, int] = field(default_factory=dict)
    cut_messages: int = 0
    affinity: str | None = None


class Canonicalizes(Protocol):
    """Puts what repeats in prompts in front of what varies, where that is configured."""

    async def canonical(self, request: ChatRequest) -> CanonicalRequest:
        """The request as it may go on. Never fails: what cannot be canonicalized goes on as it came."""
        ...


class ContextStore(Protocol):
    """Context blocks of conversations, for several gateways. Must not raise; nobody waits for it longer than it takes
    to answer without them."""

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        """Those that are there; empty also if the store cannot be reached in time."""
        ...

    def keep(self, blocks: Mapping[bytes, str]) -> None:
        """Keep some, later. Returns at once."""
        ...


class ModelTexts(Protocol):
    """What is known of models' texts."""

    def token_counter(self, model: ModelId, tenant: str) -> Callable[[str], int] | None:
        """Counts a text's tokens; None where no tokenizer in this process can. Safe to use from several threads.

        Args:
            model: Whose tokens.
            tenant: For whom: counts that are remembered are remembered for one tenant alone.
        """
        ...

    def context_limit(self, model: ModelId) -> int:
        """Most tokens of prompt and answer it takes; 0 if unknown."""
        ...


class PersonalDataObserver(Protocol):
    """Somebody who wants to know of personal data found. Must not raise and must not wait."""

    def on_personal_data(self, request: ChatRequest, space: str, finding: Finding, *, shared: bool, new: bool) -> None:
        """Something was found in one more request.

        Args:
            request: In which.
            space: Short name of its prefix space.
            finding: What and where.
            shared: Whether it stands in a part that prompts of several conversations have in common.
            new: Whether this was not yet so, or not known, the last time.
        """
        ...

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """A request was not searched, or not all of it: there was too much to do, or too much text."""
        ...


class SpaceObserver(Protocol):
    """Somebody who wants to know of lives of prefix spaces that end. Must not raise and must not wait."""

    def on_space_end(self, end: SpaceEnd) -> None:
        """A space was reset, or its time was over."""
        ...


class Auditor(Protocol):
    """Writes the audit log. Must not raise and must not wait."""

    def record(self, event: AuditEvent) -> None:
        """Write one event."""
        ...


class SpaceDesk(Protocol):
    """Where operators look at prefix spaces and end their lives."""

    def shown(self) -> Iterable[Mapping[str, object]]:
        """Every living space, then the last that ended, JSON-ready and made one by one; as in
        ``GET /admin/api/spaces``."""
        ...

    async def reset(self, selection: SpaceSelection, by: str) -> Sequence[SpaceEnd]:
        """End the lives of all spaces of a selection. Returns when no later start of the gateway can undo it.

        Args:
            selection: Which.
            by: Who asks: id of an admin token, empty without one.

        Raises:
            BadRequest: it names a model or a tenant that does not exist.
        """
        ...


class WarmDesk(Protocol):
    """Where operators have caches filled."""

    def start(self, order: Mapping[str, object], by: str) -> Mapping[str, object]:
        """Begin to send declared prefixes; returns the job as ``job`` does.

        Args:
            order: The parsed body of ``POST /admin/api/warm``.
            by: Who asks: id of an admin token, empty without one.

        Raises:
            BadRequest: the order is wrong; message and param say where.
        """
        ...

    def job(self, job: str) -> Mapping[str, object] | None:
        """How far a job is, JSON-ready; None if there is no such."""
        ...

    async def overview(self) -> Mapping[str, object]:
        """What the configuration declares and the last jobs, JSON-ready; as in ``GET /admin/api/warm``."""
        ...


class Explains(Protocol):
    """Somebody who explains requests, later and elsewhere. Must not raise and must not wait."""

    @property
    def wants_text(self) -> bool:
        """Whether body and tokens of a request can be taken at the moment; else ``Finished`` comes without them."""
        ...

    def finished(self, finished: Finished) -> None:
        """A request was answered."""
        ...

    def happened(self, event: Happened) -> None:
        """Something happened to what is cached."""
        ...


class ExplainObserver(Protocol):
    """Somebody who counts what explanations say. Must not raise and must not wait."""

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """Tokens were computed again; ``tenant`` is a label's value."""
        ...

    def on_explain_skipped(self, count: int) -> None:
        """Requests were counted without looking at their text, because the explanation was behind."""
        ...

    def on_canonical(self, rule: str, mode: RuleMode, edits: int, saved: int, lost: int) -> None:
        """A rule changed prompts, or would have.

        Args:
            rule: As in ``RuleOutcome``.
            mode: Likewise.
            edits: How many places.
            saved: Prompt tokens that were, or would be, reused by that.
            lost: Those that were, or would be, computed again by that.
        """
        ...


class ExplainDesk(Protocol):
    """Where operators ask why tokens were computed again."""

    async def ask(self, question: str, arguments: Mapping[str, str]) -> bytes:
        """The answer as a JSON document.

        Args:
            question: ``summary``, ``reasons``, ``requests`` or ``request``: paths below ``/admin/api/``. Or ``tokens``,
                whose answer holds token ids and must not be shown: ``{"model", "equal_tokens", "before": [ids],
                "after": [ids], "first"}``, equal up to ``first``; ``null`` where there is nothing to compare.
            arguments: The query's parameters; for ``request`` and ``tokens`` the request's ``id``.

        Raises:
            BadRequest: a parameter is wrong; message and param say how.
            NotFound: there is no such request in the journal.
            GatewayError: explanations are turned off, or their process does not answer.
        """
        ...
