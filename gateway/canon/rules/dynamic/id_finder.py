"""Finds ids in a line: labelled ids, and UUIDs."""

import re

from gateway.canon.code_spans import touched
from gateway.canon.lexicon import alternatives, entries
from gateway.canon.recognizer.id_kinds import UUID
from gateway.canon.rules.dynamic.label_before import (
    CONVERSATION_WORDS,
    OTHER_CONVERSATION_IDS,
    OTHER_REQUEST_IDS,
    REQUEST_WORDS,
)
from gateway.canon.rules.dynamic.movable_pieces import Need, VaryingValue
from gateway.canon.rules.dynamic.not_taken import NotTaken, Refused

BILLING = "billing header"
_BILLING = re.compile(r"\s*(x-anthropic-billing-header\s*:\s*)(\S[^\n]*?)\s*$")
_WORDS = CONVERSATION_WORDS | REQUEST_WORDS
_OTHER = OTHER_CONVERSATION_IDS | OTHER_REQUEST_IDS
_OTHER_WORDS = "|".join(re.escape(each) for each in sorted(_OTHER, key=len, reverse=True))
_ID_WORDS = frozenset(entries("labels", "id_words"))
_ID_WORDS |= frozenset(f"{word}id" for word in _WORDS)
_ID_MARKS = entries("labels", "id_marks")
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))
_LABELLED = re.compile(
    r"(?<![\w.])(?:x-)?(?:(?:the|your|current|this|unique|client|our)\s)*"
    rf"(?:(?P<word>{_WORD})(?P<id>[ _\-]?(?:id|uuid|guid|identifier))?|(?P<other>{_OTHER_WORDS}))"
    r"(?![^\W_])[*_\s]*(?:\([^()]{1,20}\))?[*_]*\s?"
    r"(?P<between>[:：=#>]|(?<=\s)(?:is|ist|est|es|è|é)\b|は|是|為|为|은|는)?[*_\s`]*"
    r"(?P<value>[A-Za-z0-9][A-Za-z0-9_\-.:/+=@|]{1,127})"
)
_UUID = re.compile(r"(?<![\w\-/=.:@#])" + UUID + r"(?=[\s.,;:!?)\]，。、）]|$)(?![.,:][^\s])")
_DIGIT, _LETTER = re.compile(r"[0-9]"), re.compile(r"[A-Za-z]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CASE = re.compile(
    rf"(?<!\w)(?:{alternatives(entries('sentences', 'hypothetical_ids'))})(?!\w)"
    rf"|{alternatives(entries('sentences', 'hypothetical_ids_unspaced'))}"
)
# Ids with other labels are assumed to be constant.
_OTHER_LABEL = re.compile(
    rf"(?:[:=#：]|(?<!\w)(?:{alternatives(entries('labels', 'unknown_id_labels'))})"
    r"(?:\s(?:is|ist|est|es|è|é|jest))?)[\s\"'`*(\[<]*$"
)
_ID_ENDS = frozenset(("id", "uuid", "guid", "identifier"))
_DASHES, _BACK, _NEXT = 4, 120, 30
_EDGE = " \t*_.,;|·•()[]<>#-–—`"


def ids_in(
    chunk: str, low: str, words: frozenset[str], *, is_line: bool, refused: list[Refused] | None = None
) -> list[VaryingValue]:
    """The ids in a line.

    Args:
        chunk: The line, or a sentence of it.
        low: The same in lower case.
        words: Its words.
        is_line: Whether it is a whole line.
        refused: Gets the ids that are not taken; None: they are not wanted.
    """
    if is_line and (billing := _BILLING.match(low)):
        return [VaryingValue(billing.start(2), billing.end(2), billing.start(1), billing.end(2), BILLING, False)]
    found: list[VaryingValue] = []
    if _may_have_label(low, words):
        for match in _LABELLED.finditer(low):
            each = _labelled(chunk, low, match)
            if isinstance(each, VaryingValue):
                found.append(each)
            elif refused is not None:
                refused.append(Refused(*match.span("value"), False, each))
    if low.count("-") >= _DASHES:
        labelled = [(each.start, each.end) for each in found]
        for match in _UUID.finditer(low):
            start, end = match.span()
            if touched(labelled, start, end):
                continue
            if reason := _constant(low, start, is_line=is_line):
                if refused is not None:
                    refused.append(Refused(start, end, False, reason))
                continue
            # It may be constant within a conversation. As it is part of the key, conversations never share blocks.
            found.append(VaryingValue(start, end, start, end, "uuid", True, need=Need.FEW))
    return found


def name_of_id(name: str) -> tuple[str, bool] | None:
    """Name of the id in a field, and whether it is constant within a conversation; None if the field holds no known id.

    Args:
        name: The field's name in words, such as "request id".
    """
    if name in _OTHER:
        return name, name in OTHER_CONVERSATION_IDS
    word, _, end = name.rpartition(" ")
    if not word and name.endswith("id"):
        word, end = name[:-2], "id"
    if end not in _ID_ENDS or word not in _WORDS:
        return None
    return f"{word} id", word in CONVERSATION_WORDS


def _constant(low: str, start: int, *, is_line: bool) -> NotTaken | None:
    """Why a UUID without a known label may be constant; None if nothing suggests it."""
    if is_line and not low[:start].strip():
        return NotTaken.LINE_BEGIN
    if _CASE.search(low, max(0, start - _BACK), start):
        return NotTaken.HYPOTHETICAL
    return NotTaken.CONSTANT if _OTHER_LABEL.search(low, max(0, start - _NEXT), start) else None


def _may_have_label(low: str, words: frozenset[str]) -> bool:
    if not words.isdisjoint(_ID_WORDS):
        return True
    if not words.isdisjoint(_WORDS) and any(each in low for each in ":=#："):
        return True
    return not low.isascii() and any(each in low for each in _ID_MARKS)


def _labelled(chunk: str, low: str, match: re.Match[str]) -> VaryingValue | NotTaken:
    start = match.start("value")
    end = start + len(chunk[start : match.end("value")].rstrip(".:/|=@"))
    value = chunk[start:end]
    word, between = match["word"], match["between"] or ""
    if not _DIGIT.search(value) or _DATE.match(value):
        return NotTaken.NOT_READABLE
    if _CASE.search(low, max(0, match.start() - _BACK), match.start()):
        return NotTaken.HYPOTHETICAL
    has_id_word = bool(match["id"] or match["other"])
    alone = not low[: match.start()].strip(_EDGE) and not low[end:].strip(_EDGE)
    if has_id_word:
        # Alone behind its label any value with a digit is an id; in a sentence only one that does not look like a word.
        fits = (alone and bool(between)) or (_looks_like_id(value) and low[end : end + 1] not in ("-", "/"))
    else:
        fits = bool(between) and between in ":：=#" and _looks_random(value)
    if not fits:
        return NotTaken.NOT_READABLE
    lasts = word in CONVERSATION_WORDS if word else match["other"] in OTHER_CONVERSATION_IDS
    name = f"{word or match['other']}"
    about = match.start() if not low[match.start()].isspace() else match.start() + 1
    return VaryingValue(start, end, about, end, f"{name} id" if word else name, lasts)


def _looks_like_id(value: str) -> bool:
    digits = len(_DIGIT.findall(value))
    return len(value) >= 5 and (digits >= 5 or (digits >= 1 and bool(_LETTER.search(value)) and len(value) >= 6))


def _looks_random(value: str) -> bool:
    """Whether it is long and mixes digits and letters, unlike a word or a number with a unit."""
    return len(value) >= 8 and len(_DIGIT.findall(value)) >= 3 and (len(value) >= 12 or bool(_LETTER.search(value)))
