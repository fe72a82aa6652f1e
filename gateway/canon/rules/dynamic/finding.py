"""Findings of the built-in kinds in one line: current times, and ids.

A line is searched independently of the others, so that its findings can be cached.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from itertools import repeat

from gateway.canon.code_spans import touched
from gateway.canon.lexicon import alternatives, entries
from gateway.canon.recognizer.calendar_words import marked
from gateway.canon.recognizer.kinds import MOMENT
from gateway.canon.recognizer.moments import Moment, moment
from gateway.canon.rules.dynamic.id_finder import ids_in
from gateway.canon.rules.dynamic.label_before import (
    JOINING,
    NOW_LABELS,
    SURE_FIELDS,
    WORDS,
    Label,
    field_name,
    label_before,
    opens_sentence,
)
from gateway.canon.rules.dynamic.labelled_values import may_have_label, may_have_value
from gateway.canon.rules.dynamic.movable_pieces import Need, VaryingValue, lowered
from gateway.canon.rules.dynamic.not_taken import NotTaken, Refused
from gateway.canon.rules.dynamic.quoted_data import speaks_of_data, speaks_of_now
from gateway.core.text_memo import text_memo

_MORE = re.compile(
    r"[,،，、]?\s?(?:\(|（|\[|[\-–—|/]\s?|T)?"
    rf"(?:(?:{alternatives(entries('sentences', 'before_more'))})\s)?"
)
_ZONE_NAMES = alternatives(entries("sentences", "zone_names", as_written=True))
_UNIT = re.compile(rf"\s?(?:{alternatives(entries('sentences', 'time_units', as_written=True))})(?!\w)")
_BEHIND = re.compile(
    r"(?:\s?[(（][月火水木金土日월화수목금토일][)）])?"
    rf"(?:,?\s?[(\[]?(?:(?:{_ZONE_NAMES})(?:\s?[+\-−]\d{{1,2}}(?::?\d{{2}})?)?|[A-Z][a-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_]+)?"
    r"|[+\-−]\d{2}:?\d{2}|(?:[A-Z][a-z]+ ){1,3}Time|[А-ЯЁ]{2,5}"
    rf"|{alternatives(entries('sentences', 'zones', as_written=True))})[)\]]?(?![\w/])){{0,2}}"
    rf"(?:\s?(?:{alternatives(entries('sentences', 'copulas'))}))?"
)
_CASE = re.compile(
    rf"(?<!\w)(?:{alternatives(entries('sentences', 'hypothetical'))})(?!\w)"
    rf"|{alternatives(entries('sentences', 'hypothetical_unspaced'))}"
)
_ALONE_DIGITS = re.compile(r"(?:\d\D*){4}")
_HEAD = re.compile(r"[\s>#*•\-–]*(?P<label>[^:：=\n]{2,50}?)[\s*_]*[:：=][\s*_]*(?P<value>\S.{0,79}?)[\s*_]*$")
_TIME_LIKE = re.compile(r"(?:19|20|25|1[34])\d\d|\d{1,2}[:.hH時时]\d{2}|\d+\D+\d+\D+\d+")
_DIGIT, _DIGITS = re.compile(r"\d"), "0123456789"
_ELEMENT = re.compile(
    r"<(?P<name>[A-Za-z][\w.\-]{0,60})(?:\s[^<>\n]{0,100})?(?<!/)>\s*(?P<value>[^<>\s](?:[^<>\n]{0,78}[^<>\s])?)\s*</(?P=name)>"
)
_OF = "".join(entries("sentences", "particles"))
"""Particles behind a date that make it an attribute of something else."""
_YEAR = re.compile(r"\s(?:[A-Z]{2,5}\s)?20\d\d(?![\d:.\-/])")
_NOON = re.compile(r"[^.][aApP][mM]\.$")
_TODAY = entries("sentences", "today")
_TODAY_ASCII = tuple(each for each in _TODAY if each.isascii())
_ASCII_LETTERS = str.maketrans({chr(number): " " for number in range(128) if not chr(number).isalpha()})
_INDENT = 4
_LONGEST_ALONE, _WORDS_ALONE = 60, 6
_NEXT, _JOINED, _BACK = 30, 40, 160
_NOTES = frozenset(entries("sentences", "notes"))
_AS_OF = re.compile(rf"(?<![^\W_])(?:{alternatives(entries('sentences', 'as_of'))}),?\s")
_AS_OF_WORDS = frozenset(word for each in entries("sentences", "as_of") for word in WORDS.findall(each))
ADDRESSED = re.compile(rf"[,:]?\s*(?:{alternatives(entries('sentences', 'addressed'))})(?!\w)")
"""Words that speak to the assistant, behind a time that has no label."""

_RIGHTS = frozenset(entries("narratives", "rights"))
_SENTENCE = re.compile(r"[.!?](?=\s)")
_ADDRESSED_UNSPACED = entries("sentences", "addressed_unspaced")
LONGEST_KNOWN = 600
"""Findings in longer lines are not cached, because they may be as long as a request."""


def findings(chunk: str, is_first: bool, is_line: bool, tenant: str = "") -> tuple[VaryingValue, ...]:
    """Findings in a line, or in a sentence of a very long one.

    Args:
        chunk: The text.
        is_first: Whether it is the beginning of its line.
        is_line: Whether it is a whole line.
        tenant: Its tenant; the cache is per tenant.
    """
    if len(chunk) > LONGEST_KNOWN:
        return _findings(chunk, is_first, is_line, tenant)
    return _known(chunk, is_first, is_line, tenant)


def findings_of(
    chunks: Sequence[str], is_first: bool, is_line: bool, tenant: str
) -> Iterator[tuple[VaryingValue, ...]]:
    """The findings of each of some texts; see ``findings``."""
    find = findings if max(map(len, chunks), default=0) > LONGEST_KNOWN else _known
    return map(find, chunks, repeat(is_first), repeat(is_line), repeat(tenant))


def _findings(chunk: str, is_first: bool, is_line: bool, _tenant: str) -> tuple[VaryingValue, ...]:
    low = lowered(chunk)
    digits = _has_digit(low)
    if not digits and not any(map(low.__contains__, _TODAY_ASCII if low.isascii() else _TODAY)):
        # Without digits it can only be a weekday.
        return ()
    words = _words_of(low)
    found: list[VaryingValue] = []
    if digits:
        found += ids_in(chunk, low, words, is_line=is_line)
    if may_have_label(low, words) and may_have_value(low, words):
        found += times_in(chunk, low, is_first=is_first)
        if not found and digits and is_line:
            found += _unreadable_time(chunk, low)
    if digits and "</" in low:
        found += elements_in(chunk, low, found)
    if digits and not words.isdisjoint(_AS_OF_WORDS):
        found += _as_of(chunk, low)
    if digits and is_line and not found and len(words) <= _WORDS_ALONE:
        found += _date_line(chunk)
    return tuple(sorted(found, key=lambda each: each.start))


_known = text_memo(8192)(_findings)


def _words_of(low: str) -> frozenset[str]:
    """All that ``WORDS`` finds in a text of lower case."""
    # Translating is several times as fast as the expression.
    return frozenset(low.translate(_ASCII_LETTERS).split()) if low.isascii() else frozenset(WORDS.findall(low))


def _has_digit(low: str) -> bool:
    """Whether it has a digit besides the number of a list item."""
    # Most lines have no digit; looking for each is many times faster than the expression.
    is_ascii = low.isascii()
    if is_ascii and not any(map(low.__contains__, _DIGITS)):
        return False
    digit = _DIGIT.search(low, 0, _INDENT + 1)
    if digit is None:
        return is_ascii or _DIGIT.search(low, _INDENT + 1) is not None
    is_item = low[digit.end() : digit.end() + 2] in (". ", ") ")
    return not is_item or _DIGIT.search(low, digit.end()) is not None


def times_in(chunk: str, low: str, *, is_first: bool, refused: list[Refused] | None = None) -> list[VaryingValue]:
    """Times with a label.

    Args:
        chunk: The text.
        low: The same in lower case.
        is_first: As in ``findings``.
        refused: Gets the times that are not taken; None: they are not wanted.
    """
    marks = marked(chunk)
    found: list[VaryingValue] = []
    at = 0
    while match := MOMENT.search(marks, at):
        at = match.end()
        label = label_before(low, match.start())
        if label is None:
            if refused is not None:
                end, _ = whole_value(chunk, marks, match.end())
                at = max(at, end)
                refused.append(Refused(match.start(), end, True, NotTaken.NO_LABEL))
            continue
        end, until = whole_value(chunk, marks, match.end())
        each = _judged(chunk, low, label, (end, until), found, is_first=is_first)
        if isinstance(each, VaryingValue):
            found.append(each)
            at = max(at, each.until)
        elif refused is not None:
            at = max(at, end)
            refused.append(Refused(label.value, end, True, each))
    return found


def _judged(
    chunk: str, low: str, label: Label, ends: tuple[int, int], found: list[VaryingValue], *, is_first: bool
) -> VaryingValue | NotTaken:
    """A labelled value, if its label marks it as current, or is where such a label would be."""
    start = label.value
    end, until = ends
    read = moment(chunk[start:end])
    finding = VaryingValue(start, end, label.start, until, "time", False, read)
    between = low[found[-1].until : label.start] if found else "."
    follows = len(between) <= _JOINED and all(word in JOINING for word in re.findall(r"[^\s,;|·•/()\-–—*_]+", between))
    if label.is_now:
        if _is_hypothetical(low, label.start):
            return NotTaken.HYPOTHETICAL
        if not _is_introduced(low, label.start):
            return NotTaken.QUOTED_TEXT
        if is_element(low, label.start, start, end):
            name = low[label.start : start].strip(" \t>").replace("_", " ").replace("-", " ")
            return dataclasses.replace(finding, need=Need.NEAR, is_sure=name in SURE_FIELDS)
        joined = label.has_colon or label.has_verb
        if label.is_sure and joined and opens_sentence(low, label.start):
            finding = dataclasses.replace(finding, is_sure=True)
        if label.is_loose and not label.has_colon:
            finding = finding.needing(Need.ALOUD)
        if read is not None:
            if not label.is_loose:
                return finding
            if chunk[until : until + 1] in _OF and until < len(chunk):
                return NotTaken.ATTRIBUTE
            if joined:
                return finding if follows or opens_sentence(low, label.start, clause=True) else NotTaken.IN_SENTENCE
            # In languages without a verb here it is a sentence of its own.
            is_all = label.is_next and opens_sentence(low, label.start) and _ends_sentence(low, until, clause=False)
            return finding if is_all else NotTaken.IN_SENTENCE
        # A time of day or a weekday: there is no date to compare with now.
        if not (follows or opens_sentence(low, label.start)):
            return NotTaken.IN_SENTENCE
        if label.is_loose and not joined:
            # Such as "Сейчас 10:02."
            is_all = label.is_next and opens_sentence(low, label.start) and _ends_sentence(low, until, clause=False)
            if label.needs_verb or not is_all:
                return NotTaken.IN_SENTENCE
        return finding if _DIGIT.search(chunk, start, end) or _ends_sentence(low, until) else NotTaken.IN_SENTENCE
    begins = is_first and not low[: label.start].strip(" \t>#*•-–_")
    if not (label.has_colon and (begins or follows)):
        return NotTaken.WEAK_LABEL
    return finding.needing(Need.NEAR if read is not None else Need.COMPANION)


def elements_in(chunk: str, low: str, found: Sequence[VaryingValue]) -> list[VaryingValue]:
    """Times in XML elements with a name that says "current" once it is written in words, and maybe with attributes.

    Args:
        chunk: The text.
        low: The same in lower case.
        found: What was found before; other values are not repeated.
    """
    taken = sorted((each.start, each.end) for each in found)
    out: list[VaryingValue] = []
    for match in _ELEMENT.finditer(chunk):
        name = field_name(match["name"])
        start, end = match.span("value")
        front, behind = low[: match.start()].strip(" \t*•-"), low[match.end() :].strip()
        if (name not in SURE_FIELDS and name not in NOW_LABELS) or touched(taken, start, end):
            continue
        if (front and front[-1] != ">") or (behind and behind[0] != "<"):
            continue
        value = match["value"]
        marks = marked(value)
        moment_at = MOMENT.match(marks)
        if moment_at is None or whole_value(value, marks, moment_at.end())[1] < len(value):
            continue
        # An attribute may say whose time it is.
        is_sure = name in SURE_FIELDS and chunk[match.end("name")] == ">"
        about = match.start("name")
        out.append(VaryingValue(start, end, about, end, "time", False, moment(value), Need.NEAR, is_sure=is_sure))
    return out


def is_element(low: str, name: int, value: int, end: int) -> bool:
    """Whether a value is all that stands in an XML element, and beside it on its line are at most other elements.

    Args:
        low: The line in lower case.
        name: Offset of the element's name.
        value: Offset of the value.
        end: Offset behind it.
    """
    if not name or low[name - 1] != "<" or low[name:value].rstrip()[-1:] != ">":
        return False
    closing = low[end:].lstrip()
    tag = f"</{low[name:value].rstrip()[:-1]}>"
    if not closing.startswith(tag):
        return False
    front, behind = low[: name - 1].strip(" \t*•-"), closing[len(tag) :].strip()
    return (not front or front[-1] == ">") and (not behind or behind[0] == "<")


def is_addressed(low: str, at: int) -> bool:
    """Whether words follow that speak to the assistant ("you are"), and not of rights as a deed does."""
    if low[at : at + _NEXT].lstrip(" ,、，").startswith(_ADDRESSED_UNSPACED):
        return True
    speaks = ADDRESSED.match(low, at)
    sentence = _SENTENCE.split(low[speaks.end() : speaks.end() + _BACK], 1)[0] if speaks else ""
    return speaks is not None and _RIGHTS.isdisjoint(WORDS.findall(sentence))


def _as_of(chunk: str, low: str) -> list[VaryingValue]:
    """Times of day with a date behind "as of" at the beginning of a sentence that speaks to the assistant."""
    found: list[VaryingValue] = []
    marks = marked(chunk)
    for label in _AS_OF.finditer(low):
        start = label.end()
        match = MOMENT.match(marks, start)
        if match is None or not opens_sentence(low, label.start()):
            continue
        end, until = whole_value(chunk, marks, match.end())
        read = moment(chunk[start:end])
        if read is not None and read.days and read.second is not None and is_addressed(low, until):
            found.append(VaryingValue(start, end, label.start(), until, "time", False, read, Need.NEAR))
    return found


def _is_introduced(low: str, start: int) -> bool:
    """Whether an introduction with a colon in front of it does not announce a quoted text."""
    front = low[max(0, start - _BACK) : start].rstrip(' \t*_"')
    if not front.endswith((":", "：")):
        return True
    words = re.split(r"[.!?。！？\n]", front[:-1])[-1]
    return (speaks_of_now(words) or not _NOTES.isdisjoint(WORDS.findall(words))) and not _speaks_of_texts(words)


def _speaks_of_texts(words: str) -> bool:
    return speaks_of_data(words) and _NOTES.isdisjoint(WORDS.findall(words))


def _ends_sentence(low: str, at: int, *, clause: bool = True) -> bool:
    """Whether the end of the text or of a sentence follows; with ``clause`` also the end of a clause."""
    behind = low[at : at + 8].lstrip(" *_)]）")
    return not behind or behind[0] in ".!?。！？|\n" or (clause and behind[0] in ",،，;；")


def whole_value(chunk: str, marks: str, end: int) -> tuple[int, int]:
    """End of a value including a following time of day, weekday or time zone, and of the text that belongs to it.

    Args:
        chunk: The text.
        marks: The same with marked calendar words.
        end: End of the date or time that was found.
    """
    for _ in range(4):
        if unit := _UNIT.match(chunk, end) or _YEAR.match(chunk, end):
            end = unit.end()
        more = _MORE.match(chunk, end)
        at = more.end() if more else end
        value = MOMENT.match(marks, at) if at > end else None
        if value is None:
            break
        end = value.end()
        opened = more is not None and any(each in more[0] for each in "([（")
        if opened and chunk[end : end + 1] in (")", "]"):
            end += 1
    if _NOON.search(chunk, max(0, end - 4), end):
        end -= 1
    behind = _BEHIND.match(chunk, end)
    return (behind.end(), behind.end()) if behind else (end, end)


def _unreadable_time(chunk: str, low: str) -> list[VaryingValue]:
    """A line with a label of the current time, and a time in an unknown notation."""
    head = _HEAD.match(low)
    if head is None or not _TIME_LIKE.search(low, head.start("value")):
        return []
    label = re.sub(r"\s*[(\[][^)\]]*[)\]]$", "", head["label"]).strip(" *_")
    if label.replace("_", " ") not in NOW_LABELS or chunk.isascii():
        return []
    return [VaryingValue(head.start("value"), head.end("value"), head.start("label"), head.end("value"), "time", False)]


def _date_line(chunk: str) -> list[VaryingValue]:
    """A line that consists of a date and time."""
    bare = chunk.strip(" \t*_.")
    if not bare or len(bare) > _LONGEST_ALONE or not _ALONE_DIGITS.search(bare):
        return []
    start = chunk.index(bare)
    marks = marked(chunk)
    match = MOMENT.match(marks, start)
    read: Moment | None = None
    if match is not None:
        end, _ = whole_value(chunk, marks, match.end())
        read = moment(chunk[start:end]) if end == start + len(bare) else None
    if read is None or read.epoch is not None:
        return []
    return [VaryingValue(start, start + len(bare), start, start + len(bare), "time", False, read, Need.NEAR)]


def _is_hypothetical(low: str, start: int) -> bool:
    """Whether the sentence up to the offset is a condition or an example."""
    front = max(0, start - _BACK)
    sentence = max(low.rfind(each, front, start) for each in (". ", "! ", "? ", "。", "！", "？"))
    return _CASE.search(low, max(sentence, front), start) is not None
