"""The way of a request through the house: ``serve`` is one line per room, the rest is what each line means."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from gateway.account import finished
from gateway.epochs import PrefixSpaces
from gateway.hashing import ChainHasher
from gateway.placement import Affinity, Chooser
from gateway.relay import Fleet, Forwarder, Replica, asked_rank, suspect
from gateway.settle import client_family, confirmed_tokens, learn, replies, settlement
from gateway.trip import CLIENT_GONE_STATUS, ServedModel, Trip, shutting_down
from gateway.values.blocks import BlockChain, chain_block_size
from gateway.values.decision import Decision
from gateway.values.errors import GatewayError, NoReplica
from gateway.values.explain import Holder, Reply
from gateway.values.ids import ModelId, Target
from gateway.values.outcome import Ending, Outcome
from gateway.values.ports import (
    Canonicalizes,
    Explains,
    Grant,
    Holding,
    Observer,
    PrefixIndex,
    PrefixUse,
    PrefixUses,
    Screen,
    Sink,
    Trace,
)
from gateway.values.prompt import TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.values.request import ChatRequest
from gateway.values.settlement import Settlement

_log = structlog.get_logger("gateway.flow")

_FAILED = (Ending.NOT_CONNECTED, Ending.BROKEN, Ending.TIMED_OUT)
_REFUSED = (429, 500, 502, 503, 504)
"""Answers that say more about the replica than about the request."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Numbers of the configuration the flow works with.

    Attributes:
        default_block_size: Tokens per block of a replica whose metrics do not tell.
        suspect_seconds: How long a replica that failed a request is left out if there are others.
        connect_retries: Other replicas tried when no connection can be made.
        gone_after_seconds: A replica that is down for so long counts as gone.
    """

    default_block_size: int
    suspect_seconds: float
    connect_retries: int
    gone_after_seconds: float


class Flow:
    """Takes requests through the rooms. It builds nothing; it decides only who is tried next."""

    def __init__(
        self,
        *,
        models: Mapping[ModelId, ServedModel],
        hasher: ChainHasher,
        index: PrefixIndex,
        uses: PrefixUses,
        chooser: Chooser,
        fleet: Fleet,
        forwarder: Forwarder,
        spaces: PrefixSpaces,
        screen: Screen,
        canon: Canonicalizes,
        observers: Sequence[Observer],
        explains: Explains,
        limits: FlowLimits,
    ) -> None:
        self._models = models
        self._hasher = hasher
        self._index = index
        self._uses = uses
        self._chooser = chooser
        self._fleet = fleet
        self._forwarder = forwarder
        self._spaces = spaces
        self._screen = screen
        self._canon = canon
        self._observers = observers
        self._explains = explains
        self._limits = limits

    async def serve(self, request: ChatRequest, sink: Sink, grant: Grant, trace: Trace | None = None) -> None:
        """Answer one request.

        Args:
            request: The request.
            sink: Where the answer goes.
            grant: What it was admitted with.
            trace: Where it is told to whoever collects traces; whoever began it ends it.

        Raises:
            GatewayError: nothing was sent to the client, and this is what it should be told.
        """
        trip = Trip(request, request, self._models[request.model], grant, client_family(request.headers), trace)
        try:
            trip.space = self._spaces.enter(request.caller, trip.model.version(), request.fields, time.time())
            trip.request = await self._inspect(trip)
            trip.canonical = await self._canon.canonical(trip.request)
            trip.request = trip.canonical.request
            trip.lap("canon")
            trip.prompt = await self._encode(trip, sink)
            trip.lap("encode")
            grant.charge(trip.prompt.tokens, time.monotonic())
            while trip.outcome is None:
                targets = self._targets(trip)
                self._hash(trip, targets.values())
                trip.lap("hash")
                trip.decision = self._place(trip, targets, self._holdings(trip, targets))
                trip.lap("place")
                trip.outcome = await self._relay(trip, targets, sink)
        except GatewayError as error:
            grant.correct(0)
            self._observe(trip, error.status, error.code)
            raise
        await self._settle(trip)
        failure = trip.failure()
        self._explain(trip, self._observe(trip, trip.status, failure.code if failure else None))
        if failure is not None:
            raise failure

    def block_size(self, replica: Replica) -> int:
        """Tokens per block of the chains by which prompts are looked up at a replica."""
        told = self._index.block_size(replica.targets()[0])
        return told or chain_block_size(replica.facts.block_size or self._limits.default_block_size)

    async def _inspect(self, trip: Trip) -> ChatRequest:
        try:
            return await self._screen.inspect(trip.asked)
        except GatewayError:
            # What is refused is counted as well: it is what the operator wants to hear of most.
            self._screen.answered(trip.asked, trip.space.id)
            raise

    async def _encode(self, trip: Trip, sink: Sink) -> TokenizedPrompt:
        try:
            return await trip.model.encoder.encode(trip.request)
        except asyncio.CancelledError:
            # While the engine was asked for the tokens, or a long prompt was encoded.
            if sink.gone:
                self._observe(trip, CLIENT_GONE_STATUS)
            elif sink.interrupted:
                raise shutting_down() from None
            raise

    def _targets(self, trip: Trip) -> Mapping[Target, Replica]:
        """Where the request may go: every rank of every routable replica, but for what the client asks for."""
        if (warmed := trip.request.warms) is not None:
            return self._warmed(trip, warmed)
        regions = trip.request.caller.tenant.regions
        replicas = self._fleet.routable(trip.model.id, time.monotonic(), trip.tried, regions)
        if not replicas:
            configured = sum(not regions or replica.region in regions for replica in self._fleet.of(trip.model.id))
            where = f" in {' or '.join(sorted(regions))}" if regions else ""
            raise NoReplica(
                f"No replica of model {trip.model.id!r}{where} is up ({configured} configured). Try again in a moment.",
                code="no_replica",
            )
        if (rank := asked_rank(trip.request.headers)) is not None:
            asked = {target: replica for replica in replicas if (target := replica.asked_target(rank)) is not None}
            if asked:
                return asked
        return {target: replica for replica in replicas for target in replica.targets()}

    def _warmed(self, trip: Trip, target: Target) -> Mapping[Target, Replica]:
        for replica in self._fleet.of(trip.model.id):
            if replica.id == target.replica and replica.up and target in replica.targets() and not trip.tried:
                return {target: replica}
        raise NoReplica(f"Replica {target.replica} is not up.", code="no_replica")

    def _hash(self, trip: Trip, replicas: Iterable[Replica]) -> None:
        root, parts = trip.root, trip.prompt.parts
        media = trip.prompt.media or ((),) * len(parts)
        for size in {self.block_size(replica) for replica in replicas} - trip.chains.keys():
            trip.chains[size] = [
                self._hasher.chain(root, part, size, items) for part, items in zip(parts, media, strict=True)
            ]

    def _holdings(self, trip: Trip, targets: Mapping[Target, Replica]) -> list[Holding]:
        by_block_size: dict[int, list[Target]] = {}
        for target, replica in targets.items():
            by_block_size.setdefault(self.block_size(replica), []).append(target)
        now = time.monotonic()
        try:
            found: dict[Target, Holding] = {}
            for size, group in by_block_size.items():
                found.update(zip(group, self._index.holdings(trip.chains[size], group, now), strict=True))
            return [found[target] for target in targets]
        except Exception:  # noqa: BLE001 - whatever it is, it must not cost the client its answer
            # The index only steers. Without it the request is balanced by load.
            _log.exception("index_failed", request_id=trip.request.request_id)
            trip.indexed = False
            return [Holding(0, 0.0)] * len(targets)

    def _place(self, trip: Trip, targets: Mapping[Target, Replica], holdings: Sequence[Holding]) -> Decision:
        now = time.monotonic()
        trip.barred = self._barred(trip, targets, now)
        return self._chooser.choose(
            [replica.load(target.rank, now) for target, replica in targets.items()],
            holdings,
            trip.prompt.tokens,
            Affinity(trip.beginning, trip.affinity),
            retried=bool(trip.tried),
            blind=trip.prompt.source is TokenSource.TEXT or not trip.indexed,
        )

    def _barred(self, trip: Trip, targets: Mapping[Target, Replica], now: float) -> list[Holder]:
        """What the model's other targets hold: a request may have to be computed again because it cannot go there."""
        others = [
            (target, replica)
            for replica in self._fleet.of(trip.model.id)
            for target in replica.targets()
            if target not in targets
            and (replica.down_since is None or now - replica.down_since < self._limits.gone_after_seconds)
        ]
        if not others or not trip.indexed:
            return []
        self._hash(trip, [replica for _, replica in others])
        held = self._holdings(trip, dict(others))
        return [
            Holder(target.replica, target.rank, holding.tokens, barred=_why_barred(trip, replica, now))
            for (target, replica), holding in zip(others, held, strict=True)
        ]

    async def _relay(self, trip: Trip, targets: Mapping[Target, Replica], sink: Sink) -> Outcome | None:
        """One attempt. None: no connection could be made, and another replica is left to try."""
        decision = trip.decision
        assert decision is not None
        target = decision.target
        replica = trip.replica = targets[target]
        trip.sent_chains = trip.chains[self.block_size(replica)]
        trip.dispatched_at = time.monotonic()
        ticket = replica.dispatch(target.rank, trip.prompt.tokens - decision.held_tokens, trip.sequences)
        trip.prefill_ahead = ticket.prefill_ahead
        if trip.indexed:
            trip.lease = self._index.begin(trip.sent_chains, target, trip.dispatched_at)

        def first_byte() -> None:
            ticket.prefill_done()
            if trip.lease is not None:
                self._index.computed(trip.lease)

        # Without a stream the first byte comes with the last one, so the end of the prefill has to be estimated.
        estimate = next(c.queue_seconds + c.prefill_seconds for c in decision.candidates if c.target == target)
        timer = None if trip.request.stream else asyncio.get_running_loop().call_later(estimate, ticket.prefill_done)
        trace, origin = trip.trace, replica.origin
        trace_headers = trace.relay(decision, origin.host, origin.port) if trace is not None else None
        try:
            outcome = await self._forwarder.forward(
                trip.request,
                replica,
                target.rank,
                sink,
                salt=trip.space.salt,
                own_headers=_own_headers(trip),
                trace_headers=trace_headers,
                on_first_byte=first_byte,
            )
        except BaseException:
            self._abandon(trip)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            ticket.done()
        if trace is not None:
            trace.relayed(outcome)
        if outcome.ending in _FAILED or outcome.status in _REFUSED:
            # One that fails at once is never busy: it would look like the best choice for the next request, too.
            suspect(replica, self._limits.suspect_seconds)
            _log.warning(
                "attempt_failed",
                request_id=trip.request.request_id,
                replica=replica.id,
                ending=str(outcome.ending),
                status=outcome.status,
            )
        if outcome.ending is Ending.NOT_CONNECTED and len(trip.tried) < self._limits.connect_retries:
            trip.tried.add(replica.id)
            if self._left(trip):
                self._abandon(trip)
                trip.resume_clock()
                return None
        return outcome

    def _left(self, trip: Trip) -> bool:
        """Whether there is another replica to try."""
        regions = trip.request.caller.tenant.regions
        return trip.request.warms is None and bool(
            self._fleet.routable(trip.model.id, time.monotonic(), trip.tried, regions)
        )

    async def _settle(self, trip: Trip) -> None:
        """Correct the index and the learned rates by what the engine reported."""
        outcome, replica, decision = trip.outcome, trip.replica, trip.decision
        assert outcome is not None
        assert replica is not None
        assert decision is not None
        trip.resume_clock()
        if not trip.prefilled:
            if trip.declined:
                trip.grant.correct(0)
            self._abandon(trip)
            return
        if outcome.usage is not None:
            trip.grant.correct(outcome.usage.prompt_tokens)
        self._screen.answered(trip.asked, trip.space.id)
        replica.answered(outcome.usage, decision.held_tokens)
        cached = confirmed_tokens(trip.request, trip.prompt, outcome)
        if trip.lease is not None:
            self._index.complete(trip.lease, cached, await self._filled(trip), time.monotonic())
            held = trip.lease.held_tokens if cached is None else cached
            trip.lease = None
            learn(replica.speed, outcome, trip.prefill_ahead, trip.prompt.tokens - held)
            self._note_use(trip, held)
        trip.lap("settle")

    def _note_use(self, trip: Trip, reused_tokens: int) -> None:
        """Tell what a client's request had in common with those before it."""
        request, chains = trip.request, trip.sent_chains
        if request.warms is not None or not chains:
            return
        try:
            use = PrefixUse(request.model, request.caller.tenant.id, trip.source, request.request_id)
            # Of several prompts only the sum is known; they mostly begin alike.
            self._uses.note(chains[0], reused_tokens // len(chains), use, time.time())
        except Exception:  # noqa: BLE001 - whatever it is, the client has its answer and must not hear of it
            _log.exception("prefix_use_failed", request_id=request.request_id)

    async def _filled(self, trip: Trip) -> list[BlockChain]:
        """What the request left in the engine's cache: the prompt's blocks and those filled while decoding."""
        outcome, prompt, chains = trip.outcome, trip.prompt, trip.sent_chains
        assert outcome is not None
        if len(chains) != 1 or outcome.usage is None:
            return list(chains)
        (chain,) = chains
        found = replies(outcome)
        tokens = outcome.usage.completion_tokens // max(len(found), 1)
        # The last token of an answer is sampled but never computed itself.
        computed = prompt.tokens + max(tokens - 1, 0)
        trip.replies = [await self._encoded(trip, reply, tokens) for reply in found]
        filled = []
        for ids in [reply.ids for reply in trip.replies] or [None]:
            known = chain if ids is None else self._hasher.extended(trip.root, chain, prompt.parts[0] + ids)
            filled.append(BlockChain(known.hashes, known.block_size, max(computed, known.tokens)))
        return filled

    async def _encoded(self, trip: Trip, reply: Reply, tokens: int) -> Reply:
        """A choice of the answer of so many tokens, with their ids where they can be known."""
        ids = None
        if reply.text is not None and trip.prompt.source is TokenSource.LOCAL:
            ids = (await trip.model.encoder.encode_reply(reply.text) or b"")[: max(tokens - 1, 0) * TOKEN_BYTES]
        return msgspec.structs.replace(reply, ids=ids, tokens=tokens)

    def _abandon(self, trip: Trip) -> None:
        if trip.lease is not None:
            self._index.abandon(trip.lease)
            trip.lease = None

    def _explain(self, trip: Trip, settled: Settlement) -> None:
        """Hand an answered request over to be explained; that happens elsewhere, and later."""
        if not trip.prefilled or settled.status != 200:
            return
        try:
            self._explains.finished(finished(trip, settled, with_text=self._explains.wants_text))
        except Exception:  # noqa: BLE001 - whatever it is, the client has its answer and must not hear of it
            _log.exception("explain_failed", request_id=trip.request.request_id)

    def _observe(self, trip: Trip, status: int, code: str | None = None) -> Settlement:
        settled = settlement(
            trip.request,
            trip.prompt,
            trip.decision,
            trip.outcome,
            rates=trip.replica.speed.rates if trip.replica else None,
            status=status,
            failed_attempts=len(trip.tried),
            dispatched_at=trip.dispatched_at,
            now=time.monotonic(),
            stages=tuple(trip.stages),
            space=trip.space.id,
            code=code,
            canonical=tuple(trip.applied_rules),
        )
        for observer in self._observers:
            observer.on_settled(settled)
        if trip.trace is not None:
            trip.trace.settled(settled)
        return settled


def _why_barred(trip: Trip, replica: Replica, now: float) -> str:
    """Why a target was no candidate; see ``Holder.barred``."""
    if replica.id in trip.tried:
        return "failed"
    return "pinned" if replica.up and replica.suspect_until <= now and not replica.warming else "unavailable"


def _own_headers(trip: Trip) -> list[tuple[bytes, bytes]]:
    """What the gateway says about its decision."""
    decision = trip.decision
    assert decision is not None
    headers = [
        (b"x-request-id", trip.request.request_id.encode()),
        (b"x-gateway-replica", decision.replica.encode()),
        (b"x-gateway-decision", decision.kind.encode()),
        (b"x-gateway-prompt-tokens", str(trip.prompt.tokens).encode()),
        (b"x-gateway-prefix-tokens", str(decision.held_tokens).encode()),
        *trip.grant.headers(time.monotonic()),
    ]
    if rules := trip.applied_rules:
        headers.append((b"x-gateway-canonical", ",".join(rules).encode()))
    if trip.canonical is not None and trip.canonical.cut_messages:
        headers.append((b"x-gateway-cut-messages", str(trip.canonical.cut_messages).encode()))
    if trip.prompt.source is TokenSource.TEXT:
        # The counts above are then counts of stand-ins; nobody should take them for the model's.
        headers.append((b"x-gateway-tokens", b"estimated"))
    return headers
