"""Remembers times and ids in front of prompts as causes: the next such request needs no comparison of texts."""

from typing import NamedTuple

from xxhash import xxh3_128_digest

from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import Difference, VaryingSlot
from gateway.core.reasons import Reason
from gateway.explain.prompt_text import LEADING_ROLES
from gateway.explain.reference import KeptRequest

_KEPT = 2_000
_FRONT_BYTES = 8_192
_BEFORE_BYTES, _BEHIND_BYTES = 64, 256
"""Compared around the first difference: more than is shown of it."""

_DIGITS = bytes.maketrans(b"123456789abcdefABCDEF", b"0" * 21)
_VALUES = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID})


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

    Digits and hexadecimal letters have one shape. Holds no text.
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

    def put(self, key: bytes, answer: Answer) -> None:
        """Remember an answer, if it is a time or an id in a leading message."""
        difference = answer.difference
        if difference is not None and difference.reason in _VALUES and difference.role in LEADING_ROLES:
            self._answers.put(key, answer)

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()


def _common_bytes(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    differ = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    return ((differ & -differ).bit_length() - 1) // 8 if differ else length
