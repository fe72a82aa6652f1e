"""Finds how a client sends a reply back in another form than it was generated in."""

import re
from collections.abc import Sequence

from gateway.core.explanation import Difference, ReplyChoice
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import DiffCause, text_cause
from gateway.explain.diff.difference_text import beginning, text_difference
from gateway.explain.diff.given import PromptPair
from gateway.explain.diff.same_text import sameness
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import Message

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
