"""Remembers the time in front of prompts as a cause: the next such request needs no comparison of texts."""

import json
from typing import NamedTuple

from xxhash import xxh3_128_digest

from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import Difference, VaryingSlot
from gateway.explain.prompt_text import LEADING_ROLES, PromptText
from gateway.explain.reference import KeptRequest

_KEPT = 2_000
_FRONT_BYTES = 8_192
_BEFORE_BYTES, _BEHIND_BYTES = 64, 256
"""Compared around the first difference: more than is shown of it."""

_FRONT_CHARACTERS = 24
"""In front of the first difference of two texts: the bodies must differ first at the same place."""

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_DETAILS = frozenset({"iso_datetime", "datetime"})
"""Details that follow from the shape. Whether other numbers are times depends on their digits."""


class Answer(NamedTuple):
    """What two texts differ in first.

    Attributes:
        difference: The first difference.
        slot: As from ``learned_slot``.
    """

    difference: Difference | None
    slot: VaryingSlot | None


class AnsweredDifferences:
    """Answers by two bodies' common beginning, and by the shape of both around the first byte that differs.

    All digits have one shape. Of texts it holds what answers do: masked windows, and the pattern of a slot.
    """

    def __init__(self) -> None:
        self._answers: BoundedCache[bytes, Answer] = BoundedCache(_KEPT)

    def key(self, before: KeptRequest, after: KeptRequest, *more: object) -> bytes | None:
        """The key of two requests; None if they do not differ in front. ``more``: what else the answer depends on."""
        one, other = before.body[:_FRONT_BYTES], after.body[:_FRONT_BYTES]
        common = _common_bytes(one, other)
        if common == min(len(one), len(other)):
            return None
        start, end = max(common - _BEFORE_BYTES, 0), common + _BEHIND_BYTES
        shapes = before.body[start:end].translate(_DIGITS), after.body[start:end].translate(_DIGITS)
        context = before.tenant, before.model, before.where, before.source, after.source, after.where, common, *more
        return xxh3_128_digest(b"\0".join((other[:start], *shapes, repr(context).encode("utf-8", "replace"))))

    def get(self, key: bytes) -> Answer | None:
        """The answer of a key; None if there is none."""
        return self._answers.get(key)

    def put(self, key: bytes, before: KeptRequest, after: KeptRequest, answer: Answer) -> None:
        """Remember an answer, if it is a date with a time in a leading message, and what the bodies differ in first."""
        difference = answer.difference
        if difference is None or difference.detail not in _DETAILS or difference.role not in LEADING_ROLES:
            return
        front = _text_in_front(after.text, difference)
        body = after.body[: _common_bytes(before.body[:_FRONT_BYTES], after.body[:_FRONT_BYTES])]
        if front and any(body.endswith(_in_json(front, is_ascii=is_ascii)) for is_ascii in (True, False)):
            self._answers.put(key, answer)

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()


def _text_in_front(text: PromptText, difference: Difference) -> str:
    """The characters on the line in front of a difference in a message."""
    if difference.message is None or not difference.line:
        return ""
    line = text.messages[difference.message].text.split("\n")[difference.line - 1]
    return line[max(difference.column - 1 - _FRONT_CHARACTERS, 0) : difference.column - 1]


def _in_json(text: str, *, is_ascii: bool) -> bytes:
    return json.dumps(text, ensure_ascii=is_ascii)[1:-1].encode("utf-8", "replace")


def _common_bytes(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    differ = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    return ((differ & -differ).bit_length() - 1) // 8 if differ else length
