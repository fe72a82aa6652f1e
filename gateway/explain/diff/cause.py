"""Classifies the first difference of two texts, and describes it: reason, slot, masked text around it, a sentence.

Also detects JSON with the same data but other key order or spacing. Text is masked, so that no content of a prompt is
shown.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gateway.canon.document_places import DocumentPlace
from gateway.canon.recognizer.kinds import KINDS, kind_of_both
from gateway.canon.recognizer.person_kinds import template_value
from gateway.canon.recognizer.value_kind import ValueKind
from gateway.core.explanation import Difference
from gateway.core.reasons import QUESTION_FIRST, Reason
from gateway.core.text_memo import text_memo
from gateway.explain.diff.declared_documents import declared_reordered
from gateway.explain.diff.slot import Slot, common_length, line_and_column, sameness, slot_at, window_at
from gateway.explain.diff.text_blocks import reordered
from gateway.explain.masked_text import masked

_LEVELS = 4
_LONGEST_INDENT = 32
_BULLETS_CHARS = 4000
_LOOK_BACK_CHARS = 16_384
_OPEN, _CLOSE = "{[", "}]"
_CAUSES_KEPT = 4
"""A prompt's messages are compared for more than one reason."""


def json_sameness(before: str, after: str, at: int) -> str:
    """How JSON around the first difference differs if it holds the same data.

    Args:
        before: The first text.
        after: The second.
        at: Their first differing character.

    Returns:
        ``json_key_order`` (keys in another order), ``json_spacing`` (blanks and escapes only), or an empty string.
    """
    for start in _openings(before, at):
        try:
            one, one_end = _decoder.raw_decode(before, start)
            other, other_end = _decoder.raw_decode(after, start)
            if one_end <= at and other_end <= at:
                continue
            if json.dumps(one) == json.dumps(other):
                return "json_spacing"
            if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
                return "json_key_order"
        except (ValueError, RecursionError):
            continue
    return ""


_decoder = json.JSONDecoder()


def _openings(text: str, at: int) -> list[int]:
    """Positions of the innermost brackets open at ``at``, innermost first."""
    found: list[int] = []
    closed = 0
    end = max(at - _LOOK_BACK_CHARS, 0)
    if not any(text.count(each, end, at) for each in _OPEN):
        return found
    for index in range(at - 1, end - 1, -1):
        character = text[index]
        if character in _CLOSE:
            closed += 1
        elif character in _OPEN:
            if closed:
                closed -= 1
            else:
                found.append(index)
                if len(found) == _LEVELS:
                    break
    return found


_PLAIN_NUMBERS = frozenset({"counter", "number", "year", "duration", "version"})


@dataclass(frozen=True, slots=True)
class DiffCause:
    """The first difference of two texts, classified.

    Attributes:
        reason: The reason; None if the text merely differs.
        detail: Its code.
        kind: Kind of the values in the slot, as text; empty if unknown.
        at: Index of the first differing character.
        slot: The slot that holds it.
    """

    reason: Reason | None
    detail: str
    kind: str
    at: int
    slot: Slot


def text_cause(
    before: str,
    after: str,
    *,
    is_template: bool,
    own_words: bool = False,
    places: Sequence[DocumentPlace] = (),
) -> DiffCause:
    """Classifies the first difference of two unequal texts.

    Args:
        before: The first text.
        after: The second.
        is_template: Whether the text is an application's template, whose slots may hold user data.
        own_words: Whether users wrote the text: plain numbers in it are no dynamic values.
        places: How the operator declares documents.
    """
    return _text_cause(before, after, is_template, own_words, tuple(places))


@text_memo(_CAUSES_KEPT)
def _text_cause(
    before: str, after: str, is_template: bool, own_words: bool, places: tuple[DocumentPlace, ...]
) -> DiffCause:
    at = common_length(before, after)
    slot = slot_at(before, after, at)
    same = sameness(before, after, at)
    data = json_sameness(before, after, at)
    if data == "json_spacing" or same:
        detail = data if data == "json_spacing" else _dashes(same, before, after, at)
        return DiffCause(Reason.WHITESPACE, detail, "", at, slot)
    if data:
        return DiffCause(Reason.WHITESPACE if is_template else None, data, "", at, slot)
    if is_template and _other_bullets(before, after, at):
        return DiffCause(Reason.WHITESPACE, "bullets", "", at, slot)
    if reordered(before, after, at, may_ask=not is_template or own_words) or declared_reordered(
        before, after, at, places
    ):
        return DiffCause(Reason.DOCUMENTS_REORDERED, "blocks", "", at, slot)
    one, other = before[slot.start : slot.before_end], after[slot.start : slot.after_end]
    if one != other and (same := sameness(one, other, at - slot.start)):
        # In the slot alone, blanks between two words look like trailing blanks.
        ends = all(text[end : end + 1] in {"", "\n", "\r"} for text, end in _ends(before, after, slot))
        detail = "blanks" if same == "trailing" and not ends else _dashes(same, before, after, at)
        return DiffCause(Reason.WHITESPACE, detail, "", at, slot)
    return (
        _shaped(before, after, at, is_template, own_words)
        or _valued(before, after, at, slot, is_template)
        or (DiffCause(None, "edited", "", at, slot))
    )


_DASHES, _HYPHENS = frozenset("-\u2012\u2013\u2014\u2015"), frozenset("-\u2010\u2011")


def _dashes(same: str, before: str, after: str, at: int) -> str:
    """The detail ``quotes`` without dashes between blanks and hyphens, which a rule writes alike; it leaves quotes."""
    if same == "quotes" and _other_bullets(before, after, at):
        return "bullets"
    found = {before[at : at + 1], after[at : at + 1]}
    apart = before[at - 1 : at] == " " and before[at + 1 : at + 2] == after[at + 1 : at + 2] == " "
    return "dashes" if same == "quotes" and (found <= _HYPHENS or (apart and found <= _DASHES)) else same


_BULLET = re.compile(r"^([ \t]*+)[-*•‣◦▪●∙·\u2012-\u2015](?=[ \t]+\S)", re.MULTILINE)


def _other_bullets(before: str, after: str, at: int) -> bool:
    """Whether two texts differ at a bullet, and up to the next empty line in nothing but bullets."""
    start = before.rfind("\n", max(at - _LONGEST_INDENT, 0), at) + 1
    pieces = [text[start : start + _BULLETS_CHARS].partition("\n\n")[0] for text in (before, after)]
    marks = [_BULLET.match(piece) for piece in pieces]
    if not all(mark and start + mark.end(1) == at for mark in marks):
        return False
    one, other = (_BULLET.sub(r"\1-", piece) for piece in pieces)
    return one == other


def _ends(before: str, after: str, slot: Slot) -> tuple[tuple[str, int], tuple[str, int]]:
    return (before, slot.before_end), (after, slot.after_end)


@cache
def _kinds(is_template: bool, own_words: bool) -> tuple[ValueKind, ...]:
    """The kinds that a value may have, see ``text_cause``."""
    return tuple(
        kind
        for kind in KINDS
        if not (own_words and kind.detail in _PLAIN_NUMBERS) and (is_template or kind.reason is not Reason.USER_DATA)
    )


def _shaped(before: str, after: str, at: int, is_template: bool, own_words: bool) -> DiffCause | None:
    """The cause if both values have the same known kind."""
    one, start = window_at(before, at)
    other, _ = window_at(after, at)
    found = kind_of_both(one, other, _kinds(is_template, own_words))
    if found is None:
        return None
    kind, first, second = found
    slot = Slot(start + first.start, start + first.end, start + second.end)
    return DiffCause(kind.reason, kind.detail, kind.kind, at, slot)


def _valued(before: str, after: str, at: int, slot: Slot, is_template: bool) -> DiffCause | None:
    """The cause if the slot of a template holds a user's value."""
    if not is_template:
        return None
    one, start = window_at(before, at)
    other, _ = window_at(after, at)
    if slot.start < start:
        return None
    found = template_value(
        one, other, (slot.start - start, slot.before_end - start), (slot.start - start, slot.after_end - start)
    )
    return DiffCause(Reason.USER_DATA, found[0], found[1], at, slot) if found else None


_AROUND = 40
_SLOT_CHARS = 80


def window(text: str, start: int, end: int, kind: str = "") -> str:
    """The text around a span, masked.

    Args:
        text: The whole text.
        start: Where the span begins.
        end: Where it ends.
        kind: Kind of the value in the span, shown in its place; empty to show it masked.
    """
    shown = f"‹{kind}›" if kind else masked(text[start : min(end, start + _SLOT_CHARS)])
    left, right = max(start - _AROUND, 0), min(end + _AROUND, len(text))
    gap = "" if kind or end - start <= _SLOT_CHARS else "…"
    return (
        ("…" if left else "")
        + masked(text[left:start])
        + shown
        + (gap or masked(text[end:right]) + ("…" if right < len(text) else ""))
    )


_PHRASES = {
    "line_ends": "other line ends",
    "trailing": "blanks at the end of a line or of the text",
    "zero_width": "characters without width",
    "blanks": "other blanks",
    "quotes": "other quotes or dashes",
    "dashes": "other dashes",
    "unicode_form": "another Unicode form of the same characters",
    "json_spacing": "the same JSON with other blanks",
    "bullets": "other bullets in front of the same lines",
    "json_key_order": "the same JSON with its keys in another order",
    "blocks": "the same blocks of text in another order",
    "words": "a user's own words",
    QUESTION_FIRST: "a question in front of documents that were sent before",
    "conversation": "another conversation",
    "tool_calls_redumped": "the same arguments, written differently",
}


def text_difference(
    cause: DiffCause,
    reason: Reason,
    before: str,
    after: str,
    *,
    path: str,
    message: int | None = None,
    role: str = "",
    detail: str = "",
    between: str = "",
) -> Difference:
    """The difference of two texts at one place.

    Args:
        cause: The classified first difference.
        reason: The reason to report.
        before: The earlier text.
        after: The later.
        path: Path of the texts in the request body.
        message: Index of their message.
        role: Role of their message.
        detail: The code, if it is not the cause's.
        between: Client families of the prompts, as ``PromptPair.between``.
    """
    line, column = line_and_column(after, cause.at)
    code = detail or cause.detail
    return Difference(
        reason,
        code,
        path,
        message,
        role,
        line,
        column,
        window(before, cause.slot.start, cause.slot.before_end, cause.kind),
        window(after, cause.slot.start, cause.slot.after_end, cause.kind),
        f"{path}, line {line}: {_phrase(reason, code, cause.kind)}{between}",
    )


def _phrase(reason: Reason, detail: str, kind: str) -> str:
    if detail in _PHRASES:
        return _PHRASES[detail]
    if not kind:
        return "the text was changed"
    if reason is Reason.USER_DATA:
        return f"data of a user ({kind})"
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind} that changes"


def beginning(text: str) -> str:
    """The beginning of a text, masked."""
    return window(text, 0, min(len(text), 40))
