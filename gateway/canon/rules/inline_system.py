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
from gateway.core.request import Endpoint

_MEMBERS = frozenset({"role", "content"})


class InlineSystem:
    """Joins the system messages in front of the first answer; the template decides on the form of later ones.

    They stay, become messages of the user, or join the message of the user or a tool that they stand behind, or else in
    front of. Messages of the developer stay. Codes of its edit: ``joined``, ``as_user``, ``joined_and_as_user``.
    """

    name: ClassVar[RuleName] = RuleName.INLINE_SYSTEM

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        before = messages(fields) if given.endpoint is Endpoint.CHAT else []
        found = {n for n, message in enumerate(before) if message.get("role") == "system"}
        if found <= {0} or not all(_is_plain(before[n]) for n in found):
            return NOTHING
        answered = next((n for n, message in enumerate(before) if message.get("role") == "assistant"), len(before))
        front, behind = before[:answered], before[answered:]
        first = [n for n in range(answered) if n in found]
        later = 0 if given.later_system == "in_place" else len(found) - len(first)
        if later:
            behind = _without_system(behind, joins=given.later_system == "joined")
        at = first[0] if first and first[0] < leading_messages(fields) else 0
        joined = len(first) if first not in ([], [at]) else 0
        if joined:
            front = [message for n, message in enumerate(front) if n not in found]
            front.insert(at, _joined([before[n] for n in first], before[first[0]]))
        if not joined and not later:
            return NOTHING
        summary = f"System messages inside the conversation: {joined} in front, {later} as text of the user."
        what = "_and_".join(["joined"] * bool(joined) + ["as_user"] * bool(later))
        return Detected([Edit(self.name, what, ("messages",), before, [*front, *behind], summary=summary)])


def _without_system(found: Sequence[Message], *, joins: bool) -> list[Message]:
    """The messages behind the first answer, with text of the user in place of system messages."""
    runs: list[list[Message]] = []
    kept: list[Message] = []  # what each run becomes a part of
    takes = is_alone = False  # whether the last run takes system messages; whether it consists of them
    for message in found:
        is_system, fits = message.get("role") == "system", message.get("role") in BLOCK_ROLES and _has_text(message)
        if is_system:
            message = {**message, "role": "user"}  # noqa: PLW2901
        if (takes and is_system) or (is_alone and fits):
            runs[-1].append(message)
            kept[-1], is_alone = (kept[-1], is_alone) if is_system else (message, False)
        else:
            runs.append([message])
            kept.append(message)
            takes, is_alone = joins and (is_system or fits), joins and is_system
    return [_joined(run, message) for run, message in zip(runs, kept, strict=True)]


def _is_plain(message: Message) -> bool:
    """Whether nothing but its text would be lost with it."""
    return _has_text(message) and len(message) == len(_MEMBERS & message.keys())


def _has_text(message: Message) -> bool:
    return isinstance(message.get("content"), (str, list))


def _joined(run: Sequence[Message], kept: Message) -> Message:
    """One of some messages with the content of all, an empty line between texts; without texts that are only space."""
    if len(run) == 1:
        return kept
    contents = [content for message in run if (content := _content(message))]
    contents = [content for content in contents if not (isinstance(content, str) and content.isspace())]
    if any(isinstance(content, list) for content in contents):
        parts = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents)
        return {**kept, "content": [part for each in parts for part in each]}
    pieces = contents[:1]
    for above, below in pairwise(contents):
        pieces += (empty_line_between(above, below), below)
    return {**kept, "content": "".join(pieces)}


def _content(message: Message) -> Any:
    """Text, or a list of parts. A list of one text counts as the text: clients send the same message in both forms."""
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(part := content[0], Mapping):
        return part["text"] if part.get("type") == "text" and isinstance(part.get("text"), str) else content
    return content
