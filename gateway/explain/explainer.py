"""Explains requests, one after the other: where every prompt token went. Pure; time is what the requests bring along.

All lengths are in the gateway's own tokens until they become rungs. Where the engine counts others (no tokenizer at
hand, a template that differs), they are scaled to the engine's count, which is the one that is explained.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.core.explanation import (
    Attribution,
    CacheEvent,
    Difference,
    Explanation,
    ReferenceShown,
    ReplicaPrefix,
    ReplyChoice,
    RequestRecord,
    TokenWindows,
)
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import REASONS, Reason, Rung
from gateway.explain.diff import find_difference
from gateway.explain.diff.learned import learned_slot
from gateway.explain.ladder import RUNGS, Ladder
from gateway.explain.prompt_text import LEADING_ROLES, PromptText, prompt_text
from gateway.explain.reference import Families, KeptRequest, ReferenceMatch, References, common_tokens, tokens_behind
from gateway.explain.seen import LossCauses, PromptChains, Seen, SeenPrompts, SeenPublisher
from gateway.explain.seen.seen_prompts import changed
from gateway.explain.slot_turns import SlotTurns

_BARRED = {
    "": Reason.LOAD_BALANCED,
    "failed": Reason.FAILOVER,
    "unavailable": Reason.REPLICA_UNAVAILABLE,
    "pinned": Reason.PINNED,
}

_NO_TEXT = PromptText(())

_EQUAL_SHOWN = 16
"""Tokens shown in front of the first differing one."""
_DIFFERING_SHOWN = 24
"""Tokens shown from the first differing one on."""
_CONTEXT_LOST = (
    "Context blocks of earlier turns were not remembered any more, so the conversation's prompt changed once."
)


class _Compared(NamedTuple):
    """A request beside its reference, in the gateway's own tokens.

    Attributes:
        found: The reference.
        equal: Equal tokens from the first on.
        behind: Tokens behind those, and behind what else was computed before, that stand in the reference, too.
        difference: Why they are behind, and not among the first; None if there are none, or nothing is known of it.
        tokens: Both around the first differing token; None where their tokens cannot be compared.
    """

    found: ReferenceMatch
    equal: int
    behind: int
    difference: Difference | None
    tokens: TokenWindows | None = None


class Explainer:
    """Explains requests in the order in which they were answered.

    Args:
        chains: Hashes prompts.
        references: Earlier prompts to compare with.
        families: Notes what client families send in front.
        seen_blocks: How many blocks are remembered as computed before.
        teller: Gathers what other gateways are told of what was computed; None if there are none.
    """

    def __init__(
        self,
        chains: PromptChains,
        references: References,
        families: Families,
        seen_blocks: int,
        teller: SeenPublisher | None = None,
    ) -> None:
        self._fates = LossCauses()
        self._memory = SeenPrompts(chains, self._fates, seen_blocks, teller)
        self._references = references
        self._families = families
        self._turns = SlotTurns()

    def happened(self, event: CacheEvent) -> None:
        """Something happened to what is cached, after all requests so far."""
        self._fates.take(event)

    def hear(self, told: bytes, now: float) -> None:
        """Another gateway tells what was computed for it, as its teller gave it; ``now`` is Unix seconds.

        Raises:
            Exception: it is something else; nothing comes of it.
        """
        self._memory.hear(told, now)

    def expire(self, now: float) -> None:
        """Let go of what is too old to be kept; ``now`` is Unix seconds."""
        self._references.expire(now)

    def explain(self, finished: RequestRecord) -> Explanation:
        """Where the prompt tokens of a request went; remembers the request for those that come after it."""
        if not finished.parts or finished.block_size < 1:
            return _counted(finished)
        text = prompt_text(finished.endpoint, finished.body)
        kept = _kept(finished, text or _NO_TEXT)
        found = self._references.find(kept, finished.at)
        held = max((holder.held_tokens for holder in finished.holders), default=0)
        if len(finished.parts) > 1 or finished.own_tokens != finished.prompt_tokens:
            held = 0
        seen = [self._memory.seen(finished, part, held) for part in finished.parts]
        explanation = _explained(finished, kept, seen, found)
        self._remember(finished, kept)
        slot = learned_slot(found.reference.text, kept.text, explanation.difference) if found else None
        slot = self._turns.take(finished.request_id, found, slot)
        return explanation if slot is None else msgspec.structs.replace(explanation, slot=slot)

    def _remember(self, finished: RequestRecord, kept: KeptRequest) -> None:
        replies = [reply.ids for reply in finished.replies if reply.ids] if len(finished.parts) == 1 else []
        for computed in [finished.parts[0] + ids for ids in replies] or finished.parts:
            self._memory.remember(finished, computed)
        if not finished.warming:
            self._references.keep(kept, finished.at)
            self._families.note(kept, finished.at, tools_first=finished.tools_first)


def _counted(finished: RequestRecord) -> Explanation:
    """What is known without looking at the prompt; what stands above is not classified."""
    ladder = _begun(finished, seen_tokens=0)
    while len(ladder.rungs) < len(RUNGS) - 1:
        ladder.climb(ladder.at, Reason.UNCLASSIFIED)
    ladder.climb(ladder.prompt_tokens, Reason.UNCLASSIFIED)
    return _explanation(finished, ladder, None, turn=0, was_skipped=True)


def _explained(
    finished: RequestRecord, kept: KeptRequest, seen: Sequence[Seen], found: ReferenceMatch | None
) -> Explanation:
    size = finished.block_size
    own = len(kept.ids) // TOKEN_BYTES
    lengths = [len(part) // TOKEN_BYTES for part in finished.parts]
    scale = _scale(finished)
    here = sum(len(part.here) for part in seen) * size
    other = here + sum(len(part.anywhere) for part in seen) * size
    ladder = _begun(finished, seen_tokens=round(here * scale))
    compared = _compared(finished, kept, found, max(other, round(ladder.at / scale)))
    equal = compared.equal if compared else 0
    if compared is not None and len(lengths) == 1:
        # The reference was computed as well, even if its blocks are forgotten.
        whole = max(min(equal, own - 1), 0) // size * size
        if here == other and compared.found.reference.where == finished.where:
            here = max(here, whole)
        other = max(other, whole)
    ladder.climb_by(round(here * scale), _ends([part.here for part in seen], size, scale, Reason.EVICTED))
    elsewhere = [part.anywhere for part in seen]
    start = sum(len(part.here) for part in seen) * size
    ladder.climb_by(round(other * scale), _ends(elsewhere, size, scale, Reason.RESET, start))
    behind = compared.behind if compared else 0
    if all(length < size for length in lengths):
        ladder.climb(ladder.prompt_tokens, Reason.TOO_SHORT)
    elif len(lengths) == 1:
        ladder.climb(round(max(other, equal) * scale), Reason.BLOCK_BOUNDARY)
    else:
        rounded = min(_ends_of_known(lengths, seen, size), behind)
        ladder.climb(ladder.at + round(rounded * scale), Reason.BLOCK_BOUNDARY)
        behind -= rounded
    reason = compared.difference.reason if compared and compared.difference else Reason.UNCLASSIFIED
    ladder.climb(ladder.at + round(behind * scale), reason)
    is_new = compared is None and not other
    ladder.climb(ladder.prompt_tokens, Reason.FIRST_SEEN if is_new else Reason.NEW_CONTENT)
    return _explanation(finished, ladder, compared, turn=kept.text.turn, was_skipped=False)


def _begun(finished: RequestRecord, seen_tokens: int) -> Ladder:
    """The ladder up to what any replica was believed to hold."""
    scale = _scale(finished)
    reported = finished.cached_tokens
    if reported is None:
        # Nobody says; what was predicted is the best there is, but for what is certainly not reused.
        reported = 0 if finished.bypasses_cache else round(finished.predicted_tokens * scale)
    ladder = Ladder(finished.prompt_tokens, reported)
    chosen = round(finished.predicted_tokens * scale)
    best = max(finished.holders, key=_by_worth, default=None)
    if finished.bypasses_cache or finished.is_blind:
        # Whoever holds what: it could not be used, or not be looked for.
        chosen = max(chosen, seen_tokens, round(best.held_tokens * scale) if best else 0)
        ladder.climb(chosen, Reason.CACHE_BYPASSED if finished.bypasses_cache else Reason.INDEX_BLIND)
    else:
        ladder.climb(chosen, Reason.STALE_INDEX)
    ladder.climb(round(best.held_tokens * scale) if best else 0, _BARRED[best.barred] if best else Reason.LOAD_BALANCED)
    return ladder


def _by_worth(holder: ReplicaPrefix) -> tuple[int, bool]:
    """Most tokens first; of those that hold the same, one the request could have gone to."""
    return holder.held_tokens, not holder.barred


def _ends(
    parts: Sequence[Sequence[Reason]], size: int, scale: float, otherwise: Reason, start: int = 0
) -> list[tuple[int, Reason]]:
    """Up to which token each block's reason goes. Of several prompts the one reason that most blocks have."""
    if len(parts) > 1:
        reasons = [reason for part in parts for reason in part]
        most = max(reasons, key=reasons.count, default=otherwise)
        return [(0, most)]
    ends = [(round((start + (number + 1) * size) * scale), reason) for number, reason in enumerate(parts[0])]
    return ends or [(0, otherwise)]


def _ends_of_known(lengths: Sequence[int], seen: Sequence[Seen], size: int) -> int:
    """Tokens at the ends of those prompts of which all else is known by blocks."""
    known = [(len(part.here) + len(part.anywhere)) * size for part in seen]
    return sum(
        length - blocks for length, blocks in zip(lengths, known, strict=True) if blocks and length - blocks <= size
    )


def _compared(finished: RequestRecord, kept: KeptRequest, found: ReferenceMatch | None, known: int) -> _Compared | None:
    """The request beside its reference, if there is one; ``known`` tokens are held or were computed in any case."""
    if found is None:
        return None
    reference = found.reference
    ids = max(_sequences(reference), key=lambda each: common_tokens(each, kept.ids))
    equal = common_tokens(ids, kept.ids)
    own = len(kept.ids) // TOKEN_BYTES
    difference = find_difference(
        reference.text,
        kept.text,
        before_source=reference.source,
        after_source=finished.source,
        same_conversation=found.same_conversation,
        replies=reference.replies,
        tools_first=finished.tools_first,
        equal_share=equal / max(own, 1),
    )
    if kept.text.has_ids or reference.text.has_ids:
        difference = None if difference is None else _of_ids(difference)
    then, now = reference.where, finished.where
    if then.tokenizer != now.tokenizer or then.variant != now.variant:
        return _compared_by_text(found, kept, difference, known)
    if len(finished.parts) == 1:
        start = max(equal, known)
        behind = tokens_behind(ids[equal * TOKEN_BYTES :], kept.ids[start * TOKEN_BYTES :], 0)
        behind = max(behind, _lost_reply(reference, difference, start, own))
    else:
        # What is known of several prompts is not one beginning, but so many tokens of all that stand in both.
        behind = max(equal + tokens_behind(ids, kept.ids, equal) - known, 0)
    windows = _windows(ids, kept.ids, equal, [len(part) // TOKEN_BYTES for part in finished.parts])
    return _Compared(found, equal, behind, _cause(finished, found, difference), windows)


def _windows(before: bytes, after: bytes, equal: int, lengths: Sequence[int]) -> TokenWindows:
    """Both token sequences around the first differing token; of several prompts only the one that has it."""
    begin, end = 0, 0
    for length in lengths:
        begin, end = end, end + length
        if equal < end:
            break
    first = min(equal - begin, _EQUAL_SHOWN)
    start, stop = equal - first, equal + _DIFFERING_SHOWN
    return TokenWindows(
        before[start * TOKEN_BYTES : stop * TOKEN_BYTES],
        after[start * TOKEN_BYTES : min(stop, end) * TOKEN_BYTES],
        first,
    )


def _sequences(reference: KeptRequest) -> list[bytes]:
    """What the reference left in the engine's cache: its prompt, with each of its replies behind it."""
    return [reference.ids + (reply.ids or b"") for reply in reference.replies] or [reference.ids]


def _lost_reply(reference: KeptRequest, difference: Difference | None, start: int, own: int) -> int:
    """Tokens of a reply that is sent back in another form than it was generated in, where its own are not known."""
    if difference is None or difference.reason is not Reason.REPLY_RERENDERED:
        return 0
    prompt = len(reference.ids) // TOKEN_BYTES
    tokens = max((reply.tokens for reply in reference.replies if reply.ids is None), default=0)
    return max(min(prompt + tokens - 1, own) - start, 0) if tokens else 0


def _cause(finished: RequestRecord, found: ReferenceMatch, difference: Difference | None) -> Difference | None:
    """The first difference, or what else explains that the tokens are others."""
    reason = changed(found.reference.where, finished.where)
    if reason is not None and (difference is None or reason is Reason.TEMPLATE_CHANGED):
        return _elsewhere(reason)
    is_lost = finished.canonical.context_lost and found.same_conversation
    if is_lost and difference is not None and _is_behind_the_leading(difference):
        return msgspec.structs.replace(
            difference, reason=Reason.HISTORY_EDITED, detail="context_lost", said=_CONTEXT_LOST
        )
    if difference is None and finished.template_tells_time:
        return Difference(
            Reason.DYNAMIC_TIME,
            "template_clock",
            "chat_template",
            said="The chat template itself prints the time (strftime_now).",
        )
    return difference


def _is_behind_the_leading(difference: Difference) -> bool:
    return difference.message is not None and difference.role not in LEADING_ROLES


def _of_ids(difference: Difference) -> Difference:
    """A difference in prompts given as token ids: where, and nothing of what it means."""
    path, said = difference.path, "The prompt is given as token ids, and others than before."
    return Difference(Reason.UNCLASSIFIED, "token_ids", path, message=difference.message, said=said)


def _elsewhere(reason: Reason) -> Difference:
    return Difference(reason, str(reason), "", said=REASONS[reason].meaning)


def _compared_by_text(found: ReferenceMatch, kept: KeptRequest, difference: Difference | None, known: int) -> _Compared:
    """Token ids of another tokenizer cannot be compared; the text's characters can."""
    before, after = _characters(found.reference.text), _characters(kept.text)
    own, length = len(kept.ids) // TOKEN_BYTES, len(after) // TOKEN_BYTES
    equal = common_tokens(before, after)
    alike = equal + (tokens_behind(before, after, equal) if equal < length else 0)
    reason = changed(found.reference.where, kept.where) or Reason.UNCLASSIFIED
    cause = _elsewhere(reason) if reason is not Reason.UNCLASSIFIED else difference
    behind = round(own * alike / length) - known if length else 0
    return _Compared(found, 0, max(behind, 0), cause)


def _characters(text: PromptText) -> bytes:
    whole = "\n".join([*(message.text for message in text.messages), *(tool.raw for tool in text.tools)])
    return whole.encode("utf-32-le", "surrogatepass")


def _kept(finished: RequestRecord, text: PromptText) -> KeptRequest:
    return KeptRequest(
        request_id=finished.request_id,
        at=finished.at,
        tenant=finished.tenant,
        model=finished.model,
        source=finished.source,
        session=finished.session,
        where=finished.where,
        text=text,
        ids=b"".join(finished.parts),
        replies=_replies(finished),
    )


def _replies(finished: RequestRecord) -> tuple[ReplyChoice, ...]:
    return finished.replies if len(finished.parts) == 1 else ()


def _scale(finished: RequestRecord) -> float:
    """Tokens as the engine counts them, per token of the gateway's."""
    own, counted = finished.own_tokens, finished.prompt_tokens
    return counted / own if own > 0 and counted > 0 else 1.0


def _note(finished: RequestRecord, reason: Reason) -> str:
    """What in particular; empty where the reason says it all."""
    rung = REASONS[reason].rung
    if rung is Rung.CHOSEN:
        reported = "nothing" if finished.cached_tokens is None else str(finished.cached_tokens)
        return f"{finished.predicted_tokens} tokens predicted, {reported} reported"
    best = max(finished.holders, key=_by_worth, default=None)
    if rung is not Rung.ANYWHERE or best is None:
        return ""
    note = f"{best.replica} held {best.held_tokens} tokens"
    chosen = [
        holder for holder in finished.holders if (holder.replica, holder.rank) == (finished.replica, finished.rank)
    ]
    if reason is Reason.LOAD_BALANCED and chosen:
        # The costs the decision was made by; seconds of everybody's time.
        note += f", at a cost of {best.cost_seconds:.3f} s against {chosen[0].cost_seconds:.3f} s"
    return note


def _explanation(
    finished: RequestRecord, ladder: Ladder, compared: _Compared | None, *, turn: int, was_skipped: bool
) -> Explanation:
    confirmed = finished.cached_tokens is not None
    missed = sorted(ladder.missed.items(), key=lambda item: -item[1])
    difference = compared.difference if compared and compared.behind else None
    tokens = compared.tokens if compared and difference else None
    reference = None
    if compared is not None:
        kept = compared.found.reference
        reference = ReferenceShown(kept.request_id, kept.at, kept.source, compared.found.chosen_by, compared.equal)
    return Explanation(
        prompt_tokens=ladder.prompt_tokens,
        hits=ladder.hits,
        hits_confirmed=confirmed,
        rungs=ladder.rungs,
        missed=tuple(Attribution(reason, tokens, confirmed, _note(finished, reason)) for reason, tokens in missed),
        reference=reference,
        difference=difference,
        turn=turn,
        was_skipped=was_skipped,
        tokens=tokens,
    )
