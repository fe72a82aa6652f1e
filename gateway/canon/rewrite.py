"""Encodes a request body after its fields were changed; unchanged values keep their bytes.

Most clients write JSON in the format of orjson or of Python's ``json``. Such a body is encoded again in the same
format, which is many times faster than locating its values. In all other bodies, values that are the same object before
and after are copied: a moved message keeps its bytes, and of an edited message only the edited text is encoded.

``RawJson`` locates the values. The text must be valid JSON (it was parsed before), or what Python's parser accepts. One
pass finds the end of every object, array and long string; afterwards visiting a level takes time proportional to the
number of its members.
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
"""Everything in front of the next bracket, or of the next string that is long or has escapes."""
_PORTION = 1024 * 1024
"""Bytes per search, which holds the interpreter lock for up to 8 ms."""
_LONGEST_CUT = 128
"""Maximum length of one token of a pattern: a short string, or an escaped character."""
_SIMPLE = re.compile(
    rb'"([^"\\]{1,100}+)"[ \t\n\r]*+:[ \t\n\r]*+("[^"\\]{0,100}+"|[^\s",\]\[{}]++)[ \t\n\r]*+(?:,[ \t\n\r]*+)?+'
)
"""A member with a short name and a short text or number, with the separator behind it."""
_OPENING = (b"[", b"{")
_QUOTE, _COMMA, _CLOSED_ARRAY, _CLOSED_OBJECT = b'",]}'


class RawChild(NamedTuple):
    """A member of an object, or an item of an array.

    Attributes:
        name: Name of the member; empty for an item.
        start: Offset of its name, or of its value for an item.
        value: Offset of its value.
        end: Offset behind it.
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
        """The outermost value."""
        return self._item(self._skip(0))

    def members(self, start: int) -> list[RawChild]:
        """The members of the object at an offset; a name may occur more than once."""
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
        """The items of the array at an offset."""
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
    """End of every object, array and long string, by its start."""
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
    """End of a pattern's match at a position, searched portion by portion."""
    while True:
        until = position + _PORTION
        found = pattern.match(document, position, until)
        assert found is not None, "the patterns match the empty string"
        # A token cut by the end of the portion is searched again.
        if found.end() < until - _LONGEST_CUT or found.end() == position:
            return found.end()
        position = found.end()


_LOOSE = re.compile(rb'\{"[^"\\]*+": ')
"""The beginning of a body in the format of Python's ``json``: a space behind the colon."""


class _Piece(NamedTuple):
    """An encoded member or item.

    Attributes:
        origin: Index of the old child that it replaces; None if it is new.
        text: The JSON text.
    """

    origin: int | None
    text: bytes


def rewritten(body: bytes, before: Fields, after: Fields) -> bytes:
    """The body of a request after its fields were changed. Members keep the order they have in ``after``.

    Args:
        body: The body of ``before``.
        before: Its fields.
        after: The new fields; unchanged values are the same objects as in ``before``.
    """
    if before is after:
        return body
    again = written_again(body, before, after)
    return _spliced(body, before, after) if again is None else again


def written_again(body: bytes, before: Fields, after: Fields) -> bytes | None:
    """``rewritten`` for a body in one of the two common formats, which has no duplicate names; None for all others."""
    try:
        if _LOOSE.match(body) is None:
            if orjson.dumps(before) != body:
                return None
            again = orjson.dumps(after)
            # orjson encodes NaN as null.
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
    # The last of several members with one name is valid.
    last = {member.name: number for number, member in enumerate(members)}

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
    """An object or array of some pieces, with the original separators."""
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
    """For every new item the index of an old one to reuse bytes of: the same object, one that shares a member, or the
    one at the same position. The choice affects only how many bytes are reused, not the result."""
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
    """The first free index that has one of the marks."""
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
    # Small numbers, true, false and null are shared objects, so their identity means nothing.
    return [(name, id(value)) for name, value in item.items() if isinstance(value, (str, Mapping, list))]


def _place(number: int, _: Any) -> Sequence[object]:
    return (number,)


def _new(value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return orjson.dumps(value)
        # Not orjson: it encodes NaN as null, and refuses integers beyond 64 bits.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):  # half a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()
