"""Where the values of a JSON text stand, level by level.

The text must be valid JSON (it was parsed before), also in the wider sense of Python's parser. One walk finds the end
of every object, array and long string; after it each level costs as much as it has members, so that going deeper is not
paid for with another walk over everything inside.
"""

import re
from typing import NamedTuple

import orjson

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
