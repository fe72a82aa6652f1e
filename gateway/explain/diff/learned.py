"""Learns from two prompts a regular expression that finds a varying value, for a slot of ``dynamic-suffix``.

The expression contains only text that both prompts have in common on the line of the value, and no digits of it: a
number shared by two turns of a conversation may still be a user's.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import Difference, VaryingSlot
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import text_cause
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import LEADING_ROLES, PromptText

DYNAMIC = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID, Reason.USER_DATA})
"""Reasons whose values a slot may hold."""

_FRONT_CHARS, _BEHIND_CHARS = 40, 12
_LABEL = re.compile(r"[:=：]\s*")
_LONGEST_LABELLED = 60
_BREAK = re.compile(r"[.;!?,|(\[]")
_NAME_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_SPECIAL = frozenset(r".^$*+?{}[]\|()")
_LEAST_LETTERS = 3
_MARK = "((?:[A-Za-z]+[0-9]|[0-9]+[A-Za-z])[A-Za-z0-9]*)"
"""Finds a random mark, in a pattern whose syntax RE2 has, too: it has letters as well as digits, unlike a word or the
number of a source."""

_DIGITS = re.compile(r"\d+")
_MARKS = re.compile(f"(?={_MARK}$).{{6,32}}")
_BRACKETS = {"[": "]", "(": ")", "<": ">", "{": "}"}
_LONGEST_NAME = 40
_SLOTS_KEPT = 2000


class _Place(NamedTuple):
    """A value on its line.

    Attributes:
        front: Text before the value on the line.
        value: The value.
        behind: Text after the value.
    """

    front: str
    value: str
    behind: str


def learned_slot(before: PromptText, after: PromptText, difference: Difference | None) -> VaryingSlot | None:
    """A slot that finds the place of a difference.

    None if the difference is not a single value in the leading messages, or no expression matches it and nothing else
    in both prompts.

    Args:
        before: The earlier prompt.
        after: The later one.
        difference: The first difference of the two.
    """
    number = difference.message if difference is not None else None
    if difference is None or difference.reason not in DYNAMIC or number is None:
        return None
    if number >= len(after.leading) or number >= len(before.leading) or difference.role not in LEADING_ROLES:
        return None
    one, other = before.messages[number].text, after.messages[number].text
    cause = text_cause(one, other, is_template=True)
    if cause.reason is not difference.reason:
        return None
    slot = cause.slot
    then, now = _place(one, slot.start, slot.before_end), _place(other, slot.start, slot.after_end)
    if then is None or now is None or then.front != now.front:
        return None
    for front, is_whole in _fronts(now):
        regex = _regex(front, is_whole, then, now)
        if regex is None:
            continue
        line_front = front if is_whole else None
        at = _found(regex, line_front, other, slot.start, slot.after_end)
        if at is not None and _found(regex, line_front, one, slot.start, slot.before_end) is not None:
            return VaryingSlot(regex, _name(front, difference.detail), difference.reason, number, *at)
    return None


def _place(text: str, start: int, end: int) -> _Place | None:
    """The value on its line; None if it spans several lines."""
    value = text[start:end]
    trimmed = value.rstrip()
    if not trimmed or len(trimmed.splitlines()) != 1:
        return None
    end = start + len(trimmed)
    line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    behind = text[end : line_end if line_end >= 0 else len(text)]
    return _Place(text[line_start:start], trimmed, behind.rstrip("\r"))


def _fronts(now: _Place) -> Iterator[tuple[str, bool]]:
    """Candidates for the text before the value, likeliest first, and whether the line begins with it.

    After a label such as ``Date:`` the whole rest belongs to the value, also words that both values begin with.
    """
    front = now.front
    labels = list(_LABEL.finditer(front))
    if labels and len(front) - labels[-1].end() <= _LONGEST_LABELLED:
        yield from _cut(front[: labels[-1].end()])
    yield from _cut(front)


def _cut(front: str) -> Iterator[tuple[str, bool]]:
    last = max((found.end() for found in _BREAK.finditer(front[: len(front.rstrip(" :=("))])), default=0)
    if last:
        # Text before a comma may be another value.
        yield front[last:], False
    if len(front) <= _FRONT_CHARS:
        yield front, True
        return
    short = front[-_FRONT_CHARS:]
    yield short[max(short.find(" "), 0) :], False


def _regex(front: str, is_whole: bool, then: _Place, now: _Place) -> str | None:
    """The regular expression; None if there is too little text around the value."""
    behind = _common(then.behind, now.behind)
    begin = "^" if is_whole else ""
    if sum(map(str.isalpha, front)) < _LEAST_LETTERS:
        # Without a word in front of the value, the pattern would find the middle of any sentence.
        return f"{begin}{_escaped(front)}{_MARK}{_escaped(behind[:1])}" if _is_mark(front, behind, then, now) else None
    if not then.behind.strip() and not now.behind.strip():
        end = r"(.+)$"
    elif behind.strip():
        end = f"(.+?){_escaped(behind)}"
    elif " " not in then.value and " " not in now.value:
        end = r"(\S+)"
    else:
        return None
    return begin + _escaped(front) + end


def _is_mark(front: str, behind: str, then: _Place, now: _Place) -> bool:
    """Whether both values are marks of digits and letters in the same brackets."""
    closing = _BRACKETS.get(front[-1:])
    return closing is not None and behind[:1] == closing and all(_MARKS.fullmatch(each.value) for each in (then, now))


def _common(one: str, other: str) -> str:
    """The common text after both values, in whole words."""
    length = common_length(one, other)
    if length <= _BEHIND_CHARS and length in (len(one), len(other)):
        return one[:length]
    length = min(length, _BEHIND_CHARS)
    space = one.rfind(" ", 0, length + 1)
    return one[: space if one[:space].strip() and space > 0 else length]


def _escaped(text: str) -> str:
    """A text escaped for a regular expression; digits match any digits, invisible characters are written out."""
    return "".join(
        r"\d+" if part.isdecimal() else "".join(map(_escaped_character, part)) for part in re.split(r"(\d+)", text)
    )


def _escaped_character(character: str) -> str:
    if character in _SPECIAL:
        return "\\" + character
    if character == " " or (character.isprintable() and not character.isspace()):
        return character
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"


def _found(regex: str, line_front: str | None, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Span of the value if the expression matches it and nothing else.

    Args:
        regex: The expression, which matches within a line.
        line_front: What the line begins with; None for an expression that matches anywhere.
        text: The text.
        start: Where the value begins.
        end: Where it ends.
    """
    pattern = re.compile(regex, re.MULTILINE)
    if line_front is None:
        matches = list(pattern.finditer(text))
    else:
        matches = [match for at in _lines_with(line_front, text) if (match := pattern.match(text, at))]
    if len(matches) != 1:
        return None
    value = matches[0].span(1)
    return value if value[0] <= start and value[1] >= len(text[:end].rstrip()) else None


def _lines_with(front: str, text: str) -> Iterator[int]:
    """Where the lines begin that may begin with a text with any digits in it."""
    # Searching for a text is many times faster than trying an expression at every character.
    plain = _DIGITS.split(front, maxsplit=1)[0]
    if text.startswith(plain):
        yield 0
    at = text.find("\n" + plain)
    while at >= 0:
        yield at + 1
        at = text.find("\n" + plain, at + 1)


def _name(front: str, detail: str) -> str:
    """A name for the slot: the last words before it, else the kind of its value."""
    words = [word.lower() for word in _NAME_WORD.findall(front)][-2:]
    return ("-".join(words) or detail.replace("_", "-") or "slot")[:_LONGEST_NAME]


class SlotTurns:
    """The slots found in the latest requests: shows whether a varying value stays the same in a conversation."""

    def __init__(self) -> None:
        self._slots: BoundedCache[tuple[str, str], VaryingSlot] = BoundedCache(_SLOTS_KEPT)

    def take(
        self, tenant: str, request_id: str, previous_id: str | None, slot: VaryingSlot | None
    ) -> VaryingSlot | None:
        """The slot to report for a request.

        Args:
            tenant: The request's tenant. Clients may choose ids, so two tenants may have the same ones.
            request_id: The request's id.
            previous_id: Id of the previous turn of its conversation; None without one.
            slot: The slot that differs from the previous turn; None if none differs.

        Returns:
            The slot; if none differs, that of the previous turn, whose value was kept.
        """
        before = None if previous_id is None else self._slots.pop((tenant, previous_id))
        if slot is not None:
            self._slots.put((tenant, request_id), slot)
            return slot
        return None if before is None else msgspec.structs.replace(before, is_kept=True)
