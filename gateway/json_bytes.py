"""JSON text changed in one place: where a value stands, so that everything around it stays the bytes it was.

Every document given to these functions must be valid JSON (it was parsed before).
"""

import re
from collections.abc import Iterator

import orjson

_SPACE = re.compile(rb"[ \t\n\r]*")
# Possessive, so that a string of megabytes costs no memory to go back into.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+")
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def inserted(document: bytes, member: bytes) -> bytes:
    """An object with one more member, in front of the others."""
    start = document.index(b"{") + 1
    empty = document[_skip(document, start) :].startswith(b"}")
    return document[:start] + member + (b"" if empty else b",") + document[start:]


def member_values(body: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Where the values of an object's members of one name stand. JSON allows repeating a name; the last one counts."""
    position = _skip(body, _skip(body, 0) + 1)
    while body[position : position + 1] != b"}":
        key = _STRING.match(body, position)
        assert key is not None
        colon = _skip(body, key.end())
        start = _skip(body, colon + 1)
        end = _value_end(body, start)
        if orjson.loads(key[0]) == name:
            yield start, end
        position = _skip(body, end)
        if body[position : position + 1] == b",":
            position = _skip(body, position + 1)


def _skip(body: bytes, position: int) -> int:
    space = _SPACE.match(body, position)
    assert space is not None
    return space.end()


def _value_end(body: bytes, start: int) -> int:
    first = body[start : start + 1]
    if first not in (b"{", b"["):
        scalar = (_STRING if first == b'"' else _SCALAR).match(body, start)
        assert scalar is not None
        return scalar.end()
    depth = 0
    for token in _STRUCTURE.finditer(body, start):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    raise AssertionError("the body was parsed before")
