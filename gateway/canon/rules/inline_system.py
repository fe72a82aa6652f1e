"""``inline-system``: keeps the prefix of conversations with system messages inside them, such as an agent's reminders.

Templates that want the system message first refuse such a message, or print it in front, where each new one changes
all that follows. Only what belongs to one turn is joined, so a later turn begins with the messages of the one before.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.rules.role_order import Message, empty_line_between
from gateway.canon.texts import BLOCK_ROLES, leading_messages, messages
from gateway.core.canonical import RuleName
from gateway.core.prompt import LaterSystem
from gateway.core.request import Endpoint

_SYSTEM, _USER = "system", "user"


class InlineSystem:
    """Joins the system messages in front of the first answer; the template decides on the form of later ones.

    They stay, become messages of the user, or are joined to the message of the user or a tool that they stand behind,
    or else in front of. Messages of the developer stay. Codes of its edit, one for all messages: ``joined``,
    ``as_user``, ``joined_and_as_user``.
    """

    name: ClassVar[RuleName] = RuleName.INLINE_SYSTEM

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        if given.endpoint is not Endpoint.CHAT:
            return NOTHING
        before = messages(fields)
        found = [n for n, message in enumerate(before) if message.get("role") == _SYSTEM]
        if found in ([], [0]) or not all(_has_text(before[n]) for n in found):
            return NOTHING
        answered = next((n for n, message in enumerate(before) if message.get("role") == "assistant"), len(before))
        front, behind = before[:answered], before[answered:]
        first = [n for n in found if n < answered]
        leading = leading_messages(fields)
        joined = 0 if len(first) < 2 and all(n < leading for n in first) else len(first)
        if joined:
            front = _with_head(front, first, first[0] if first[0] < leading else 0)
        later = 0 if given.later_system is LaterSystem.IN_PLACE else len(found) - len(first)
        if later:
            behind = _without_system(behind, joins=given.later_system is LaterSystem.JOINED)
        if not joined and not later:
            return NOTHING
        summary = f"System messages inside the conversation: {joined} in front, {later} as text of the user."
        what = "_and_".join(["joined"] * bool(joined) + ["as_user"] * bool(later))
        return Detected([Edit(self.name, what, ("messages",), before, [*front, *behind], summary=summary)])


def _with_head(found: Sequence[Message], places: Sequence[int], at: int) -> list[Message]:
    """The messages with those at some places as one."""
    taken = set(places)
    others = [message for n, message in enumerate(found) if n not in taken]
    return [*others[:at], _joined([found[n] for n in places], found[places[0]]), *others[at:]]


def _without_system(found: Sequence[Message], *, joins: bool) -> list[Message]:
    """The messages behind the first answer, with text of the user in place of system messages."""
    runs: list[list[Message]] = []
    kept: list[Message] = []
    own = False
    """Whether the last run is text that found no message to be joined to."""
    for message in found:
        is_system = message.get("role") == _SYSTEM
        fits = joins and message.get("role") in (_SYSTEM, *BLOCK_ROLES) and _has_text(message)
        if is_system:
            message = {**message, "role": _USER}  # noqa: PLW2901
        if fits and runs and (own or (is_system and kept[-1].get("role") in BLOCK_ROLES and _has_text(kept[-1]))):
            runs[-1].append(message)
            if not is_system:
                kept[-1], own = message, False
            continue
        runs.append([message])
        kept.append(message)
        own = joins and is_system
    return [_joined(run, message) for run, message in zip(runs, kept, strict=True)]


def _has_text(message: Message) -> bool:
    return isinstance(message.get("content"), (str, list))


def _joined(run: Sequence[Message], kept: Message) -> Message:
    """One of some messages with the content of all, an empty line between texts."""
    if len(run) == 1:
        return kept
    contents = [content for message in run if (content := _content(message))]
    if not all(isinstance(content, str) for content in contents):
        return {**kept, "content": [part for content in contents for part in _parts(content)]}
    pieces = contents[:1]
    for above, below in pairwise(contents):
        pieces += (empty_line_between(above, below), below)
    return {**kept, "content": "".join(pieces)}


def _content(message: Message) -> Any:
    """Text, or a list of parts. A list of one text counts as the text: clients send the same message in both forms."""
    content = message["content"]
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], Mapping):
        part = content[0]
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return part["text"]
    return content


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
