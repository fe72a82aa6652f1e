"""Compares message sequences: messages added, removed, reordered, trimmed from the front, or edited."""

from collections.abc import Hashable, Sequence

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import beginning
from gateway.explain.diff.language import language_difference
from gateway.explain.diff.message import (
    came_back,
    content_difference,
    fallback_reason,
    is_continued,
    prompt_reply_difference,
)
from gateway.explain.diff.slot import are_alike
from gateway.explain.prompt_text import (
    LEADING_ROLES,
    PROMPT_ROLE,
    Message,
    PromptPair,
    counted,
    questions_in_front,
    shown,
)

_CANDIDATES = 64
_LEADING_COMPARED = 16
_SUMMARY_MESSAGES = 2
_LEAST_CUT = 2


def message_difference(given: PromptPair) -> Difference | None:
    """The first difference in what all templates render of messages; None if one sequence is a prefix of the other."""
    before, after = given.before.messages, given.after.messages
    index = _first_unequal(before, after)
    if index == min(len(before), len(after)):
        return None
    if PROMPT_ROLE in (before[index].role, after[index].role):
        return _prompt_difference(given, index)
    if _is_continued(given, index):
        return prompt_reply_difference(given, index)
    rest, other_rest = _numbered(before[index:], after[index:])
    found = (
        _other_order(given, rest, other_rest, index)
        or _same_but_for_role(given, index)
        or _trimmed(given, rest, other_rest, index)
    )
    if found is None:
        found = (_in_leading if _is_leading(given, index) else _in_history)(given, rest, other_rest, index)
    return found


def unrendered_difference(given: PromptPair) -> Difference | None:
    """The first difference in fields that many templates do not render: reasoning, names, ids, form of the content."""
    for index, (one, other) in enumerate(zip(given.before.messages, given.after.messages, strict=False)):
        if one is not other and one != other and (one.text, one.calls) == (other.text, other.calls):
            return content_difference(given, index)
    return None


def _first_unequal(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Index of the first messages that do not render alike; the length of the shorter sequence if there are none."""
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if one is not other and one != other and _rendered(one) != _rendered(other):
            return index
    return min(len(before), len(after))


def _rendered(message: Message) -> Hashable:
    """What all templates render of a message."""
    return message.role, message.text, message.others, message.calls


def _numbered(before: Sequence[Message], after: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Both sequences as numbers; messages that render alike get the same number."""
    numbers: dict[Hashable, int] = {}
    one, other = (
        [numbers.setdefault(_rendered(each), len(numbers)) for each in messages] for messages in (before, after)
    )
    return one, other


def _prompt_difference(given: PromptPair, index: int) -> Difference | None:
    """The first difference of a completion's prompts where neither is a prefix of the other."""
    for place in range(index, min(len(given.before.messages), len(given.after.messages))):
        before, after = given.before.messages[place], given.after.messages[place]
        if before.text == after.text:
            continue
        if not is_continued(before, after):
            return content_difference(given, place)
        if len(after.text) > len(before.text) and (found := prompt_reply_difference(given, place)):
            return found
    return None


def _is_continued(given: PromptPair, index: int) -> bool:
    """Whether the earlier prompt's last message was left open, and the later prompt continues it."""
    before, after = given.before.messages, given.after.messages
    return (
        index == len(before) - 1
        and given.before.arguments.get("continue_final_message") == "true"
        and before[index].role == after[index].role
        and after[index].text.startswith(before[index].text)
    )


def _is_leading(given: PromptPair, index: int) -> bool:
    """Whether an index lies within, or right after, the leading messages of either prompt."""
    return index < max(len(given.before.leading), len(given.after.leading))


def _same_but_for_role(given: PromptPair, index: int) -> Difference | None:
    before, after = given.before.messages[index], given.after.messages[index]
    if before.role != after.role and before.text == after.text and before.text.strip():
        return content_difference(given, index)
    return None


def _other_order(given: PromptPair, rest: list[int], other_rest: list[int], index: int) -> Difference | None:
    """The same messages in another order, or a leading message moved behind others."""
    count = _permuted(rest, other_rest)
    if not (count or _is_moved(given, index) or _is_moved(given, index, backwards=True)):
        return None
    said = f"from messages[{index}] on, the same messages come in another order{given.between}"
    if count and _are_documents(given, index, count):
        return _at(given, index, (Reason.DOCUMENTS_REORDERED, "messages"), said)
    roles = {message.role for message in given.after.messages[index : index + count]}
    detail = "system_order" if count and roles <= LEADING_ROLES else "message_order"
    return _at(given, index, (Reason.ROLE_ORDER, detail), said)


def _are_documents(given: PromptPair, index: int, count: int) -> bool:
    """Whether permuted messages are examples, or a document each: all roles stay in their places, and so do the
    first instruction and the question."""
    before, after = given.before.messages[index : index + count], given.after.messages[index : index + count]
    roles = [message.role for message in before]
    if roles != [message.role for message in after]:
        return False
    if "assistant" in roles:
        return set(roles) <= {"user", "assistant"}
    ends = index + count == min(len(given.before.messages), len(given.after.messages))
    return (set(roles) == {"user"} and not ends) or (index > 0 and set(roles) <= LEADING_ROLES)


def _permuted(rest: list[int], other_rest: list[int]) -> int:
    """Length of the run of messages at the beginning that is a permutation of the other's; 0 for none."""
    if rest[0] not in other_rest or other_rest[0] not in rest:
        return 0
    balance: dict[int, int] = {}
    for length, (left, right) in enumerate(zip(rest, other_rest, strict=False), start=1):
        for number, change in ((left, 1), (right, -1)):
            count = balance.get(number, 0) + change
            if count:
                balance[number] = count
            else:
                balance.pop(number, None)
        if not balance:
            return length
    return 0


def _is_moved(given: PromptPair, index: int, *, backwards: bool = False) -> bool:
    """Whether a leading message of one prompt follows the first conversation messages in the other."""
    before, after = given.before.messages, given.after.messages
    if backwards:
        before, after = after, before
    moved = before[index]
    if moved.role not in LEADING_ROLES or after[index].role in LEADING_ROLES:
        return False
    return any(
        message.role in LEADING_ROLES and are_alike(moved.text, message.text)
        for message in [each for each in after[index + 1 :] if each.role in LEADING_ROLES][:_LEADING_COMPARED]
    )


def _in_leading(given: PromptPair, rest: list[int], other_rest: list[int], index: int) -> Difference:
    before = [message.text for message in given.before.leading[index:]]
    after = [message.text for message in given.after.leading[index:]]
    if found := language_difference(given, index):
        return found
    if added := _shift(before, after, rest, other_rest):
        return _more(given, index, added)
    if removed := _shift(after, before, other_rest, rest):
        return _fewer(given, index, removed)
    if given.sources_differ and not _any_alike(before, after):
        said = (
            f"{shown(given.after_source)} sends other leading messages than {shown(given.before_source)}: "
            f"{counted(len(given.after.leading), 'message')} against {len(given.before.leading)}"
        )
        return _at(given, index, (Reason.SYSTEM_CHANGED, "client_format"), said)
    return content_difference(given, index)


def _shift(fewer: list[str], more: list[str], few: list[int], many: list[int]) -> int:
    """Number of messages inserted at the front of ``more`` before it continues as ``fewer`` does; 0 for none.

    If the first messages are similar, the message counts as edited, unless it follows unchanged further on.
    """
    if not more or len(more) < len(fewer):
        return 0
    if not fewer:
        return len(more)
    if len(more) == 1:
        return 0
    for place in range(1, min(len(more), _LEADING_COMPARED)):
        if many[place] == few[0]:
            return place
    if are_alike(fewer[0], more[0]):
        return 0
    return next((place for place in range(1, min(len(more), _LEADING_COMPARED)) if are_alike(fewer[0], more[place])), 0)


def _any_alike(before: list[str], after: list[str]) -> bool:
    return any(are_alike(one, other) for one in before[:_LEADING_COMPARED] for other in after[:_LEADING_COMPARED])


def _more(given: PromptPair, index: int, count: int) -> Difference:
    if given.sources_differ:
        source, than = shown(given.after_source), shown(given.before_source)
        said = f"{source} sends {counted(count, 'message')} more at position {index} than {than}"
    else:
        said = f"{counted(count, 'system message')} more at position {index}"
    return _at(given, index, (Reason.SYSTEM_CHANGED, "message_added"), said, is_new=True)


def _fewer(given: PromptPair, index: int, count: int) -> Difference:
    if given.sources_differ:
        source, than = shown(given.after_source), shown(given.before_source)
        said = f"{source} sends {counted(count, 'message')} fewer at position {index} than {than}"
    else:
        said = f"{counted(count, 'system message')} fewer at position {index}"
    return _at(given, index, (Reason.SYSTEM_CHANGED, "message_removed"), said)


def _in_history(given: PromptPair, rest: list[int], other_rest: list[int], index: int) -> Difference:
    if found := _hidden_questions_difference(given, index):
        return found
    if len(rest) > 1 and len(other_rest) > 1 and rest[1] == other_rest[1]:
        return content_difference(given, index)
    if given.same_conversation:
        if count := _next_index(other_rest, rest[:1]):
            return _inserted(given, index, count)
        if count := _next_index(rest, other_rest[:1]):
            return _removed(given, index, count)
    before, after = given.before.messages[index], given.after.messages[index]
    if before.role == after.role:
        return content_difference(given, index)
    said = f"messages[{index}] is another message than before{given.between}"
    return _at(given, index, fallback_reason(given, after.role), said)


def _hidden_questions_difference(given: PromptPair, index: int) -> Difference | None:
    """User messages that another client family inserts before or after the first question."""
    if given.same_conversation or not given.sources_differ:
        return None
    before, after = questions_in_front(given.before), questions_in_front(given.after)
    if not before or not after:
        return None
    if after > before:
        return _more(given, index, after - before)
    return _fewer(given, index, before - after) if before > after else None


def _trimmed(given: PromptPair, rest: list[int], other_rest: list[int], index: int) -> Difference | None:
    """Messages trimmed from the front of the conversation, perhaps replaced by a summary."""
    if not given.same_conversation:
        return None
    if index != len(given.before.leading):
        return _trimmed_behind_kept(given, rest, other_rest, index)
    if count := _cut(rest, other_rest):
        return _history_trimmed(given, index, count, "trimmed")
    if came_back(given.replies, given.after.messages[index]):
        return _history_trimmed(given, index, len(rest), "trimmed")
    for summary in range(1, _SUMMARY_MESSAGES + 1):
        if len(other_rest) > summary and other_rest[summary] != rest[min(summary, len(rest) - 1)]:
            count = _cut(rest, other_rest[summary:])
            if count > summary:
                return _history_trimmed(given, index, count, "summarized")
    return None


def _trimmed_behind_kept(given: PromptPair, rest: list[int], other_rest: list[int], index: int) -> Difference | None:
    """Messages trimmed after the first question, or after its reply, which both remain.

    A single missing message counts as removed instead; so does a turn after the first one if more remains than is
    missing.
    """
    kept = [message.role for message in given.before.messages[len(given.before.leading) : index]]
    if kept not in (["user"], ["user", "assistant"]):
        return None
    count = _cut(rest, other_rest)
    if not count and came_back(given.replies, given.after.messages[index]):
        count = len(rest)
    left = len(rest) - count
    if count < _LEAST_CUT or left > len(other_rest) or (len(kept) > 1 and left > count):
        return None
    return _history_trimmed(given, index, count, "trimmed", "behind the kept beginning")


def _cut(rest: list[int], other_rest: list[int]) -> int:
    """Number of messages to drop from the front of ``rest`` so that it matches ``other_rest`` to its end; 0 if none."""
    places = [place for place in range(1, len(rest)) if rest[place] == other_rest[0]][:_CANDIDATES]
    for place in places:
        length = min(len(rest) - place, len(other_rest))
        if rest[place : place + length] == other_rest[:length]:
            return place
    return 0


def _history_trimmed(given: PromptPair, index: int, count: int, detail: str, place: str = "at the front") -> Difference:
    what = "replaced by a summary" if detail == "summarized" else "cut"
    said = f"{counted(count, 'message')} {what} {place} of the conversation, from messages[{index}] on{given.between}"
    return _at(given, index, (Reason.HISTORY_TRIMMED, detail), said)


def _next_index(longer: list[int], first: list[int]) -> int:
    """Index at which a message comes again; 0 if it does not."""
    return next((place for place in range(1, len(longer)) if longer[place] == first[0]), 0)


def _inserted(given: PromptPair, index: int, count: int) -> Difference:
    said = f"{counted(count, 'message')} put in at messages[{index}]{given.between}"
    return _at(given, index, (Reason.HISTORY_EDITED, "message_added"), said, is_new=True)


def _removed(given: PromptPair, index: int, count: int) -> Difference:
    said = f"{counted(count, 'message')} taken out at messages[{index}]{given.between}"
    return _at(given, index, (Reason.HISTORY_EDITED, "message_removed"), said)


def _at(given: PromptPair, index: int, kind: tuple[Reason, str], said: str, *, is_new: bool = False) -> Difference:
    """A difference that affects a whole message."""
    (reason, detail), after, before = kind, given.after.messages[index], given.before.messages[index : index + 1]
    role = after.role if fallback_reason(given, after.role)[0] is not Reason.UNCLASSIFIED else "other"
    return Difference(
        reason,
        detail,
        f"messages[{index}]",
        index,
        role,
        1 if after.text else 0,
        1 if after.text else 0,
        beginning(before[0].text) if before and not is_new else "",
        beginning(after.text),
        said,
    )
