"""The request pipeline: canonicalize, encode, look up, place, forward, settle. ``Flow.serve`` shows the order."""

import asyncio
import math
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog

from gateway import request_record
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
from gateway.core.replica_state import Load, ReplicaState
from gateway.core.request import ChatRequest
from gateway.core.settlement import Settlement
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
from gateway.tokenize.block_hashes import ChainHasher
from gateway.tokenize.encoder import least_tokens
from gateway.turns import Turns

_log = structlog.get_logger("gateway.flow")
_T = TypeVar("_T")

_MAX_CHAINS = 256
"""Prompts of one request that are looked up in the index; further ones only count as tokens to compute. Prompts of one
request usually share a prefix."""

_MAX_LOOKUPS = 2048
"""Prompts times targets that one placement looks up: with more than eight targets, fewer prompts are looked up."""

_CHAINS_PER_PORTION = 16
"""Prompts that are hashed in one portion."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits from the configuration.

    Attributes:
        default_block_size: Tokens per block of a replica whose metrics do not report it.
        total_timeout_seconds: Upper bound of a request's duration.
        gone_after_seconds: A replica that is down for longer counts as removed.
    """

    default_block_size: int
    total_timeout_seconds: float
    gone_after_seconds: float


class Flow:
    """Takes each request through the stages, and records the result with the index and the observers."""

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
            sink: Receives the answer.
            grant: The tenant's limits that it was admitted under.
            trace: Its trace; ended by the caller.

        Raises:
            GatewayError: nothing was sent to the client yet; this is the answer to send.
        """
        context = RequestContext(
            request, request, self._models[request.model], grant, client_family(request.headers), trace
        )
        timeout = min(request.timeout_seconds or math.inf, self._limits.total_timeout_seconds)
        context.deadline = request.received_at + timeout
        self._attempts.begin(request.received_at)
        try:
            context.space = self._spaces.enter(request.caller, context.model.version(), request.fields, time.time())
            # A tenant over its limit is refused before the prompt costs any work.
            estimating = self._turns.run(least_tokens(request.endpoint, request.fields), request.caller.tenant.id)
            grant.charge(await self._unless_gone(context, sink, estimating), time.monotonic())
            await self._unless_gone(context, sink, self._read(context))
            grant.charge(context.prompt.tokens, time.monotonic())
            if request.warms is not None:
                await self._overload.wait_for_clients(context)
            while context.outcome is None:
                targets = self._targets(context)
                await self._unless_gone(
                    context,
                    sink,
                    self._turns.run(self._hashed(context, targets.values()), context.request.caller.tenant.id),
                )
                context.end_stage("hash")
                context.ahead = self._overload.ahead(context)
                context.decision = self._place(context, targets, self._holdings(context, targets))
                context.end_stage("place")
                if not context.begun and self._overload.holds(context, targets):
                    targets = await self._queue(context, targets, sink)
                target = context.decision.target
                context.sent_chains = context.chains[self.block_size(targets[target])]
                context.outcome = await self._attempts.attempt(context, target, targets[target], sink)
        except GatewayError as error:
            if not context.begun:
                grant.correct(0)
                self._observe(context, error.status, error.code)
                raise
            context.outcome = await self._attempts.give_up(context, sink)
        await self._settle(context)
        failure = context.failure()
        self._explain(context, self._observe(context, context.status, failure.code if failure else None))
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame: the cycle would keep the request in memory

    def block_size(self, replica: Replica) -> int:
        """Tokens per block of the chains with which prompts are looked up at a replica."""
        reported = self._index.block_size(replica.targets()[0])
        return reported or chain_block_size(replica.facts.block_size or self._limits.default_block_size)

    async def _read(self, context: RequestContext) -> None:
        """Inspect, canonicalize and encode the prompt. May wait for a thread, an engine or the store of contexts."""
        try:
            async with asyncio.timeout_at(context.deadline) as timeout:
                context.request = await self._inspect(context)
                context.canonical = await self._canon.canonical(context.request)
                context.request = context.canonical.request
                context.end_stage("canon")
                context.prompt = await context.model.encoder.encode(context.request)
                context.end_stage("encode")
        except TimeoutError:
            if timeout.expired():
                raise expired() from None
            raise

    async def _inspect(self, context: RequestContext) -> ChatRequest:
        try:
            return await self._screen.inspect(context.asked)
        except Overloaded:
            raise  # refused unsearched because of overload: a later search would not find the time either
        except GatewayError:
            # Findings in refused requests count as well: they matter most to the operator.
            self._screen.answered(context.asked, context.space.id)
            raise

    async def _queue(
        self, context: RequestContext, targets: Mapping[Target, Replica], sink: Sink
    ) -> Mapping[Target, Replica]:
        """Wait in the queue until a replica has capacity; returns the targets possible then."""

        def place() -> Mapping[Target, Replica]:
            nonlocal targets
            targets = self._targets(context)
            self._hash_now(context, targets.values())
            context.decision = self._place(context, targets, self._holdings(context, targets))
            return targets

        await self._unless_gone(context, sink, self._overload.turn(context, targets, place))
        context.end_stage("queue")
        return targets

    async def _unless_gone(self, context: RequestContext, sink: Sink, awaited: Awaitable[_T]) -> _T:
        """Await something. A client that disconnects meanwhile is recorded; a shutdown raises ``ShuttingDown``."""
        try:
            return await awaited
        except asyncio.CancelledError:
            if sink.gone:
                if not context.tried:
                    context.grant.correct(0)  # no replica computed anything
                self._observe(context, CLIENT_GONE_STATUS)
            elif sink.interrupted:
                raise shutting_down() from None
            raise

    def _targets(self, context: RequestContext) -> Mapping[Target, Replica]:
        """The candidates: every rank of every routable replica, or the rank that the client requests."""
        if (warmed := context.request.warms) is not None:
            return self._warmed(context, warmed)
        regions = context.request.caller.tenant.regions
        replicas = self._fleet.routable(context.model.id, time.monotonic(), context.tried, regions)
        if not replicas:
            configured = sum(not regions or replica.region in regions for replica in self._fleet.of(context.model.id))
            where = f" in {' or '.join(sorted(regions))}" if regions else ""
            raise NoReplica(
                f"No replica of model {context.model.id!r}{where} takes requests ({configured} configured). Try again"
                " in a moment.",
                code="no_replica",
            )
        if (rank := asked_rank(context.request.headers)) is not None:
            asked = {target: replica for replica in replicas if (target := replica.asked_target(rank)) is not None}
            if asked:
                return asked
        return {target: replica for replica in replicas for target in replica.targets()}

    def _warmed(self, context: RequestContext, target: Target) -> Mapping[Target, Replica]:
        replica = self._fleet.find(target.replica)
        if replica is not None and _is_warmable(replica) and target in replica.targets() and not context.tried:
            return {target: replica}
        raise NoReplica(f"Replica {target.replica} takes no requests.", code="no_replica")

    def _hash_now(self, context: RequestContext, replicas: Iterable[Replica]) -> None:
        """``_hashed`` without yielding to the event loop. The chains nearly always exist already."""
        finished(self._hashed(context, replicas))

    def _hashed(self, context: RequestContext, replicas: Iterable[Replica]) -> Portioned[None]:
        """Compute the missing block chains of the prompts for the block sizes of some replicas."""
        root, parts = context.root, context.prompt.parts[:_MAX_CHAINS]
        media = context.prompt.media[:_MAX_CHAINS] or ((),) * len(parts)
        for size in {self.block_size(replica) for replica in set(replicas)} - context.chains.keys():
            chains = []
            for part, items in zip(parts, media, strict=True):
                chains.append((yield from self._hasher.chained(root, part, size, items)))
                if len(chains) % _CHAINS_PER_PORTION == 0:
                    yield
            context.chains[size] = chains

    def _holdings(self, context: RequestContext, targets: Mapping[Target, Replica]) -> list[Holding]:
        sizes = {replica: self.block_size(replica) for replica in set(targets.values())}
        by_block_size: dict[int, list[Target]] = {}
        for target, replica in targets.items():
            by_block_size.setdefault(sizes[replica], []).append(target)
        now = time.monotonic()
        most = max(_MAX_LOOKUPS // len(targets), 1)
        try:
            found: dict[Target, Holding] = {}
            for size, group in by_block_size.items():
                found.update(zip(group, self._index.holdings(context.chains[size][:most], group, now), strict=True))
            return [found[target] for target in targets]
        except Exception:  # noqa: BLE001 - an index failure must not fail the request
            # Without the index the request is balanced by load.
            _log.exception("index_failed", request_id=context.request.request_id)
            context.indexed = False
            return [Holding(0, 0.0)] * len(targets)

    def _place(
        self, context: RequestContext, targets: Mapping[Target, Replica], holdings: Sequence[Holding]
    ) -> Decision:
        now = time.monotonic()
        context.excluded = self._excluded(context, targets, now)
        return self._chooser.choose(
            [_with_ahead(replica.load(target.rank, now), context.ahead) for target, replica in targets.items()],
            holdings,
            context.prompt.tokens,
            Affinity(context.beginning, context.affinity),
            retried=bool(context.tried),
            blind=context.prompt.source is TokenSource.TEXT or not context.indexed,
        )

    def _excluded(self, context: RequestContext, targets: Mapping[Target, Replica], now: float) -> list[ReplicaPrefix]:
        """What targets that are no candidates hold: it explains why tokens are computed again."""
        others = [
            (target, replica)
            for replica in self._fleet.of(context.model.id)
            for target in replica.targets()
            if target not in targets
            and (replica.down_since is None or now - replica.down_since < self._limits.gone_after_seconds)
        ]
        if not others or not context.indexed:
            return []
        self._hash_now(context, [replica for _, replica in others])
        held = self._holdings(context, dict(others))
        return [
            ReplicaPrefix(target.replica, target.rank, holding.tokens, barred=_why_excluded(context, replica, now))
            for (target, replica), holding in zip(others, held, strict=True)
        ]

    async def _settle(self, context: RequestContext) -> None:
        """Correct the index and the learned rates with what the engine reported."""
        outcome, replica, decision = context.outcome, context.replica, context.decision
        assert outcome is not None
        assert replica is not None
        assert decision is not None
        context.resume_clock()
        if not context.prefilled:
            if context.declined:
                context.grant.correct(0)
            self._attempts.abandon(context)
            return
        if outcome.usage is not None:
            context.grant.correct(outcome.usage.prompt_tokens)
        self._screen.answered(context.asked, context.space.id)
        pieced = context.stream is not None and context.stream.pieced
        if not pieced:
            replica.answered(outcome.usage, decision.held_tokens)
        cached = confirmed_tokens(context.request, context.prompt, outcome)
        if context.lease is not None:
            self._index.complete(context.lease, cached, await self._filled(context), time.monotonic())
            held = context.lease.held_tokens if cached is None else cached
            context.lease = None
            if not pieced:  # otherwise its times mix several replicas
                learn(replica.speed, outcome, context.prefill_ahead, context.prompt.tokens - held)
            self._note_use(context, held)
        context.end_stage("settle")

    def _note_use(self, context: RequestContext, reused_tokens: int) -> None:
        """Report how much of its prompt a client's request shared with earlier ones."""
        request, chains = context.request, context.sent_chains
        if request.warms is not None or not chains:
            return
        try:
            use = PrefixUse(request.model, request.caller.tenant.id, context.source, request.request_id)
            # Of several prompts only the sum is known; they usually share a prefix.
            self._uses.note(chains[0], reused_tokens // len(chains), use, time.time())
        except Exception:  # noqa: BLE001 - the client already has its answer: statistics must not fail it
            _log.exception("prefix_use_failed", request_id=request.request_id)

    async def _filled(self, context: RequestContext) -> list[BlockChain]:
        """The blocks that the request left in the engine's cache: the prompt's, and those filled by decode."""
        outcome, prompt, chains = context.outcome, context.prompt, context.sent_chains
        assert outcome is not None
        if len(chains) != 1 or outcome.usage is None:
            return list(chains)
        (chain,) = chains
        found = replies(outcome)
        tokens = outcome.usage.completion_tokens // max(len(found), 1)
        # The last token of an answer is sampled, but its KV entry is never computed.
        computed = prompt.tokens + max(tokens - 1, 0)
        context.replies = [await self._encoded(context, reply, tokens) for reply in found]
        filled = []
        for ids in [reply.ids for reply in context.replies] or [None]:
            known = chain if ids is None else self._hasher.extended(context.root, chain, prompt.parts[0] + ids)
            filled.append(BlockChain(known.hashes, known.block_size, max(computed, known.tokens)))
        return filled

    async def _encoded(self, context: RequestContext, reply: ReplyChoice, tokens: int) -> ReplyChoice:
        """A choice of the answer with its token count, and its token ids where a local tokenizer can give them."""
        ids = None
        if reply.text is not None and context.prompt.source is TokenSource.LOCAL:
            encoded = await context.model.encoder.encode_reply(reply.text, context.request.caller.tenant)
            ids = None if encoded is None else encoded[: max(tokens - 1, 0) * TOKEN_BYTES]
        return msgspec.structs.replace(reply, ids=ids, tokens=tokens)

    def _explain(self, context: RequestContext, settled: Settlement) -> None:
        """Hand the record of an answered request to the explain worker, which works on it later."""
        if not context.prefilled or settled.status != 200:
            return
        try:
            record = request_record.finished(context, settled, with_text=self._explains.accepts_text)
            self._explains.record_request(record)
        except Exception:  # noqa: BLE001 - the client already has its answer: explaining must not fail it
            _log.exception("explain_failed", request_id=context.request.request_id)

    def _observe(self, context: RequestContext, status: int, code: str | None = None) -> Settlement:
        settled = settlement(
            context.request,
            context.prompt,
            context.decision,
            context.outcome,
            rates=context.replica.speed.rates if context.replica else None,
            status=status,
            failed_attempts=len(context.tried),
            failures=tuple(context.failures),
            dispatched_at=context.dispatched_at,
            now=time.monotonic(),
            stages=tuple(context.stages),
            space=context.space.id,
            code=code,
            canonical=tuple(context.applied_rules),
            resumed=context.stream is not None and context.stream.pieced,
        )
        for observer in self._observers:
            observer.on_settled(settled)
        if context.trace is not None:
            context.trace.settled(settled)
        return settled


def _with_ahead(load: Load, ahead: Mapping[Target, int]) -> Load:
    """A load including the prompt tokens of requests queued in front of this one."""
    tokens = ahead.get(load.target)
    return Load(load.target, load.prefill_tokens + tokens, load.requests, load.rates) if tokens else load


def _is_warmable(replica: Replica) -> bool:
    return bool(replica.up) and not replica.draining


def _why_excluded(context: RequestContext, replica: Replica, now: float) -> str:
    """Why a target was no candidate; see ``ReplicaPrefix.barred``."""
    if replica.id in context.tried:
        return "failed"
    return "pinned" if replica.state(now) is ReplicaState.READY else "unavailable"
