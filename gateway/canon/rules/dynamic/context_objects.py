"""Finds JSON objects in a text that hold the current context, and the varying values in them.

Such an object stands alone on its line or lines, at most behind a label such as ``Context:`` or as the only member of
an object with such a name. All its names are those of a context (``now``, ``timezone``, ``request_id``), and all its
values are texts, numbers or words such as ``true``.
Other JSON is data: records, examples, answers of an API.

A text that is nothing but one JSON object is the prompt itself: its members are labels. Those in arrays are not: they
belong to records or examples.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gateway.canon.lexicon import alternatives, entries
from gateway.canon.recognizer.calendar_words import marked
from gateway.canon.recognizer.kinds import MOMENT
from gateway.canon.recognizer.moments import moment
from gateway.canon.rules.dynamic.finding import whole_value
from gateway.canon.rules.dynamic.id_finder import name_of_id
from gateway.canon.rules.dynamic.label_before import BARE_LABELS, NOW_LABELS, SURE_FIELDS, field_name
from gateway.canon.rules.dynamic.movable_pieces import Need, VaryingValue, lowered
from gateway.canon.rules.dynamic.quoted_data import (
    CONTEXT_LABELS,
    CONTEXT_WITHOUT_BLANKS,
    speaks_of_data,
    speaks_of_now,
)

_MEMBER = r'\s*+"[^"\\\n]{1,60}+"\s*+:\s*+(?:"(?:[^"\\\n]|\\.){0,300}+"|-?\d[\d.eE+\-]{0,30}+|true|false|null)\s*+'
_OBJECT = re.compile(
    r"^[ \t]*+(?:(?P<label>[^\W\d_][\w \-]{0,40})[:=]\s?)?"
    rf"(?P<whole>(?:\{{\s*+\"(?P<around>[^\"\\\n]{{1,40}}+)\"\s*+:\s*+(?=\{{))?+"
    rf"(?P<object>\{{{_MEMBER}(?:,{_MEMBER}){{0,30}}+\}})(?(around)\s*+\}}))[ \t]*+$",
    re.MULTILINE,
)
_VALUE = re.compile(
    r'"(?P<name>(?:[^"\\\n]|\\u[\dA-Fa-f]{4}){1,60}+)"\s*+:'
    r'\s*+(?:"(?P<text>(?:[^"\\\n]|\\.){0,300}+)"|(?P<plain>[^\s,}"{\[\]]+))'
)
_ESCAPE = re.compile(r"\\u([\dA-Fa-f]{4})")
_ASKS = re.compile(
    rf"(?<!\w)(?:{alternatives(entries('sentences', 'asks_for') + entries('sentences', 'hypothetical_ids'))})(?!\w)"
    rf"|{alternatives(entries('sentences', 'hypothetical_ids_unspaced'))}"
)
_SPEAKERS = frozenset(entries("documents", "speakers"))
_SENTENCE = re.compile(r"[.!?。！？]\s+(?=\S)")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.:/+=@|]{1,127}")
_DIGIT = re.compile(r"[0-9]")
_LONGEST_FRONT = 300
_MARK = "\ue000"
_MARK_ESCAPED = r"\ue000"
_MOST_MEMBERS = 2000


@dataclass(frozen=True, slots=True)
class ContextObject:
    """An object.

    Attributes:
        start: Offset of its opening brace.
        end: Offset behind its closing brace.
        values: The varying values in it, with offsets in the text; not empty.
    """

    start: int
    end: int
    values: Sequence[VaryingValue]


def context_objects(text: str) -> list[ContextObject]:
    """The objects of a text that hold the current context.

    Several with the same name of a varying value are records rather than a context; none of them is returned.
    """
    if "{" not in text or '"' not in text:
        return []
    if (prompt := _whole_prompt(text)) is not None:
        return [prompt]
    found: list[ContextObject] = []
    names: Counter[str] = Counter()
    for match in _OBJECT.finditer(text):
        members = [(field_name(each["name"]), each) for each in _VALUE.finditer(text, *match.span("object"))]
        names.update({name for name, _ in members if _varies(name)})
        labels = [match["label"], match["around"] and field_name(match["around"])]
        if _is_context(labels, [name for name, _ in members]) and not _is_asked_for(text, match.start()):
            values = [value for name, each in members if (value := _value(name, each)) is not None]
            if values:
                found.append(ContextObject(*match.span("whole"), values))
    return [] if any(count > 1 for count in names.values()) else found


def masked(text: str, objects: Sequence[ContextObject]) -> str:
    """The text, of the same length, with letters and the same line feeds in place of the objects."""
    out: list[str] = []
    at = 0
    for each in objects:
        out += (text[at : each.start], "\n".join("x" * len(line) for line in text[each.start : each.end].split("\n")))
        at = each.end
    return "".join(out) + text[at:]


def _whole_prompt(text: str) -> ContextObject | None:
    """The whole text as one object; None if it is none, or has no varying values besides those of records."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if text[start] != "{" or text[end - 1] != "}" or _MARK in text or _MARK_ESCAPED in text.lower():
        return None
    all_members = list(islice(_VALUE.finditer(text), _MOST_MEMBERS + 1))
    named = [(field_name(_decoded(each["name"])), each) for each in all_members]
    members = [(name, each) for name, each in named if _varies(name) or name in BARE_LABELS]
    if not members or len(named) > _MOST_MEMBERS:
        return None
    # With a mark in the place of each value, the parser shows where the value stands.
    parts, at = [""], 0
    for number, (_, each) in enumerate(members):
        parts += (text[at : each.end("name") + 1], f':"{_MARK}{number}"')
        at = each.end()
    try:
        placed = list(_marked_members(json.loads("".join(parts) + text[at:])))
    except (ValueError, RecursionError):
        return None
    counts = Counter(members[number][0] for number, *_ in placed)
    once = [each for each in placed if counts[members[each[0]][0]] == 1]
    values = [_value_in(around, beside, *members[number]) for number, around, beside in once]
    return ContextObject(start, end, found) if (found := [each for each in values if each is not None]) else None


def _decoded(text: str) -> str:
    """Characters in place of their escapes, as ``json.dumps`` writes them."""
    return _ESCAPE.sub(lambda each: chr(int(each[1], 16)), text) if "\\" in text else text


def _marked_members(tree: dict[str, Any]) -> Iterator[tuple[int, Sequence[str], Sequence[str]]]:
    """The numbers of marked members outside of arrays, with the names of the objects around and of all beside them."""
    left: list[tuple[dict[str, Any], tuple[str, ...]]] = [(tree, ())]
    while left:
        members, around = left.pop()
        names = [field_name(name) for name in members]
        for name, value in zip(names, members.values(), strict=True):
            if isinstance(value, dict):
                left.append((value, (*around, name)))
            elif isinstance(value, str) and value.startswith(_MARK):
                yield int(value[1:]), around, names


def _value_in(around: Sequence[str], beside: Sequence[str], name: str, member: re.Match[str]) -> VaryingValue | None:
    """The value of a member of a prompt. Beside data a date has to be near now, behind a label that says "now"."""
    if any(map(speaks_of_data, around)):
        return None
    others = [each for each in (*around, *beside) if not _varies(each) and each not in BARE_LABELS]
    is_data = any(map(speaks_of_data, others)) or not _SPEAKERS.isdisjoint(around)
    if not _varies(name) and (is_data or not all(map(speaks_of_now, others))):
        return None
    value = _value(name, member)
    return value.doubted() if value is not None and is_data else value


def _varies(name: str) -> bool:
    return name in NOW_LABELS or name in SURE_FIELDS or name_of_id(name) is not None


def _is_context(labels: Sequence[str | None], names: Sequence[str]) -> bool:
    for each in labels:
        if each is not None and (lowered(each).strip() in _SPEAKERS or speaks_of_data(each) or not speaks_of_now(each)):
            return False
    return any(map(_varies, names)) and all(_varies(name) or _is_of_context(name) for name in names)


def _is_of_context(name: str) -> bool:
    return (
        name in BARE_LABELS
        or any(word in CONTEXT_LABELS for word in name.split())
        or any(each in name for each in CONTEXT_WITHOUT_BLANKS)
    )


def _is_asked_for(text: str, start: int) -> bool:
    """Whether the sentence in front asks for such an object, or announces an example."""
    front = text[max(0, start - _LONGEST_FRONT) : start].rstrip()
    line = front[front.rfind("\n") + 1 :]
    return _ASKS.search(lowered(_SENTENCE.split(line)[-1])) is not None


def _value(name: str, member: re.Match[str]) -> VaryingValue | None:
    """The value of a member, if it varies."""
    group = "plain" if member["text"] is None else "text"
    value, start, end = _decoded(member[group]), *member.span(group)
    if not _DIGIT.search(value):
        return None
    if (known := name_of_id(name)) is not None:
        if not _ID.fullmatch(value):
            return None
        return VaryingValue(start, end, start, end, *known, need=Need.NEAR, is_plain=group == "plain")
    if name not in SURE_FIELDS and name not in NOW_LABELS and name not in BARE_LABELS:
        return None
    marks = marked(value)
    match = MOMENT.match(marks)
    if match is None or whole_value(value, marks, match.end())[1] < len(value):
        return None
    read = moment(value)
    need = Need.COMPANION if name in BARE_LABELS and read is None else Need.NEAR
    return VaryingValue(start, end, start, end, "time", False, read, need, name in SURE_FIELDS, group == "plain")


def values_of(objects: Sequence[ContextObject]) -> Iterator[VaryingValue]:
    """The varying values of some objects."""
    for each in objects:
        yield from each.values
