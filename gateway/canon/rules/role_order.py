"""``role-order``: moves system and developer messages to the front of the conversation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.texts import LEADING_ROLES, messages
from gateway.config.canon_settings import RoleOrderSettings
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

Message = Mapping[str, Any]

_PLAIN = {"role", "content"}
_EMPTY_LINE = "\n\n"
_SEEN = re.compile("[^\\s\u200b\u2060\ufeff]")
"""A character that can be seen."""


class RoleOrder:
    """Moves system and developer messages to the front, and joins them as configured.

    Codes of its edit, one for all messages: ``moved``, ``joined``, ``moved_and_joined``.

    Args:
        settings: Which messages to move and to join.
    """

    name: ClassVar[RuleName] = RuleName.ROLE_ORDER

    def __init__(self, settings: RoleOrderSettings) -> None:
        self._merge = settings.merge
        self._later = settings.later

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        if given.endpoint is not Endpoint.CHAT:
            return NOTHING
        before = messages(fields)
        front = [n for n, message in enumerate(before) if message.get("role") in LEADING_ROLES]
        if front in ([], [0]):
            return NOTHING
        reach = self._reach(before)
        front = [n for n in front if n < reach]
        moved = len([n for place, n in enumerate(front) if n != place])
        leading = self._joined([before[n] for n in front])
        joined = len(front) - len(leading)
        if not moved and not joined:
            return NOTHING
        in_front = set(front)
        after = [*leading, *(message for n, message in enumerate(before) if n not in in_front)]
        return Detected(
            [Edit(self.name, _what(moved, joined), ("messages",), before, after, summary=_summary(moved, joined))]
        )

    def _reach(self, found: Sequence[Message]) -> int:
        """Number of messages to examine."""
        if self._later:
            return len(found)
        return next((n for n, message in enumerate(found) if message.get("role") == "assistant"), len(found))

    def _joined(self, leading: Sequence[Message]) -> list[Message]:
        if self._merge == "none":
            return list(leading)
        runs: list[list[Message]] = []
        for message in leading:
            if runs and self._belong_together(runs[-1][-1], message):
                runs[-1].append(message)
            else:
                runs.append([message])
        return [message for run in runs for message in (_merged(run) if len(run) > 1 else run)]

    def _belong_together(self, first: Message, second: Message) -> bool:
        return is_plain(first) and is_plain(second) and (self._merge == "all" or first["role"] == second["role"])


def is_plain(message: Message) -> bool:
    """Whether it consists of role and visible text only."""
    content = message.get("content")
    return isinstance(content, str) and message.keys() == _PLAIN and _SEEN.search(content) is not None


def _merged(run: Sequence[Message]) -> Iterator[Message]:
    """Consecutive messages as one; split where an unclosed code fence would swallow the next message."""
    contents = [message["content"] for message in run]
    pieces = ["", contents[0]]
    seams = [0]
    for above, below in pairwise(contents):
        pieces += (empty_line_between(above, below), below)
        seams.append(seams[-1] + len(above) + len(pieces[-2]))
    code = fenced("".join(pieces))
    firsts = [n for n, seam in enumerate(seams) if not n or touched(code, seam, seam)]
    for first, end in zip(firsts, [*firsts[1:], len(run)], strict=True):
        # Skips the separator in front of the part's first text.
        text = "".join(pieces[2 * first + 1 : 2 * end])
        yield run[first] if end == first + 1 else {**run[first], "content": text}


def empty_line_between(above: str, below: str) -> str:
    """The line feeds missing for an empty line between two texts."""
    there = len(above) - len(above.rstrip("\n")) + len(below) - len(below.lstrip("\n"))
    return _EMPTY_LINE[there:]


def _what(moved: int, joined: int) -> str:
    return "_and_".join(["moved"] * bool(moved) + ["joined"] * bool(joined))


def _summary(moved: int, joined: int) -> str:
    sentences = []
    if moved:
        sentences.append(f"{_count(moved)} of the system or developer put in front of the conversation.")
    if joined:
        sentences.append(f"{_count(joined)} joined to the one in front.")
    return " ".join(sentences)


def _count(number: int) -> str:
    return "One message" if number == 1 else f"{number} messages"
