"""A body with other messages and tools: what was changed is written anew, everything else stays byte for byte.

Most clients write JSON in one of two ways. Such a body is simply written again, in the same way, which is many times
faster than to look where everything stands in it. In all others, what two versions of a request share as the very same
object is not looked at, only copied: a message that moved keeps its own bytes, and of a message with another text the
text alone is replaced.

Where the values of a JSON text stand, level by level.

The text must be valid JSON (it was parsed before), also in the wider sense of Python's parser. One walk finds the end
of every object, array and long string; after it each level costs as much as it has members, so that going deeper is not
paid for with another walk over everything inside.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.canon.rule import Fields
from gateway.core.json_edit import string_end

_SPACE = re.compile(rb"[ \t\n\r]*")
_SCALAR = re.compile(rb"[^\s,\]}]+")
_NEXT = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]{0,100}+")*+')
"""What stands in front of the next bracket, or of the next string that is long or has escapes."""
_PORTION = 1024 * 1024
"""Bytes that one search goes through: other threads wait while it does, for 8 ms at most."""
_LONGEST_CUT = 128
"""Bytes of what a pattern takes as one: a short string, or an escaped character."""
_SIMPLE = re.compile(
    rb'"([^"\\]{1,100}+)"[ \t\n\r]*+:[ \t\n\r]*+("[^"\\]{0,100}+"|[^\s",\]\[{}]++)[ \t\n\r]*+(?:,[ \t\n\r]*+)?+'
)
"""A member as most are, and what follows it up to the next one: a short name and a short text or number."""
_OPENING = (b"[", b"{")
_QUOTE, _COMMA, _CLOSED_ARRAY, _CLOSED_OBJECT = b'",]}'


class RawChild(NamedTuple):
    """A member of an object, or an item of an array.

    Attributes:
        name: Name of the member; empty for an item.
        start: Where it begins: with its name, or with its value.
        value: Where its value begins.
        end: Where it ends.
    """

    name: str
    start: int
    value: int
    end: int


class RawJson:
    """A JSON text.

    Args:
        document: The text.
    """

    def __init__(self, document: bytes) -> None:
        self.document = document
        self._ends = _ends(document)

    def root(self) -> RawChild:
        """The value that the text is."""
        return self._item(self._skip(0))

    def members(self, start: int) -> list[RawChild]:
        """The members of the object that begins at an offset; a name may be there more than once."""
        found: list[RawChild] = []
        position = self._skip(start + 1)
        while self.document[position] != _CLOSED_OBJECT:
            if simple := _SIMPLE.match(self.document, position):
                found.append(RawChild(simple[1].decode(), position, *simple.span(2)))
                position = simple.end()
                continue
            name_end = self._end(position)
            value = self._skip(self._skip(name_end) + 1)
            end = self._end(value)
            found.append(RawChild(orjson.loads(self.document[position:name_end]), position, value, end))
            position = self._next(end)
        return found

    def items(self, start: int) -> list[RawChild]:
        """The items of the array that begins at an offset."""
        found: list[RawChild] = []
        position = self._skip(start + 1)
        while self.document[position] != _CLOSED_ARRAY:
            found.append(self._item(position))
            position = self._next(found[-1].end)
        return found

    def _item(self, start: int) -> RawChild:
        return RawChild("", start, start, self._end(start))

    def _end(self, start: int) -> int:
        end = self._ends.get(start)
        if end is not None:
            return end
        if self.document[start] == _QUOTE:
            return string_end(self.document, start)
        scalar = _SCALAR.match(self.document, start)
        assert scalar is not None, "the text was parsed before"
        return scalar.end()

    def _next(self, end: int) -> int:
        position = self._skip(end)
        return self._skip(position + 1) if self.document[position] == _COMMA else position

    def _skip(self, position: int) -> int:
        space = _SPACE.match(self.document, position)
        assert space is not None
        return space.end()


def _ends(document: bytes) -> dict[int, int]:
    """Where every object, array and long string ends, by where it begins."""
    ends: dict[int, int] = {}
    begun: list[int] = []
    position = 0
    while (position := _behind(_NEXT, document, position)) < len(document):
        start, mark = position, document[position : position + 1]
        position += 1
        if mark in _OPENING:
            begun.append(start)
        elif mark != b'"':
            ends[begun.pop()] = position
        else:
            position = ends[start] = string_end(document, start)
    return ends


def _behind(pattern: re.Pattern[bytes], document: bytes, position: int) -> int:
    """Where that ends which a pattern matches from a position on, portion by portion."""
    while True:
        until = position + _PORTION
        found = pattern.match(document, position, until)
        assert found is not None, "the patterns match nothing, too"
        # What is cut by the end of the portion is looked at again, with what follows.
        if found.end() < until - _LONGEST_CUT or found.end() == position:
            return found.end()
        position = found.end()


_LOOSE = re.compile(rb'\{"[^"\\]*+": ')
"""How Python's own JSON begins: with a space behind the colon."""


class _Piece(NamedTuple):
    """A member or an item of what is written.

    Attributes:
        origin: Which child of the old object or array it was made of; None if it is new.
        text: It, as JSON.
    """

    origin: int | None
    text: bytes


def rewritten(body: bytes, before: Fields, after: Fields) -> bytes:
    """The body of a request after its fields were changed. Members keep the order they have in ``after``.

    Args:
        body: The body of ``before``.
        before: Its fields.
        after: The fields it is to have; what was not changed is the very same object in both.
    """
    if before is after:
        return body
    again = written_again(body, before, after)
    return _spliced(body, before, after) if again is None else again


def written_again(body: bytes, before: Fields, after: Fields) -> bytes | None:
    """The same for a body that is written as most are; None for all others. No name comes twice in such a body."""
    try:
        if _LOOSE.match(body) is None:
            if orjson.dumps(before) != body:
                return None
            again = orjson.dumps(after)
            # What is no number it writes as null.
            return again if orjson.loads(again) == after else None
        ascii_only = body.isascii()
        if json.dumps(before, ensure_ascii=ascii_only).encode() != body:
            return None
        return json.dumps(after, ensure_ascii=ascii_only).encode()
    except (TypeError, ValueError, RecursionError):  # numbers beyond 64 bits, half a surrogate pair
        return None


def _spliced(body: bytes, before: Fields, after: Fields) -> bytes:
    raw = RawJson(body)
    root = raw.root()
    return body[: root.value] + _value(raw, root, before, after) + body[root.end :]


def _value(raw: RawJson, old: RawChild, before: Any, after: Any) -> bytes:
    if before is after or (type(before) is type(after) and isinstance(before, (str, int)) and before == after):
        return raw.document[old.value : old.end]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return _object(raw, old, before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _array(raw, old, before, after)
    return _new(after)


def _object(raw: RawJson, old: RawChild, before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    members = raw.members(old.value)
    last = {member.name: number for number, member in enumerate(members)}  # of members of one name it counts

    def piece(number: int) -> _Piece:
        member = members[number]
        if number != last[member.name]:
            return _Piece(number, raw.document[member.start : member.end])
        value = _value(raw, member, before[member.name], after[member.name])
        return _Piece(number, raw.document[member.start : member.value] + value)

    names = list(after)
    kept = [name for name in before if name in after]
    if names[: len(kept)] == kept:
        pieces = [piece(number) for number, member in enumerate(members) if member.name in after]
        names = names[len(kept) :]
    else:
        pieces = []
    pieces += (
        piece(last[name]) if name in before else _Piece(None, _new(name) + b":" + _new(after[name])) for name in names
    )
    return _joined(raw, old, members, pieces)


def _array(raw: RawJson, old: RawChild, before: Sequence[Any], after: Sequence[Any]) -> bytes:
    items = raw.items(old.value)
    pieces = [
        _Piece(origin, _new(item) if origin is None else _value(raw, items[origin], before[origin], item))
        for origin, item in zip(_origins(before, after), after, strict=True)
    ]
    return _joined(raw, old, items, pieces)


def _joined(raw: RawJson, old: RawChild, children: Sequence[RawChild], pieces: Sequence[_Piece]) -> bytes:
    """An object or array of some pieces. Each is set apart from the one in front of it as it was before."""
    document = raw.document
    opening, closing = document[old.value : old.value + 1], document[old.end - 1 : old.end]
    if not pieces:
        return opening + closing
    if not children:
        return opening + b",".join(piece.text for piece in pieces) + closing
    usual = document[children[0].end : children[1].start] if len(children) > 1 else b","
    out = [document[old.value : children[0].start], pieces[0].text]
    for piece in pieces[1:]:
        gap = document[children[piece.origin - 1].end : children[piece.origin].start] if piece.origin else usual
        out += (gap, piece.text)
    out.append(document[children[-1].end : old.end])
    return b"".join(out)


def _origins(before: Sequence[Any], after: Sequence[Any]) -> list[int | None]:
    """For every item, which one it was made of: the very same, or one that it shares a member with, or the one that
    stood in its place. Whatever is found, what is written is right; the right ones keep the most bytes."""
    origins: list[int | None] = [
        number if number < len(before) and item is before[number] else None for number, item in enumerate(after)
    ]
    free = dict.fromkeys(range(len(before)))
    for found in origins:
        if found is not None:
            del free[found]
    for marks_of in (_itself, _members, _place):
        missing = [number for number, origin in enumerate(origins) if origin is None]
        if not missing or not free:
            break
        places: dict[object, list[int]] = {}
        for number in reversed(free):
            for mark in marks_of(number, before[number]):
                places.setdefault(mark, []).append(number)
        for number in missing:
            origins[number] = found = _first(places, marks_of(number, after[number]), free)
            if found is not None:
                del free[found]
    return origins


def _first(places: Mapping[object, list[int]], marks: Sequence[object], free: Mapping[int, None]) -> int | None:
    """The first free place that has one of the marks."""
    for mark in marks:
        numbers = places.get(mark, [])
        while numbers:
            number = numbers.pop()
            if number in free:
                return number
    return None


def _itself(_: int, item: Any) -> Sequence[object]:
    return (id(item),)


def _members(_: int, item: Any) -> Sequence[object]:
    if not isinstance(item, Mapping):
        return ()
    # Numbers, true, false and null are the same objects everywhere.
    return [(name, id(value)) for name, value in item.items() if isinstance(value, (str, Mapping, list))]


def _place(number: int, _: Any) -> Sequence[object]:
    return (number,)


def _new(value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return orjson.dumps(value)
        # Not orjson: it writes null for what is no number, and knows none beyond 64 bits.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):  # half a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()
