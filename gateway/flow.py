"""The request pipeline: canonicalize, encode, look up, place, forward, settle. ``Flow.serve`` shows the order."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import structlog

from gateway.candidates import CandidateFinder, Candidates, TargetGroup
from gateway.canon.canonicalizer import Canonicalizer
from gateway.canon.pii import PersonalDataScreen
from gateway.config.routing_settings import RelaySettings
from gateway.context import (
    CLIENT_GONE_STATUS,
    Encoded,
    Placed,
    RequestContext,
    Served,
    ServedModel,
    expired,
    is_prefilled,
    response_failure,
    response_status,
    set_canonical,
    set_prompt,
    shutting_down,
)
from gateway.core.engine_facts import EngineKind
from gateway.core.errors import GatewayError, Overloaded
from gateway.core.explanation import ReplicaPrefix, ReplyChoice
from gateway.core.ids import ModelId, Target
from gateway.core.numbers import MAX_SEQUENCES, batch_size
from gateway.core.outcome import Ending
from gateway.core.portions import Portioned, finished
from gateway.core.ports import Grant, Holding, Observer, PrefixIndex, PromptObserver, Sink
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import Reason
from gateway.core.replica_state import Load, ReplicaState
from gateway.core.request import ChatRequest
from gateway.core.settlement import Settlement
from gateway.core.space import SpaceGrant
from gateway.core.tenant import PersonalDataMode
from gateway.experiment import Experiment, experiment_sample, random_salt
from gateway.explain.client_family import client_family
from gateway.explain.worker import ExplainClient
from gateway.fleet.fleet import Fleet
from gateway.fleet.rank_load import loads_at
from gateway.fleet.replica import Replica
from gateway.overload import NOTHING_AHEAD, Overload
from gateway.proxy.request_body import EngineBody, fitted
from gateway.proxy.restored_answer import RestoringSink
from gateway.request_record import conversation_hash, placed_record, request_record, settlement
from gateway.retry import Attempts
from gateway.routing import Affinity, Chooser
from gateway.settle import Settler
from gateway.spaces import PrefixSpaces
from gateway.stats.hot_prefixes import HotPrefixes
from gateway.tasks import by_deadline
from gateway.telemetry import Trace
from gateway.tokenize.block_hashes import ChainHasher
from gateway.tokenize.encoder import least_tokens
from gateway.turns import Turns

_log = structlog.get_logger("gateway.flow")

_MAX_CHAINS = 256
"""Prompts of one request that are looked up in the index; further ones only count as tokens to compute. Prompts of one
request usually share a prefix."""

_MAX_LOOKUPS = 2048
"""Prompts times targets that one placement looks up: with more than eight targets, fewer prompts are looked up."""

_CHAINS_PER_PORTION = 16
"""Prompts that are hashed in one portion."""

_HASHED_AT_ONCE = 16_384
"""Tokens of a prompt that is hashed at once, in less than a millisecond; longer ones are hashed in portions."""

_COMPLETE = Ending.COMPLETE  # looking up a member of an enum takes as long as several other look-ups
_NOTHING_HELD = Holding(0, 0.0)

_SEARCHED_FIRST = frozenset({PersonalDataMode.MASK, PersonalDataMode.BLOCK})
"""Modes in which the search for personal data decides what is sent."""


class Flow:
    """Takes each request through the stages, and records the result with the index and the observer.

    Attributes:
        block_size: Tokens per block of the chains with which prompts are looked up at a replica.
        explains: Explains requests.
    """

    def __init__(
        self,
        *,
        models: Mapping[ModelId, ServedModel],
        hasher: ChainHasher,
        index: PrefixIndex,
        uses: HotPrefixes,
        chooser: Chooser,
        fleet: Fleet,
        attempts: Attempts,
        overload: Overload,
        spaces: PrefixSpaces,
        screen: PersonalDataScreen,
        canon: Canonicalizer,
        observer: Observer,
        explains: ExplainClient,
        default_block_size: int,
        relay: RelaySettings,
        turns: Turns,
        experiment: Experiment,
        prompts: PromptObserver | None = None,
    ) -> None:
        self._models = models
        self._hasher = hasher
        self._index = index
        self._chooser = chooser
        self._finder = CandidateFinder(fleet, index, default_block_size)
        self.block_size = self._finder.block_size
        self._attempts = attempts
        self._overload = overload
        self._spaces = spaces
        self._screen = screen
        self._settler = Settler(index, hasher, uses, screen, prompts)
        self._canon = canon
        self._observer = observer
        self.explains = explains
        self._relay = relay
        self._turns = turns
        self._experiment = experiment
        self._taking_turns = chooser.with_policy("round_robin")
        self._by_load = chooser.with_policy("least_load")

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
        self._attempts.begin(request.received_at)
        context = self._begin(request, grant, trace)
        try:
            placed = await self._prepare(context, sink)
            if restores := context.encoded.request.restores:
                sink = RestoringSink(sink, restores)
            while (served := await self._attempts.attempt(context, placed, sink)) is None:
                placed = await self._prepare(context, sink)
        except GatewayError as error:
            if not context.begun or context.placed is None:
                if error.is_final:
                    grant.refuse(time.monotonic())
                grant.correct(0)
                self._observe(context, None, error.status, error.code)
                raise
            served = self._attempts.give_up(context, context.placed, sink)
        explained = self.explains.enabled and not context.encoded.request.path
        replies = await self._settler.settle(context, served, explained=explained)
        outcome, status, failure = served.outcome, served.outcome.status, None
        if outcome.ending is not _COMPLETE or status is None:
            failure = response_failure(outcome, context.encoded.model.id, context.encoded.request.path)
            status = response_status(outcome) if failure is None else failure.status
        settled = self._observe(context, served, status, failure.code if failure else None)
        if explained:
            self._explain(context, served, settled, replies)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame: the cycle would keep the request in memory

    async def count(self, request: ChatRequest, sink: Sink, grant: Grant, trace: Trace | None = None) -> None:
        """Answer a request with the number of its prompt's tokens, as the usage of a completion; see ``serve``."""
        context = self._begin(request, grant, trace)
        try:
            await self._enter(context)
        except GatewayError as error:
            self._observe(context, None, error.status, error.code)
            raise
        finally:
            grant.correct(0)  # no replica computes anything
        encoded = context.encoded
        headers = [(b"x-request-id", request.request_id.encode()), *grant.headers(time.monotonic())]
        if encoded.is_text:
            headers.append((b"x-gateway-tokens", b"estimated"))
        sink.start(200, headers)
        sink.write(b'{"usage":{"prompt_tokens":%d}}' % encoded.tokens, more=False)

    def _begin(self, request: ChatRequest, grant: Grant, trace: Trace | None) -> RequestContext:
        """Set the request's deadline."""
        source = client_family(request.headers)
        if self._experiment.is_running and not request.path:
            request = self._experiment.assigned(request, source)
        limit = self._relay.total_timeout_seconds
        timeout = limit if request.timeout_seconds is None else min(limit, request.timeout_seconds)
        return RequestContext(
            Encoded(request, request, self._models[request.model], source),
            grant,
            EngineBody(self._turns),
            trace=trace,
            deadline=request.received_at + timeout,
        )

    async def _prepare(self, context: RequestContext, sink: Sink) -> Placed:
        """Find the request's prefix space and encode it, unless it was placed before, and place it.

        A client that disconnects meanwhile is recorded; a shutdown raises ``ShuttingDown``.
        """
        try:
            if context.placed is None:
                if context.encoded.request.path:
                    self._measure(context)
                else:
                    await self._enter(context)
                if context.encoded.request.warmup_target is not None:
                    await self._overload.wait_for_clients(context.encoded)
            placed = await self._place(context)
            if (named := context.encoded.asked.compares) is not None:
                await self._diagnose(context, placed, named)
            return placed
        except asyncio.CancelledError:
            if sink.gone:
                if not context.tried:
                    context.grant.correct(0)  # no replica computed anything
                    if not context.encoded.tokens:  # otherwise it waited in the queue, which has limits of its own
                        context.grant.refuse(time.monotonic())
                self._observe(context, None, CLIENT_GONE_STATUS)
            elif sink.interrupted:
                raise shutting_down() from None
            raise

    def _measure(self, context: RequestContext) -> None:
        """Find the space of a request to an ``EnginePath``, and estimate its tokens: four bytes are one."""
        encoded, request, context.indexed = context.encoded, context.encoded.request, False
        if len(request.fields) > 1:  # prompts, and not just the model
            encoded.space = self._spaces.enter(request.caller, encoded.model.version(), request.fields, time.time())
            encoded.tokens = len(request.body) // 4
            encoded.sequences = min(batch_size(request.fields), MAX_SEQUENCES)
            context.grant.charge(encoded.tokens, time.monotonic())

    async def _enter(self, context: RequestContext) -> None:
        """Find the request's prefix space, and encode and charge it."""
        encoded, asked = context.encoded, context.encoded.asked
        encoded.space = self._spaces.enter(asked.caller, encoded.model.version(), asked.fields, time.time())
        if asked.assignment is not None and asked.assignment.salted:
            encoded.space = replace(encoded.space, salt=random_salt())
        is_charged = context.grant.counts_tokens
        if is_charged:
            await self._charge_estimate(context)
        try:
            await by_deadline(self._encode(context), context.deadline)
        except TimeoutError:
            raise expired() from None
        if is_charged:
            context.grant.charge(encoded.tokens, time.monotonic())

    async def _diagnose(self, context: RequestContext, placed: Placed, named: str) -> None:
        """Compare the request with the earlier one that its client names, once; a failover is added to the result."""
        if not context.tried:
            try:
                record, places = placed_record(context, placed), context.encoded.asked.places
                context.diagnosis = await self.explains.diagnose(record, named, places)
            except Exception:  # noqa: BLE001 - as in ``_explain``
                _log.exception("explain_failed", request_id=context.encoded.request.request_id)
        elif context.diagnosis is not None:
            failed = max((each.held_tokens for each in placed.excluded if each.barred == "failed"), default=0)
            if (tokens := failed - placed.decision.held_tokens) > 0:
                fleet = {**context.diagnosis.fleet, Reason.FAILOVER: tokens}
                context.diagnosis = msgspec.structs.replace(context.diagnosis, fleet=fleet)

    async def _charge_estimate(self, context: RequestContext) -> None:
        """Refuse the request of a tenant over its limit before the prompt costs any work."""
        request = context.encoded.asked
        tokens = await self._turns.run(least_tokens(request.endpoint, request.fields), request.caller.tenant.id)
        context.encoded.least_tokens = tokens
        context.grant.charge(tokens, time.monotonic())

    async def _encode(self, context: RequestContext) -> None:
        """Inspect, canonicalize and encode the prompt. May wait for a thread, an engine or shared contexts."""
        encoded = context.encoded
        request, space = encoded.asked, encoded.space
        if request.caller.tenant.personal_data in _SEARCHED_FIRST:
            request = await self._inspect(request, space)
        set_canonical(encoded, await self._canon.canonical(request))
        context.end_stage("canon")
        prompt = await encoded.model.encoder.encode(encoded.request)
        # The root of a chain covers everything by which the engine separates cached blocks.
        salt = encoded.request.fields.get("cache_salt") if space.salt is None else space.salt
        adapter = "" if space.space is None else space.space.adapter
        root = self._hasher.root(encoded.model.id, adapter, salt if isinstance(salt, str) else "", prompt.variant)
        set_prompt(encoded, prompt, root)
        limit = encoded.model.version().context_limit if encoded.request.dialect and not encoded.is_text else 0
        if limit:
            limit -= encoded.model.encoder.rules.engine is EngineKind.SGLANG  # it takes a sum below its limit only
            room, request = max(limit - encoded.tokens, 1), encoded.request
            encoded.request = await self._turns.run(fitted(request, room), request.caller.tenant.id)
            encoded.answer_limit = 0 if encoded.request is request else room
        context.end_stage("encode")

    async def _inspect(self, request: ChatRequest, space: SpaceGrant) -> ChatRequest:
        try:
            return await self._screen.inspect(request)
        except Overloaded:
            raise  # refused unsearched because of overload: a later search would not find the time either
        except GatewayError:
            # Findings in refused requests count as well: they matter most to the operator.
            self._screen.answered(request, space.id)
            raise

    async def _place(self, context: RequestContext) -> Placed:
        """Place the request; if every suitable replica is busy, wait in the queue first."""
        candidates, encoded = self._finder.candidates(context), context.encoded
        chains, prompt = context.chains, encoded.prompt
        if encoded.tokens > _HASHED_AT_ONCE or prompt.media or len(prompt.parts) != 1:
            await self._turns.run(self._hashed(context, candidates.by_block_size), encoded.request.caller.tenant.id)
        else:
            for size in candidates.by_block_size:
                if size not in chains:
                    chains[size] = [self._hasher.chain(encoded.root, prompt.parts[0], size)]
        context.end_stage("hash")
        ahead = self._overload.ahead(encoded) if self._overload.queues else NOTHING_AHEAD
        placed = self._placed(context, candidates, ahead)
        context.end_stage("place")
        if self._overload.holds(context, placed):
            placed = await self._overload.turn(context, placed, partial(self._placed_again, context))
            context.end_stage("queue")
        return placed

    def _hashed(self, context: RequestContext, block_sizes: Iterable[int]) -> Portioned[None]:
        """Compute the missing block chains of the prompts for some block sizes."""
        root, prompt = context.encoded.root, context.encoded.prompt
        for size in block_sizes:
            if size in context.chains:
                continue
            parts = prompt.parts[:_MAX_CHAINS]
            media = prompt.media[:_MAX_CHAINS] or ((),) * len(parts)
            chains = []
            for part, items in zip(parts, media, strict=True):
                chains.append((yield from self._hasher.chained(root, part, size, items)))
                if len(chains) % _CHAINS_PER_PORTION == 0:
                    yield
            context.chains[size] = chains

    def _placed_again(self, context: RequestContext, ahead: Mapping[Target, int]) -> Placed:
        """Place a request that waits in the queue. The chains nearly always exist already."""
        candidates = self._finder.candidates(context)
        finished(self._hashed(context, candidates.by_block_size))
        return self._placed(context, candidates, ahead)

    def _placed(self, context: RequestContext, candidates: Candidates, ahead: Mapping[Target, int]) -> Placed:
        """Choose a target.

        Args:
            context: The request; its chains are hashed. ``placed`` is set.
            candidates: The candidates.
            ahead: Prompt tokens of requests queued in front of it, by their expected target.
        """
        encoded, now = context.encoded, time.monotonic()
        holdings = self._holdings(context, candidates, now)
        excluded = () if candidates.is_whole or not context.indexed else self._excluded(context, candidates, now)
        loads = loads_at(candidates.load_sources, now)
        assignment = encoded.asked.assignment
        chooser = self._chooser if assignment is None or not assignment.is_held_out else self._taking_turns
        if encoded.request.path:
            chooser = self._by_load
        decision = chooser.choose(
            [_with_ahead(load, ahead) for load in loads] if ahead else loads,
            holdings,
            encoded.tokens,
            Affinity(_beginning(context), encoded.affinity),
            retried=bool(context.tried),
            blind=encoded.is_text or not context.indexed,
        )
        replica = candidates.targets[decision.target]
        chains = context.chains[candidates.block_sizes[replica]]
        context.placed = Placed(decision, replica, candidates.targets, chains, excluded, context.indexed)
        return context.placed

    def _holdings(self, context: RequestContext, group: TargetGroup, now: float) -> Sequence[Holding]:
        """What each target holds of the prompts. Targets with the same block size are looked up together."""
        count = len(group.targets)
        found: dict[Target, Holding] = {}
        try:
            for size, targets in group.by_block_size.items():
                chains = context.chains[size]
                if len(chains) > 1:
                    chains = chains[: max(_MAX_LOOKUPS // count, 1)]
                held = self._index.holdings(chains, targets, now)
                if len(targets) == count:
                    return held
                found.update(zip(targets, held, strict=True))
            return [found[target] for target in group.targets]
        except Exception:  # noqa: BLE001 - an index failure must not fail the request
            # Without the index the request is balanced by load.
            _log.exception("index_failed", request_id=context.encoded.request.request_id)
            context.indexed = False
            return [_NOTHING_HELD] * count

    def _excluded(self, context: RequestContext, candidates: Candidates, now: float) -> Sequence[ReplicaPrefix]:
        """What targets that are no candidates hold: it explains why tokens are computed again."""
        others = self._finder.others(context.encoded.model.id, candidates, now, self._relay.gone_after_seconds)
        if not others.targets:
            return ()
        finished(self._hashed(context, others.by_block_size))
        held = self._holdings(context, others, now)
        return [
            ReplicaPrefix(target.replica, target.rank, holding.tokens, barred=_why_excluded(context, replica, now))
            for (target, replica), holding in zip(others.targets.items(), held, strict=True)
        ]

    def _explain(
        self, context: RequestContext, served: Served, settled: Settlement, replies: Sequence[ReplyChoice]
    ) -> None:
        """Hand the record of an answered request to the explain worker, which works on it later."""
        if settled.status != 200 or not is_prefilled(served.outcome):
            return
        try:
            encoded = context.encoded
            is_compared = encoded.asked.compares is not None
            with_text = self.explains.admits(
                encoded.tokens, lambda: conversation_hash(encoded), is_compared=is_compared
            )
            self.explains.record_request(request_record(encoded, served, settled, replies, with_text=with_text))
        except Exception:  # noqa: BLE001 - the client already has its answer: explaining must not fail it
            _log.exception("explain_failed", request_id=context.encoded.request.request_id)

    def _observe(
        self, context: RequestContext, served: Served | None, status: int, code: str | None = None
    ) -> Settlement:
        """Report the end of the request to the observer."""
        settled = settlement(context, served, status, code, time.monotonic())
        self._observer.on_settled(settled)
        if settled.assignment is not None and settled.decision is not None:
            try:
                self.explains.record_sample(experiment_sample(settled, settled.assignment))
            except Exception:  # noqa: BLE001 - as in ``_explain``
                _log.exception("sample_failed", request_id=settled.request_id)
        if context.trace is not None:
            context.trace.settled(settled)
        return settled


def _beginning(context: RequestContext) -> int | bytes:
    """Identifies the prompt's beginning: the hash of its first block, or the tokens of a prompt without a block."""
    for chains in context.chains.values():
        if chains and chains[0].hashes:
            return chains[0].hashes[0]
    parts = context.encoded.prompt.parts
    return parts[0][: 64 * TOKEN_BYTES] if parts else b""


def _with_ahead(load: Load, ahead: Mapping[Target, int]) -> Load:
    """A load including the prompt tokens of requests queued in front of this one."""
    tokens = ahead.get(load.target)
    return Load(load.target, load.prefill_tokens + tokens, load.requests, load.rates) if tokens else load


def _why_excluded(context: RequestContext, replica: Replica, now: float) -> str:
    """Why a target was no candidate; see ``ReplicaPrefix.barred``."""
    if replica.id in context.tried:
        return "failed"
    return "pinned" if replica.state(now) is ReplicaState.READY else "unavailable"
