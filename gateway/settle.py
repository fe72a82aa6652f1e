"""Settles an answered request: corrects index, learned rates and the tenant's charge by what the engine reported."""

import time
from collections.abc import Sequence

import structlog

from gateway.canon.pii import PersonalDataScreen
from gateway.context import Encoded, Placed, RequestContext, Served, is_declined, is_prefilled
from gateway.core.block_chain import BlockChain
from gateway.core.explanation import MEASUREMENT, ReplyChoice
from gateway.core.outcome import Ending
from gateway.core.ports import PrefixIndex, PrefixUse, PromptObserver, SettledPrompt
from gateway.core.prompt import TOKEN_BYTES, TokenSource
from gateway.explain.reconcile import EXACT_SOURCES, confirmed_tokens, learn, reply_choices
from gateway.stats.hot_prefixes import HotPrefixes
from gateway.tokenize.block_hashes import ChainHasher

_LOCAL = TokenSource.LOCAL  # looking up a member of an enum takes as long as several other look-ups

_ADDED = 1024
"""Tokens that an engine may add to any prompt: the system message and the tools of a template of its own."""

_log = structlog.get_logger("gateway.flow")


class Settler:
    """Settles requests.

    Args:
        index: The prefix index.
        hasher: Extends the chain of a prompt by its answer.
        uses: Counts which prefixes requests share.
        screen: Counts personal data in answered requests.
        prompts: Gets the prompts of answered requests; None: they are not needed.
    """

    def __init__(
        self,
        index: PrefixIndex,
        hasher: ChainHasher,
        uses: HotPrefixes,
        screen: PersonalDataScreen,
        prompts: PromptObserver | None = None,
    ) -> None:
        self._index = index
        self._hasher = hasher
        self._uses = uses
        self._screen = screen
        self._prompts = prompts

    async def settle(self, context: RequestContext, served: Served, *, explained: bool) -> Sequence[ReplyChoice]:
        """Correct the index and the learned rates with what the engine reported.

        Args:
            context: The request.
            served: Its end at a replica.
            explained: Whether a record of the request needs the answer's choices.

        Returns:
            The answer's choices, as far as they were read.
        """
        encoded, outcome, lease = context.encoded, served.outcome, served.lease
        replica, grant = served.placed.replica, context.grant
        context.resume_clock()
        if not is_prefilled(outcome):
            if is_declined(outcome):
                grant.correct(0)
                if outcome.ending is Ending.COMPLETE and (outcome.status or 500) not in (429, *range(500, 600)):
                    grant.refuse(time.monotonic())
            if lease is not None:
                self._index.abandon(lease)
            return ()
        if outcome.usage is not None and _is_plausible(outcome.usage.prompt_tokens, encoded):
            grant.correct(outcome.usage.prompt_tokens)
        if encoded.request.path:
            return ()
        self._screen.answered(encoded.asked, encoded.space.id)
        if not served.resumed:
            replica.answered(outcome.usage, served.placed.decision.held_tokens)
            await self._compare(encoded, served)
        replies: Sequence[ReplyChoice] = ()
        if lease is not None:
            cached = confirmed_tokens(encoded.request, encoded.prompt, outcome)
            replies, filled = await self._filled(encoded, served, explained=explained)
            self._index.complete(lease, cached, filled, time.monotonic())
            held = lease.held_tokens if cached is None else cached
            if not served.resumed:  # otherwise its times mix several replicas
                learn(replica.speed, outcome, served.prefill_ahead, encoded.tokens - held)
            assignment = encoded.asked.assignment
            # No other request can use what a salted one left in the cache.
            if encoded.source != MEASUREMENT and (assignment is None or not assignment.salted):
                self._note(encoded, served, held)
        context.end_stage("settle")
        return replies

    async def _compare(self, encoded: Encoded, served: Served) -> None:
        """Compare the prompt tokens that the engine has counted with the gateway's."""
        usage, prompt, rules = served.outcome.usage, encoded.prompt, encoded.model.rules
        if (
            rules is None
            or usage is None
            or prompt.source not in EXACT_SOURCES
            or prompt.media
            or prompt.variant
            or encoded.sequences > 1
        ):
            return
        try:
            await rules.counted(served.placed.replica, encoded.request, encoded.tokens, usage.prompt_tokens)
        except Exception:  # noqa: BLE001 - as in ``_note``
            _log.exception("comparison_failed", request_id=encoded.request.request_id)

    def _note(self, encoded: Encoded, served: Served, reused_tokens: int) -> None:
        """Report how much of its prompt a request shared with earlier ones, and the prompt where it is awaited."""
        request, placed, prompts = encoded.request, served.placed, self._prompts
        chains, is_warming = placed.chains, request.warmup_target is not None
        if chains and not is_warming:
            try:
                use = PrefixUse(request.model, request.caller.tenant.id, encoded.source, request.request_id)
                # Of several prompts only the sum is known; they usually share a prefix.
                self._uses.note(chains[0], reused_tokens // len(chains), use, time.time())
            except Exception:  # noqa: BLE001 - the client already has its answer: statistics must not fail it
                _log.exception("prefix_use_failed", request_id=request.request_id)
        if prompts is not None and (is_warming or prompts.awaits_clients) and len(chains) == 1 and not served.resumed:
            self._note_prompt(prompts, encoded, placed, reused_tokens)

    def _note_prompt(self, prompts: PromptObserver, encoded: Encoded, placed: Placed, reused_tokens: int) -> None:
        """Report a prompt to those that warm prefixes."""
        prompt = encoded.prompt
        try:
            prompts.on_prompt(
                SettledPrompt(
                    encoded.request,
                    b"" if encoded.is_text or prompt.media or prompt.variant else prompt.parts[0],
                    placed.chains[0],
                    placed.decision.target,
                    reused_tokens,
                    placed.replica.speed.rates.prefill_seconds_per_token,
                    time.time(),
                )
            )
        except Exception:  # noqa: BLE001 - as in ``_note``
            _log.exception("prompt_observer_failed", request_id=encoded.request.request_id)

    async def _filled(
        self, encoded: Encoded, served: Served, *, explained: bool
    ) -> tuple[Sequence[ReplyChoice], Sequence[BlockChain]]:
        """The answer's choices, and the blocks that the request left in the engine's cache: the prompt's, and those
        filled by decode. A single answer that fills no block is read only if it is to be explained."""
        usage, chains = served.outcome.usage, served.placed.chains
        if len(chains) != 1 or usage is None:
            return (), chains
        (chain,) = chains
        fills_none = encoded.tokens + usage.completion_tokens <= (len(chain.hashes) + 1) * chain.block_size
        found = () if fills_none and not explained and encoded.sequences == 1 else reply_choices(served.outcome)
        tokens = usage.completion_tokens // max(len(found), 1)
        # The last token of an answer is sampled, but its KV entry is never computed.
        decoded = max(tokens - 1, 0)
        computed = max(encoded.tokens + decoded, chain.tokens)
        unextended = BlockChain(chain.hashes, chain.block_size, computed)
        if not found:
            return (), [unextended]
        prompt = encoded.prompt
        rest = prompt.parts[0][len(chain.hashes) * chain.block_size * TOKEN_BYTES :]
        # An engine is asked only for what the index can use, and once for an answer.
        asks = not fills_none and len(found) == 1 and not (prompt.media or prompt.variant)
        replies, filled = [], []
        for reply in found:
            ids = None
            if reply.text is not None and (prompt.source is _LOCAL or asks):
                ids = await encoded.model.encoder.encode_reply(reply.text, encoded.request, prompt.source)
            if ids is not None:
                ids = ids[: decoded * TOKEN_BYTES]
            replies.append(ReplyChoice(reply.text, ids, tokens, reply.has_calls, reply.has_reasoning))
            if ids and not fills_none:
                filled.append(self._hasher.extended(encoded.root, chain, rest + ids, computed))
            else:
                filled.append(unextended)
        return replies, filled


def _is_plausible(reported: int, encoded: Encoded) -> bool:
    """Whether an engine's number of prompt tokens may take the place of the gateway's; otherwise this one stays.

    Templates and tokenizers of one family differ by less than half. An estimate counts four bytes as a token, of which
    a token has at most 16, and an image's bytes, too: then its text is the bound. No prompt has 0 tokens.
    """
    tokens = encoded.tokens
    least = min(tokens // 4, encoded.least_tokens) if encoded.is_text else tokens // 2
    return max(least, 1) <= reported and (encoded.prompt.source is not _LOCAL or reported <= 2 * tokens + _ADDED)
