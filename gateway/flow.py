"""The way of a request through the house: ``serve`` is one line per room, the rest is what each line means."""

import asyncio
import math
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog

from gateway import request_record as account
from gateway.context import CLIENT_GONE_STATUS, RequestContext, ServedModel, expired, shutting_down
from gateway.core.block_chain import BlockChain, chain_block_size
from gateway.core.decision import Decision
from gateway.core.errors import GatewayError, NoReplica, Overloaded
from gateway.core.explanation import ReplicaPrefix, ReplyChoice
from gateway.core.ids import ModelId, Target
from gateway.core.portions import Portioned, finished
from gateway.core.ports import (
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
from gateway.core.prompt import TOKEN_BYTES, TokenSource
from gateway.core.replica_state import ReplicaState
from gateway.core.request import ChatRequest
from gateway.core.settlement import Settlement
from gateway.core.target_load import Load
from gateway.explain.client_family import client_family
from gateway.explain.learn_rates import learn
from gateway.explain.reconcile import confirmed_tokens, settlement
from gateway.explain.replies import replies
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.overload import Overload
from gateway.proxy import asked_rank
from gateway.retry import Attempts
from gateway.routing import Affinity, Chooser
from gateway.spaces import PrefixSpaces
from gateway.tokenize import least_tokens
from gateway.tokenize.block_hashes import ChainHasher
from gateway.turns import Turns

_log = structlog.get_logger("gateway.flow")
_T = TypeVar("_T")

_MOST_CHAINS = 256
"""Prompts of one request that are looked up and remembered; those behind them only count as tokens to compute. Prompts
of one request mostly begin alike."""

_MAX_LOOKUPS = 2048
"""Of prompts at targets, for one placement: with more than eight targets, fewer prompts are looked up."""

_CHAINS_AT_ONCE = 16
"""Prompts that are hashed in one portion."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Numbers of the configuration the flow works with.

    Attributes:
        default_block_size: Tokens per block of a replica whose metrics do not tell.
        total_timeout_seconds: How long a request may take.
        gone_after_seconds: A replica that is down for so long counts as gone.
    """

    default_block_size: int
    total_timeout_seconds: float
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
        attempts: Attempts,
        overload: Overload,
        spaces: PrefixSpaces,
        screen: Screen,
        canon: Canonicalizes,
        observers: Sequence[Observer],
        explains: Explains,
        limits: FlowLimits,
        turns: Turns,
    ) -> None:
        self._models = models
        self._hasher = hasher
        self._index = index
        self._uses = uses
        self._chooser = chooser
        self._fleet = fleet
        self._attempts = attempts
        self._overload = overload
        self._spaces = spaces
        self._screen = screen
        self._canon = canon
        self._observers = observers
        self._explains = explains
        self._limits = limits
        self._turns = turns

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
        trip = RequestContext(
            request, request, self._models[request.model], grant, client_family(request.headers), trace
        )
        patience = min(request.timeout_seconds or math.inf, self._limits.total_timeout_seconds)
        trip.deadline = request.received_at + patience
        self._attempts.begin(request.received_at)
        try:
            trip.space = self._spaces.enter(request.caller, trip.model.version(), request.fields, time.time())
            # A tenant over its limit is refused before the prompt costs any work.
            estimating = self._turns.run(least_tokens(request.endpoint, request.fields), request.caller.tenant.id)
            grant.charge(await self._while_there(trip, sink, estimating), time.monotonic())
            await self._while_there(trip, sink, self._read(trip))
            grant.charge(trip.prompt.tokens, time.monotonic())
            if request.warms is not None:
                await self._overload.let_clients_go_first(trip)
            while trip.outcome is None:
                targets = self._targets(trip)
                await self._while_there(
                    trip, sink, self._turns.run(self._hashed(trip, targets.values()), trip.request.caller.tenant.id)
                )
                trip.lap("hash")
                trip.ahead = self._overload.ahead(trip)
                trip.decision = self._place(trip, targets, self._holdings(trip, targets))
                trip.lap("place")
                if not trip.begun and self._overload.holds(trip, targets):
                    targets = await self._queue(trip, targets, sink)
                target = trip.decision.target
                trip.sent_chains = trip.chains[self.block_size(targets[target])]
                trip.outcome = await self._attempts.attempt(trip, target, targets[target], sink)
        except GatewayError as error:
            if not trip.begun:
                grant.correct(0)
                self._observe(trip, error.status, error.code)
                raise
            trip.outcome = await self._attempts.give_up(trip, sink)
        await self._settle(trip)
        failure = trip.failure()
        self._explain(trip, self._observe(trip, trip.status, failure.code if failure else None))
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # it has the traceback, which has this frame: a cycle would keep the request in memory

    def block_size(self, replica: Replica) -> int:
        """Tokens per block of the chains by which prompts are looked up at a replica."""
        told = self._index.block_size(replica.targets()[0])
        return told or chain_block_size(replica.facts.block_size or self._limits.default_block_size)

    async def _read(self, trip: RequestContext) -> None:
        """All that precedes placement; it may wait for a thread, an engine or another gateway's memory."""
        try:
            async with asyncio.timeout_at(trip.deadline) as patience:
                trip.request = await self._inspect(trip)
                trip.canonical = await self._canon.canonical(trip.request)
                trip.request = trip.canonical.request
                trip.lap("canon")
                trip.prompt = await trip.model.encoder.encode(trip.request)
                trip.lap("encode")
        except TimeoutError:
            if patience.expired():
                raise expired() from None
            raise

    async def _inspect(self, trip: RequestContext) -> ChatRequest:
        try:
            return await self._screen.inspect(trip.asked)
        except Overloaded:
            raise  # it was not searched, and there is no time to do it later
        except GatewayError:
            # What is refused is counted as well: it is what the operator wants to hear of most.
            self._screen.answered(trip.asked, trip.space.id)
            raise

    async def _queue(
        self, trip: RequestContext, targets: Mapping[Target, Replica], sink: Sink
    ) -> Mapping[Target, Replica]:
        """Wait until a replica has time for it; returns where it may go then."""

        def place() -> Mapping[Target, Replica]:
            nonlocal targets
            targets = self._targets(trip)
            self._hash(trip, targets.values())
            trip.decision = self._place(trip, targets, self._holdings(trip, targets))
            return targets

        await self._while_there(trip, sink, self._overload.turn(trip, targets, place))
        trip.lap("queue")
        return targets

    async def _while_there(self, trip: RequestContext, sink: Sink, awaited: Awaitable[_T]) -> _T:
        """Wait for something; a client that leaves meanwhile is counted, and a gateway that has to stop says so."""
        try:
            return await awaited
        except asyncio.CancelledError:
            if sink.gone:
                if not trip.tried:
                    trip.grant.correct(0)  # nobody computed anything
                self._observe(trip, CLIENT_GONE_STATUS)
            elif sink.interrupted:
                raise shutting_down() from None
            raise

    def _targets(self, trip: RequestContext) -> Mapping[Target, Replica]:
        """Where the request may go: every rank of every routable replica, but for what the client asks for."""
        if (warmed := trip.request.warms) is not None:
            return self._warmed(trip, warmed)
        regions = trip.request.caller.tenant.regions
        replicas = self._fleet.routable(trip.model.id, time.monotonic(), trip.tried, regions)
        if not replicas:
            configured = sum(not regions or replica.region in regions for replica in self._fleet.of(trip.model.id))
            where = f" in {' or '.join(sorted(regions))}" if regions else ""
            raise NoReplica(
                f"No replica of model {trip.model.id!r}{where} takes requests ({configured} configured). Try again in a"
                " moment.",
                code="no_replica",
            )
        if (rank := asked_rank(trip.request.headers)) is not None:
            asked = {target: replica for replica in replicas if (target := replica.asked_target(rank)) is not None}
            if asked:
                return asked
        return {target: replica for replica in replicas for target in replica.targets()}

    def _warmed(self, trip: RequestContext, target: Target) -> Mapping[Target, Replica]:
        replica = self._fleet.find(target.replica)
        if replica is not None and _is_warmable(replica) and target in replica.targets() and not trip.tried:
            return {target: replica}
        raise NoReplica(f"Replica {target.replica} takes no requests.", code="no_replica")

    def _hash(self, trip: RequestContext, replicas: Iterable[Replica]) -> None:
        """``_hashed`` where nothing can be waited for. Nearly always all of it is known already."""
        finished(self._hashed(trip, replicas))

    def _hashed(self, trip: RequestContext, replicas: Iterable[Replica]) -> Portioned[None]:
        """The chains of the prompts for the block sizes of some replicas."""
        root, parts = trip.root, trip.prompt.parts[:_MOST_CHAINS]
        media = trip.prompt.media[:_MOST_CHAINS] or ((),) * len(parts)
        for size in {self.block_size(replica) for replica in set(replicas)} - trip.chains.keys():
            chains = []
            for part, items in zip(parts, media, strict=True):
                chains.append((yield from self._hasher.chained(root, part, size, items)))
                if len(chains) % _CHAINS_AT_ONCE == 0:
                    yield
            trip.chains[size] = chains

    def _holdings(self, trip: RequestContext, targets: Mapping[Target, Replica]) -> list[Holding]:
        sizes = {replica: self.block_size(replica) for replica in set(targets.values())}
        by_block_size: dict[int, list[Target]] = {}
        for target, replica in targets.items():
            by_block_size.setdefault(sizes[replica], []).append(target)
        now = time.monotonic()
        most = max(_MAX_LOOKUPS // len(targets), 1)
        try:
            found: dict[Target, Holding] = {}
            for size, group in by_block_size.items():
                found.update(zip(group, self._index.holdings(trip.chains[size][:most], group, now), strict=True))
            return [found[target] for target in targets]
        except Exception:  # noqa: BLE001 - whatever it is, it must not cost the client its answer
            # The index only steers. Without it the request is balanced by load.
            _log.exception("index_failed", request_id=trip.request.request_id)
            trip.indexed = False
            return [Holding(0, 0.0)] * len(targets)

    def _place(self, trip: RequestContext, targets: Mapping[Target, Replica], holdings: Sequence[Holding]) -> Decision:
        now = time.monotonic()
        trip.barred = self._barred(trip, targets, now)
        return self._chooser.choose(
            [_with_ahead(replica.load(target.rank, now), trip.ahead) for target, replica in targets.items()],
            holdings,
            trip.prompt.tokens,
            Affinity(trip.beginning, trip.affinity),
            retried=bool(trip.tried),
            blind=trip.prompt.source is TokenSource.TEXT or not trip.indexed,
        )

    def _barred(self, trip: RequestContext, targets: Mapping[Target, Replica], now: float) -> list[ReplicaPrefix]:
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
            ReplicaPrefix(target.replica, target.rank, holding.tokens, barred=_why_barred(trip, replica, now))
            for (target, replica), holding in zip(others, held, strict=True)
        ]

    async def _settle(self, trip: RequestContext) -> None:
        """Correct the index and the learned rates by what the engine reported."""
        outcome, replica, decision = trip.outcome, trip.replica, trip.decision
        assert outcome is not None
        assert replica is not None
        assert decision is not None
        trip.resume_clock()
        if not trip.prefilled:
            if trip.declined:
                trip.grant.correct(0)
            self._attempts.abandon(trip)
            return
        if outcome.usage is not None:
            trip.grant.correct(outcome.usage.prompt_tokens)
        self._screen.answered(trip.asked, trip.space.id)
        pieced = trip.stream is not None and trip.stream.pieced
        if not pieced:
            replica.answered(outcome.usage, decision.held_tokens)
        cached = confirmed_tokens(trip.request, trip.prompt, outcome)
        if trip.lease is not None:
            self._index.complete(trip.lease, cached, await self._filled(trip), time.monotonic())
            held = trip.lease.held_tokens if cached is None else cached
            trip.lease = None
            if not pieced:  # its times are those of several replicas
                learn(replica.speed, outcome, trip.prefill_ahead, trip.prompt.tokens - held)
            self._note_use(trip, held)
        trip.lap("settle")

    def _note_use(self, trip: RequestContext, reused_tokens: int) -> None:
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

    async def _filled(self, trip: RequestContext) -> list[BlockChain]:
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

    async def _encoded(self, trip: RequestContext, reply: ReplyChoice, tokens: int) -> ReplyChoice:
        """A choice of the answer of so many tokens, with their ids where they can be known."""
        ids = None
        if reply.text is not None and trip.prompt.source is TokenSource.LOCAL:
            encoded = await trip.model.encoder.encode_reply(reply.text, trip.request.caller.tenant)
            ids = None if encoded is None else encoded[: max(tokens - 1, 0) * TOKEN_BYTES]
        return msgspec.structs.replace(reply, ids=ids, tokens=tokens)

    def _explain(self, trip: RequestContext, settled: Settlement) -> None:
        """Hand an answered request over to be explained; that happens elsewhere, and later."""
        if not trip.prefilled or settled.status != 200:
            return
        try:
            self._explains.finished(account.finished(trip, settled, with_text=self._explains.wants_text))
        except Exception:  # noqa: BLE001 - whatever it is, the client has its answer and must not hear of it
            _log.exception("explain_failed", request_id=trip.request.request_id)

    def _observe(self, trip: RequestContext, status: int, code: str | None = None) -> Settlement:
        settled = settlement(
            trip.request,
            trip.prompt,
            trip.decision,
            trip.outcome,
            rates=trip.replica.speed.rates if trip.replica else None,
            status=status,
            failed_attempts=len(trip.tried),
            failures=tuple(trip.failures),
            dispatched_at=trip.dispatched_at,
            now=time.monotonic(),
            stages=tuple(trip.stages),
            space=trip.space.id,
            code=code,
            canonical=tuple(trip.applied_rules),
            resumed=trip.stream is not None and trip.stream.pieced,
        )
        for observer in self._observers:
            observer.on_settled(settled)
        if trip.trace is not None:
            trip.trace.settled(settled)
        return settled


def _with_ahead(load: Load, ahead: Mapping[Target, int]) -> Load:
    """A load as it will be when what waits in the gateway in front of a request is there."""
    tokens = ahead.get(load.target)
    return Load(load.target, load.prefill_tokens + tokens, load.requests, load.rates) if tokens else load


def _is_warmable(replica: Replica) -> bool:
    return bool(replica.up) and not replica.draining


def _why_barred(trip: RequestContext, replica: Replica, now: float) -> str:
    """Why a target was no candidate; see ``ReplicaPrefix.barred``."""
    if replica.id in trip.tried:
        return "failed"
    return "pinned" if replica.state(now) is ReplicaState.READY else "unavailable"
