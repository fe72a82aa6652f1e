"""Finds how a message differs from its counterpart in the earlier prompt.

For a reply of the engine: how the client sends it back in another form than it was generated in.
"""

import re
from collections.abc import Sequence

from gateway.core.explanation import Difference, ReplyChoice
from gateway.core.reasons import QUESTION_FIRST, Reason
from gateway.explain.diff.cause import DiffCause, beginning, text_cause, text_difference
from gateway.explain.diff.question_first import asks_first
from gateway.explain.diff.slot import are_alike, common_length, sameness
from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message, PromptPair

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
_OF_QUESTIONS = frozenset({Reason.USER_DATA, Reason.HISTORY_EDITED, Reason.SYSTEM_CHANGED})
"""Reasons that the difference of two questions may get."""
_IN_QUESTIONS = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID})
"""Reasons that it gets where two questions differ in a date or the like."""


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
    cause = text_cause(before.text, after.text, is_template=is_template, own_words=own_words, places=given.places)
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
    if (
        role in {"user", PROMPT_ROLE}
        and reason in _OF_QUESTIONS | _IN_QUESTIONS
        and _asks_first(given, index, place, cause, is_marked=reason in _IN_QUESTIONS)
    ):
        reason, detail = Reason.USER_DATA, QUESTION_FIRST
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


def _asks_first(given: PromptPair, index: int, place: int, cause: DiffCause, *, is_marked: bool) -> bool:
    """Whether a message differs in a question in front of documents, in the same message or in those behind it.

    What begins a prompt may be instructions: there a question has to show that it is one.
    """
    before, after = _with_next(given.before.messages, index), _with_next(given.after.messages, place)
    is_newest = index + len(before) == len(given.before.messages) and place + len(after) == len(given.after.messages)
    if given.same_conversation and not is_newest:
        return False
    texts = "\n\n".join(before), "\n\n".join(after)
    is_named = place == 0 and "\n" not in after[0][: cause.at].lstrip()
    return asks_first(*texts, cause.at, given.places, is_marked=is_marked, is_named=is_named)


def _with_next(messages: Sequence[Message], index: int) -> list[str]:
    """The texts of a message and of those that the application sends behind it, up to an answer."""
    texts = [messages[index].text]
    for message in messages[index + 1 :]:
        if message.role not in {"user"} | LEADING_ROLES:
            break
        texts.append(message.text)
    return texts


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


_THOUGHT = re.compile(r"\s*<(think|thinking|thought|reasoning)>[^\0]*?</\1>", re.DOTALL)
_SAID = {
    "reasoning_dropped": "the answer comes back without its reasoning",
    "tool_calls_dropped": "the answer comes back without its tool calls",
    "tool_calls_redumped": "tool calls come back that the answer's text did not hold as such",
    "parsed": "the answer was taken apart by a parser, and the template writes it anew",
    "role": "the answer comes back in another role",
    "stripped": "the answer comes back without the blanks around it",
    "whitespace": "the answer comes back with other blanks",
    "unicode_form": "the answer comes back in another Unicode form",
    "truncated": "only the beginning of the answer comes back",
    "edited": "another text comes back than was answered",
}


def reply_difference(given: PromptPair) -> Difference | None:
    """The difference between the reply to the earlier prompt and the message that follows it in the later one."""
    index = len(given.before.messages)
    if index >= len(given.after.messages):
        return None
    message = given.after.messages[index]
    if message.role != "assistant":
        if any(reply.text and reply.text.strip() and reply.text == message.text for reply in given.replies):
            return _rerendered(given, message, index, "role", message.text)
        return None
    return _unlike_all(given, message, index)


def prompt_reply_difference(given: PromptPair, index: int) -> Difference | None:
    """The same for a completion whose prompt continues with the reply, or for a message to be continued."""
    before, after = given.before.messages[index], given.after.messages[index]
    rest = after.text[len(before.text) :]
    texts = [reply.text for reply in given.replies if reply.text and reply.text.strip()]
    if any(rest.startswith(text) or text.startswith(rest) for text in texts):
        return None
    for text in texts:
        if rest.lstrip().startswith(text.strip()):
            return _rerendered(given, after, index, "stripped", before.text + text)
    return None


def _unlike_all(given: PromptPair, message: Message, index: int) -> Difference | None:
    """The difference to the closest reply; None if any reply came back unchanged."""
    nearest: tuple[int, str, str] | None = None
    for reply in given.replies:
        detail = _unlike(reply, message)
        if not detail:
            return None
        rank = list(_SAID).index(detail)
        if nearest is None or rank < nearest[0]:
            nearest = rank, detail, reply.text or ""
    return _rerendered(given, message, index, nearest[1], nearest[2]) if nearest else None


def _unlike(reply: ReplyChoice, message: Message) -> str:
    """The detail code of the difference between a message and a reply; empty if they are equal."""
    if reply.has_reasoning and not message.reasoning and not _THOUGHT.match(message.text[:200_000]):
        return "reasoning_dropped"
    if reply.has_calls and not message.calls:
        return "tool_calls_dropped"
    if reply.text is None:
        return "parsed" if reply.has_calls or reply.has_reasoning else ""
    if message.calls and not reply.has_calls:
        return "tool_calls_redumped"
    return _unlike_text(reply.text, message.text)


def _unlike_text(reply: str, text: str) -> str:
    if reply == text:
        return ""
    if reply.strip() == text.strip():
        return "stripped"
    same = sameness(reply, text, common_length(reply, text))
    if same:
        return "unicode_form" if same in {"unicode_form", "quotes"} else "whitespace"
    thought = _THOUGHT.match(reply)
    if thought and reply[thought.end() :].strip() == text.strip():
        return "reasoning_dropped"
    return "truncated" if text.strip() and reply.startswith(text.rstrip()) else "edited"


def _rerendered(given: PromptPair, message: Message, index: int, detail: str, reply: str) -> Difference:
    path = f"messages[{index}].content" if message.role != "prompt" else "prompt"
    said = f"{_SAID[detail]}{given.between}"
    if not reply or reply == message.text:
        shown = beginning(message.text)
        return Difference(
            Reason.REPLY_RERENDERED,
            detail,
            path,
            index,
            _role(message),
            1 if shown else 0,
            1 if shown else 0,
            "",
            shown,
            said,
        )
    cause: DiffCause = text_cause(reply, message.text, is_template=False)
    found = text_difference(
        DiffCause(None, detail, "", cause.at, cause.slot),
        Reason.REPLY_RERENDERED,
        reply,
        message.text,
        path=path,
        message=index,
        role=_role(message),
        detail=detail,
    )
    return Difference(
        found.reason, detail, path, index, found.role, found.line, found.column, found.before, found.after, said
    )


def _role(message: Message) -> str:
    return message.role if message.role in {"assistant", "user", "system", "developer", "tool", "prompt"} else "other"


def came_back(replies: Sequence[ReplyChoice], message: Message) -> bool:
    """Whether a message holds the text of one of the replies, apart from blanks around it."""
    return message.role == "assistant" and any(
        reply.text is not None and reply.text.strip() == message.text.strip() and bool(message.text.strip())
        for reply in replies
    )
