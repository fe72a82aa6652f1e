"""Finds how a message differs from its counterpart in the earlier prompt."""

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import text_cause
from gateway.explain.diff.difference_text import text_difference
from gateway.explain.diff.given import PromptPair
from gateway.explain.diff.same_text import are_alike, sameness
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message

_CONVERSATION_ROLES = frozenset({"user", "assistant", "tool", "function"})
_OF_A_USER = (
    "user:",
    "human:",
    "question:",
    "q:",
    "input:",
    "[inst]",
    "user\n",
    "user|>",
    "instruction:",
    "frage:",
    "query:",
)
_OF_THE_APPLICATION = ("system:", "context:", "assistant:", "system\n", "system|>", "answer:", "instructions:")
_LOOK_BACK_CHARS = 2000


def path_of(given: PromptPair, index: int) -> str:
    """Path of a message's text in the request body."""
    message = (given.after.messages[index : index + 1] or given.before.messages[index : index + 1])[0]
    if message.role != PROMPT_ROLE:
        return f"messages[{index}].content"
    return "prompt" if max(len(given.before.messages), len(given.after.messages)) == 1 else f"prompt[{index}]"


def fallback_reason(given: PromptPair, role: str) -> tuple[Reason, str]:
    """Reason and detail of a difference without a more specific cause, by the message's role."""
    if role in LEADING_ROLES or role == PROMPT_ROLE:
        return Reason.SYSTEM_CHANGED, "edited"
    if role not in _CONVERSATION_ROLES:
        return Reason.UNCLASSIFIED, "edited"
    if given.same_conversation:
        return Reason.HISTORY_EDITED, "edited"
    return Reason.USER_DATA, "words" if role == "user" else "conversation"


def content_difference(given: PromptPair, index: int, after_index: int | None = None) -> Difference:
    """The difference of a message that both prompts contain.

    Args:
        given: The prompts.
        index: Its index in the earlier prompt.
        after_index: Its index in the later prompt, if different.
    """
    place = index if after_index is None else after_index
    before, after = given.before.messages[index], given.after.messages[place]
    if before.role != after.role:
        return _other_role(given, before, after, place)
    if before.text != after.text:
        return _other_text(given, before, after, index, place)
    if before.others != after.others:
        return _plain(
            given, after.role, place, "attachments", path=path_of(given, place), said="it has other attachments"
        )
    if before.calls != after.calls:
        return _other_calls(given, before, after, place)
    return _other_fields(given, before, after, place)


def _other_text(given: PromptPair, before: Message, after: Message, index: int, place: int) -> Difference:
    role = after.role
    reason, detail = fallback_reason(given, role)
    is_template = role in LEADING_ROLES or role == PROMPT_ROLE
    path = path_of(given, place)
    own_words = role == "user" and not given.same_conversation
    cause = text_cause(before.text, after.text, is_template=is_template, own_words=own_words)
    if before.form != after.form and sameness(before.text, after.text, cause.at):
        return _plain(given, role, place, "content_form", path=path, said=_form_changed(before, after))
    if cause.reason is not None:
        reason, detail = cause.reason, cause.detail
    elif cause.detail != "edited":
        reason, detail = (
            (reason, cause.detail) if reason is not Reason.USER_DATA else (Reason.HISTORY_EDITED, cause.detail)
        )
    elif (role == PROMPT_ROLE and _is_a_users_part(after.text, cause.at, given)) or (
        _is_newest_of_both(given, index, place) and role == "user" and not are_alike(before.text, after.text)
    ):
        reason, detail = Reason.USER_DATA, "words"
    return text_difference(
        cause,
        reason,
        before.text,
        after.text,
        path=path,
        message=place,
        role=role,
        detail=detail,
        between=given.between,
    )


def _is_a_users_part(text: str, at: int, given: PromptPair) -> bool:
    """Whether the difference in a completion's prompt follows a marker such as ``Question:``."""
    if given.same_conversation:
        return False
    lines = text[max(at - _LOOK_BACK_CHARS, 0) : at].lower()
    user = max(map(lines.rfind, _OF_A_USER))
    return user >= 0 and user > max(map(lines.rfind, _OF_THE_APPLICATION))


def _is_newest_of_both(given: PromptPair, index: int, place: int) -> bool:
    return index == len(given.before.messages) - 1 and place == len(given.after.messages) - 1


def _other_role(given: PromptPair, before: Message, after: Message, place: int) -> Difference:
    """The same text with another role."""
    is_leading = before.role in LEADING_ROLES or after.role in LEADING_ROLES
    reason = Reason.SYSTEM_CHANGED if is_leading else fallback_reason(given, after.role)[0]
    return Difference(
        reason,
        "role",
        f"messages[{place}].role",
        place,
        _known(after.role),
        said=f"messages[{place}] comes as {_known(after.role)} instead of {_known(before.role)}{given.between}",
    )


def _other_calls(given: PromptPair, before: Message, after: Message, place: int) -> Difference:
    index = next(
        (at for at, pair in enumerate(zip(before.calls, after.calls, strict=False)) if pair[0] != pair[1]),
        min(len(before.calls), len(after.calls)),
    )
    path = f"messages[{place}].tool_calls[{index}]"
    if index >= min(len(before.calls), len(after.calls)):
        return _plain(given, after.role, place, "tool_calls", path=path, said="it has more or fewer tool calls")
    one, other = before.calls[index], after.calls[index]
    if one.name != other.name:
        return _plain(
            given, after.role, place, "tool_calls", path=f"{path}.function.name", said="it calls another tool"
        )
    path += ".function.arguments"
    cause = text_cause(one.arguments, other.arguments, is_template=False)
    reason, detail = fallback_reason(given, after.role)
    if one.canonical == other.canonical and given.same_conversation:
        reason, detail = Reason.REPLY_RERENDERED, "tool_calls_redumped"
    elif cause.reason is not None:
        reason, detail = cause.reason, cause.detail
    return text_difference(
        cause,
        reason,
        one.arguments,
        other.arguments,
        path=path,
        message=place,
        role=_known(after.role),
        detail=detail,
        between=given.between,
    )


def _other_fields(given: PromptPair, before: Message, after: Message, place: int) -> Difference:
    """A difference in fields that many templates do not render: reasoning, names, ids of calls, form of the content."""
    base = f"messages[{place}]"
    if before.reasoning != after.reasoning:
        if given.same_conversation:
            detail = "reasoning_dropped" if not after.reasoning else "edited"
            said = f"{base}: its reasoning was {'left out' if not after.reasoning else 'changed'}{given.between}"
            role = _known(after.role)
            return Difference(Reason.REPLY_RERENDERED, detail, f"{base}.reasoning", place, role, said=said)
        return _plain(
            given, after.role, place, "conversation", path=f"{base}.reasoning", said="its reasoning is another one"
        )
    for field, one, other in (
        ("name", before.name, after.name),
        ("tool_call_id", before.tool_call_id, after.tool_call_id),
    ):
        if one != other:
            return _other_field(given, after.role, place, field=field, one=one, other=other)
    return _plain(
        given, after.role, place, "content_form", path=path_of(given, place), said=_form_changed(before, after)
    )


def _other_field(given: PromptPair, role: str, place: int, *, field: str, one: str, other: str) -> Difference:
    cause = text_cause(one, other, is_template=False)
    reason, detail = fallback_reason(given, role)[0], field
    if field == "name" and one and other:
        reason = Reason.USER_DATA
    elif cause.reason is not None:
        reason, detail = cause.reason, cause.detail
    path = f"messages[{place}].{field}"
    return text_difference(
        cause, reason, one, other, path=path, message=place, role=_known(role), detail=detail, between=given.between
    )


def _plain(given: PromptPair, role: str, place: int, detail: str, *, path: str, said: str) -> Difference:
    reason = fallback_reason(given, role)[0]
    if detail == "content_form" and reason is Reason.USER_DATA:
        reason = Reason.HISTORY_EDITED
    return Difference(reason, detail, path, place, _known(role), said=f"messages[{place}]: {said}{given.between}")


def _form_changed(before: Message, after: Message) -> str:
    words = {"string": "as a string", "parts": "as content parts", "none": "left out"}
    return f"the same text comes {words.get(after.form, after.form)} instead of {words.get(before.form, before.form)}"


def _known(role: str) -> str:
    """The role if it is a standard one, else ``other``: a non-standard role may hold any text."""
    return role if role in _CONVERSATION_ROLES | LEADING_ROLES | {PROMPT_ROLE} else "other"


def is_continued(before: Message, after: Message) -> bool:
    """Whether the text of one message is a prefix of the other's."""
    length = common_length(before.text, after.text)
    return before.role == after.role and length == min(len(before.text), len(after.text))
