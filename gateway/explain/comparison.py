"""Compares a request with its reference: the common prefix, what occurs in both behind it, and the first difference."""

import re
import zlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.canon.document_places import DocumentPlace
from gateway.core.advice import advice_for, advice_on, rules_applied
from gateway.core.client_places import ClientPlaces
from gateway.core.diagnosis import PromptDiagnosis
from gateway.core.explanation import Difference, Explanation, RequestRecord, TokenWindows, VaryingSlot
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import REASONS, Reason, Rung
from gateway.core.request import Endpoint
from gateway.explain.answered_differences import Answer, AnsweredDifferences
from gateway.explain.diff import find_difference
from gateway.explain.diff.learned import learned_slot
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import LEADING_ROLES, PromptText
from gateway.explain.reference import KeptRequest, ReferenceMatch, common_tokens, tokens_behind
from gateway.explain.seen.seen_prompts import changed, of_other_version

_EQUAL_SHOWN = 16
"""Tokens shown before the first differing one."""
_DIFFERING_SHOWN = 24
"""Tokens shown from the first differing one on."""
_FORGOTTEN = "The gateway no longer held context blocks of earlier turns, so the conversation's prompt changed once."
_WORD = re.compile(r"\w+|[^\w\s]")

Blocks = Sequence[tuple[int, int]]
"""As ``Canonicalized.blocks``."""


class Compared(NamedTuple):
    """A request compared with its reference, in the gateway's tokens.

    Attributes:
        found: The reference.
        equal: Length of the common prefix.
        behind: Later tokens, beyond all that was computed before, that also occur in the reference.
        rounded: The same, where every whole block was computed before, by a request that shares more than the
            reference: they have no cause but rounding.
        difference: Why the prefix ends there; None if unknown, if there is no difference, or if ``behind`` is 0.
        tokens: Token ids of both around the first differing token; None if they cannot be compared.
        slot: Where a value that differs is found; None if it is no single value, or has no place of its own.
    """

    found: ReferenceMatch
    equal: int
    behind: int
    difference: Difference | None
    tokens: TokenWindows | None = None
    rounded: int = 0
    dropped: int = 0
    slot: VaryingSlot | None = None


def compare(
    record: RequestRecord,
    kept: KeptRequest,
    found: ReferenceMatch | None,
    known: int,
    *,
    answered: AnsweredDifferences,
    places: Sequence[DocumentPlace] = (),
) -> Compared | None:
    """The request compared with its reference, if it has one; ``known`` tokens are held or were computed before.

    ``answered``: differences of earlier requests; ``places``: how the operator declares documents.

    The texts are compared only if tokens beyond the known ones occur in the reference: then they have lost their place,
    and the first difference is the reason. All other tokens are new.
    """
    if found is None:
        return None
    reference = found.reference
    ids, equal = _nearest(found, kept.ids)
    then, now = reference.where, record.where
    if then.tokenizer != now.tokenizer or then.variant != now.variant:
        return _compared_by_text(record, found, kept, equal, known, places=places)
    lost_reply = 0
    if len(record.parts) == 1:
        start = max(equal, known)
        rest = b"" if found.is_rest_new else kept.ids[start * TOKEN_BYTES :]
        behind = tokens_behind(ids[equal * TOKEN_BYTES :], rest, 0)
        own = len(kept.ids) // TOKEN_BYTES
        if equal < known and own - known <= record.block_size:
            return Compared(found, equal, 0, None, rounded=behind)
        lost_reply = _lost_reply(reference, start, own)
    else:
        # With several prompts, the known tokens are no prefix but a count over all prompts.
        behind = max(equal + tokens_behind(ids, kept.ids, equal) - known, 0)
    if not behind and not lost_reply:
        return Compared(found, equal, 0, None)
    key = answered.key(reference, kept, found.same_conversation, record.tools_first, equal)
    answer = None if key is None else answered.get(key)
    if answer is None:
        difference = _difference(record, found, kept, equal, places)
        answer = Answer(difference, learned_slot(reference.text, kept.text, difference))
        if key is not None:
            answered.put(key, reference, kept, answer)
    difference = answer.difference
    blocks = record.canonical.blocks
    if blocks and difference is not None and is_in_newest(reference.text, kept.text, blocks, difference):
        behind = round(behind * own_share(reference.text, kept.text, blocks))
        if not behind:
            return Compared(found, equal, 0, None)
    prompt_left = len(reference.ids) // TOKEN_BYTES - equal
    is_reply = difference is not None and difference.reason is Reason.REPLY_RERENDERED
    if is_reply or (difference is None and prompt_left > 0):
        behind = max(behind, lost_reply)
    windows = _windows(ids, kept.ids, equal, [len(part) // TOKEN_BYTES for part in record.parts])
    cause = _cause(record, found, kept, difference, prompt_left)
    dropped = 0
    # The prompt's last token may be joined with the reply, so that it alone shows nothing.
    if is_reply and cause is not None and cause is difference and prompt_left > 1 and record.endpoint == Endpoint.CHAT:
        dropped = round(behind * _kept_share(reference, kept, cause))
        cause = cause if dropped < behind else _of_template(record, found, prompt_left)
    slot = answer.slot if cause is difference else None
    return Compared(found, equal, behind, cause, windows, dropped=dropped, slot=slot)


_FLEET_RUNGS = (Rung.CHOSEN, Rung.ANYWHERE, Rung.SEEN_HERE, Rung.SEEN)
_OF_THE_FLEET = {each for each in Reason if REASONS[each].rung in _FLEET_RUNGS} - {Reason.TENANT_ISOLATED}
"""Reasons outside of the prompt. A client must not learn what other tenants send, so that it is new content here."""
_PARAMETERS = ("prompt_cache_key", "response_format", "reasoning_effort", "verbosity", "service_tier")
_SUMMARIZED = frozenset({Reason.HISTORY_TRIMMED, Reason.HISTORY_EDITED, Reason.USER_DATA})


def diagnosed(
    record: RequestRecord,
    kept: KeptRequest,
    found: ReferenceMatch,
    missed: Explanation,
    *,
    client: ClientPlaces,
    places: Sequence[DocumentPlace] = (),
) -> PromptDiagnosis:
    """What is computed again because a prompt differs from the one that its client names, and what for other reasons.

    Not whether tokens beyond the known ones occur in the reference decides, but what the engine could have read.
    ``missed`` is the request's explanation by what is predicted; other arguments are as for ``compare``.
    """
    before, after, size, own = found.reference, kept.text, record.block_size, len(kept.ids) // TOKEN_BYTES
    ids, equal = _nearest(found, kept.ids)
    answers = [[each.role for each in text.messages].count("assistant") for text in (before.text, after)]
    if equal < len(before.ids) // TOKEN_BYTES and answers[1] <= answers[0]:
        ids = before.ids  # a reply that the client does not send back would not have been read either
    reason = changed(before.where, record.where)
    if reason is None or reason is Reason.ADAPTER_CHANGED:
        difference = _difference(record, found, kept, equal, places)
        difference = _cause(record, found, kept, difference, len(before.ids) // TOKEN_BYTES - equal)
    else:
        equal, difference = 0, _elsewhere(reason)
    reusable, shared = (max(min(each, own - 1), 0) // size * size for each in (len(ids) // TOKEN_BYTES, equal))
    fleet = {str(each.reason): each.tokens for each in missed.missed if each.reason in _OF_THE_FLEET}
    if difference is not None and reusable > shared:
        # What was computed before, for any request, is a hit or is missed for a reason in the fleet.
        tokens = max(reusable - max(shared, missed.hits + sum(fleet.values())), 0)
        part = _part(before, kept, difference)
        fix = advice_on(difference, rules_applied(record.canonical.modes))
        place = "model" if part == "model" else _place(difference, client)
        return PromptDiagnosis("compared", part, difference.reason, place, tokens, reusable, fix, fleet)
    parameter = next((each for each in _PARAMETERS if _differs(before.text, after, each)), "")
    part = "text_format" if parameter == "response_format" else parameter
    main = max(fleet, key=fleet.__getitem__, default="")
    fix = advice_for(Reason(main)) if main else ""
    return PromptDiagnosis("compared", part, main, client.of(parameter), 0, reusable, fix, fleet)


def _part(before: KeptRequest, after: KeptRequest, difference: Difference) -> str:
    """``PromptDiagnosis.changed`` of a difference."""
    old, new, path, index = before.text, after.text, difference.path, difference.message
    if before.model != after.model:
        return "model"
    if path.startswith("tools["):
        return "tools"
    if index is not None:
        if index < max(len(old.leading), len(new.leading)):
            return "system"
        is_shorter = len(new.messages) < len(old.messages) and difference.reason in _SUMMARIZED
        return "context" if is_shorter else "messages"
    if _differs(old, new, "reasoning_effort") and path.startswith(("reasoning_effort", "chat_template_kwargs")):
        return "reasoning_effort"
    return "messages" if difference.reason is Reason.TEMPLATE_DROPPED else "parameters"


def _differs(before: PromptText, after: PromptText, name: str) -> bool:
    return before.arguments.get(name) != after.arguments.get(name)


def _place(difference: Difference, client: ClientPlaces) -> str:
    """Where the client's body has a difference."""
    path, index = difference.path, difference.message
    if index is not None and index < len(client.messages):
        return client.messages[index]
    return client.of(f"{path.partition(']')[0]}]" if path.startswith("tools[") else path)


def _nearest(found: ReferenceMatch, prompt: bytes) -> tuple[bytes, int]:
    """Of the sequences that the reference left in the engine's cache the one with the longest common prefix; the first
    on a tie; and that prefix in tokens."""
    ids, replies = found.reference.ids, [each.ids or b"" for each in found.reference.replies]
    first = replies[0] if replies else b""
    if found.equal < len(ids) // TOKEN_BYTES:
        # The prompts differ before any reply.
        return ids + first, found.equal
    # What stands in front is known to be equal, and may be long.
    rest = prompt[len(ids) : len(ids) + max(map(len, replies), default=0)]
    nearest = max(replies, key=lambda reply: common_tokens(reply, rest), default=b"")
    return ids + nearest, found.equal + common_tokens(nearest, rest)


def _difference(
    record: RequestRecord, found: ReferenceMatch, kept: KeptRequest, equal: int, places: Sequence[DocumentPlace]
) -> Difference | None:
    """The first difference of the texts."""
    reference = found.reference
    difference = find_difference(
        reference.text,
        kept.text,
        before_source=reference.source,
        after_source=record.source,
        same_conversation=found.same_conversation,
        replies=reference.replies,
        tools_first=record.tools_first,
        equal_share=equal / max(len(kept.ids) // TOKEN_BYTES, 1),
        places=places,
    )
    if difference is not None and (kept.text.has_ids or reference.text.has_ids):
        return _of_ids(difference)
    return difference


def _windows(before: bytes, after: bytes, equal: int, lengths: Sequence[int]) -> TokenWindows:
    """Both token sequences around the first differing token, within the prompt that contains it."""
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


def _lost_reply(reference: KeptRequest, start: int, own: int) -> int:
    """Tokens of a reply whose generated ids are unknown, if the client sends it back in another form."""
    tokens = max((reply.tokens for reply in reference.replies if reply.ids is None), default=0)
    return max(min(len(reference.ids) // TOKEN_BYTES + tokens - 1, own) - start, 0) if tokens else 0


def _kept_share(reference: KeptRequest, kept: KeptRequest, difference: Difference) -> float:
    """How much of a reply that comes back changed stands in front of the change, as a share of what comes back."""
    text = kept.text.messages[difference.message or 0].text
    return max((common_length(reply.text or "", text) for reply in reference.replies), default=0) / max(len(text), 1)


def _cause(
    record: RequestRecord, found: ReferenceMatch, kept: KeptRequest, difference: Difference | None, prompt_left: int
) -> Difference | None:
    """The first difference, or another cause of differing tokens. ``prompt_left``: as for ``_of_template``."""
    reason = changed(found.reference.where, record.where)
    if reason is not None and (difference is None or reason is Reason.TEMPLATE_CHANGED):
        return _elsewhere(reason)
    if of_other_version(found.reference.where, record.where) and not _is_behind_the_leading(difference):
        version = REASONS[Reason.PROMPT_VERSION_CHANGED].meaning
        if difference is None:
            return _elsewhere(Reason.PROMPT_VERSION_CHANGED)
        return msgspec.structs.replace(difference, reason=Reason.PROMPT_VERSION_CHANGED, said=version)
    is_lost = record.canonical.context_lost and found.same_conversation
    if is_lost and difference is not None and is_block_missing(found.reference.text, kept.text, difference):
        return msgspec.structs.replace(difference, reason=Reason.CONTEXT_LOST, detail="forgotten", said=_FORGOTTEN)
    came_parsed = difference is not None and difference.detail == "parsed"
    if difference is None or (came_parsed and not any(reply.has_calls for reply in found.reference.replies)):
        return _of_template(record, found, prompt_left) or difference
    return difference


def _of_template(record: RequestRecord, found: ReferenceMatch, prompt_left: int) -> Difference | None:
    """What the chat template changes by itself; None for prompts without one, and for those that the engine cuts.

    ``prompt_left``: tokens of the reference's prompt behind the first differing one; 0 or less if it is in the reply.
    """
    if record.endpoint != Endpoint.CHAT or "truncate_prompt_tokens" in found.reference.text.arguments:
        return None
    if record.template_tells_time:
        # Templates print the time in front of the messages, and rewrite the newest ones.
        text, tokens = found.reference.text, len(found.reference.ids) // TOKEN_BYTES
        characters = sum(len(message.text) for message in text.messages)
        whole = characters + sum(len(tool.raw) for tool in text.tools)
        if (tokens - prompt_left) * 2 * whole < tokens * characters:
            said = "The chat template itself prints the time (strftime_now)."
            return Difference(Reason.DYNAMIC_TIME, "template_clock", "chat_template", said=said)
    detail = "prompt" if prompt_left > 0 else "answer"
    said = f"The chat template writes the {detail} in another way once other messages follow."
    return Difference(Reason.TEMPLATE_DROPPED, detail, "chat_template", said=said)


def _is_behind_the_leading(difference: Difference | None) -> bool:
    return difference is not None and difference.message is not None and difference.role not in LEADING_ROLES


def _of_ids(difference: Difference) -> Difference:
    """A difference in prompts given as token ids: only its place is known."""
    path, said = difference.path, "The prompt is given as token ids, which differ from those before."
    return Difference(Reason.UNCLASSIFIED, "token_ids", path, message=difference.message, said=said)


def _elsewhere(reason: Reason) -> Difference:
    return Difference(reason, str(reason), "", said=REASONS[reason].meaning)


def _compared_by_text(
    record: RequestRecord,
    found: ReferenceMatch,
    kept: KeptRequest,
    equal_ids: int,
    known: int,
    *,
    places: Sequence[DocumentPlace],
) -> Compared:
    """The comparison by characters, for prompts whose token ids come from different tokenizers."""
    before, after = _characters(found.reference.text), _characters(kept.text)
    own, length = len(kept.ids) // TOKEN_BYTES, len(after) // TOKEN_BYTES
    equal = common_tokens(before, after)
    alike = equal + (tokens_behind(before, after, equal) if equal < length else 0)
    behind = max(round(own * alike / length) - known, 0) if length else 0
    if not behind:
        return Compared(found, 0, 0, None)
    reason = changed(found.reference.where, kept.where)
    cause = _difference(record, found, kept, equal_ids, places) if reason is None else _elsewhere(reason)
    return Compared(found, 0, behind, cause)


def _characters(text: PromptText) -> bytes:
    whole = "\n".join([*(message.text for message in text.messages), *(tool.raw for tool in text.tools)])
    return whole.encode("utf-32-le", "surrogatepass")


def is_in_newest(before: PromptText, after: PromptText, blocks: Blocks, difference: Difference) -> bool:
    """Whether two prompts differ first in the newest message with a block: in the block, or in the words before it."""
    index = difference.message
    return bool(blocks) and index == blocks[-1][0] and _is_in_text(before, after, difference)


def is_block_missing(before: PromptText, after: PromptText, difference: Difference) -> bool:
    """Whether two prompts differ first where a message ends in the later one and goes on in the earlier one."""
    index = difference.message
    if index is None or not _is_in_text(before, after, difference):
        return False
    return before.messages[index].text.startswith(after.messages[index].text.rstrip())


def _is_in_text(before: PromptText, after: PromptText, difference: Difference) -> bool:
    """Whether a difference is one of the texts of two messages behind the leading ones."""
    index = difference.message
    if index is None or not difference.line or index >= min(len(before.messages), len(after.messages)):
        return False
    return difference.role not in LEADING_ROLES


def own_share(before: PromptText, after: PromptText, blocks: Blocks) -> float:
    """Of what occurs in both prompts behind a difference in the newest message with a block, the client's own share.

    Counted in words, since the place of the block is known in characters only: 0 if none of the client's words behind
    the difference occur in the earlier prompt, which is exact.
    """
    index, characters = blocks[-1]
    old, text = before.messages[index].text, after.messages[index].text
    at, end = common_length(old, text), len(text) - characters
    earlier = _words(old[at:])
    own = tokens_behind(earlier, _words(text[at:end]), 0)
    block = tokens_behind(earlier, _words(text[max(at, end) :]), 0)
    return own / (own + block) if own else 0.0


def _words(text: str) -> bytes:
    """The words of a text as if they were token ids."""
    return array("I", (zlib.crc32(word.encode("utf-8", "replace")) for word in _WORD.findall(text))).tobytes()
