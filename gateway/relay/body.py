"""The request body on its way to the replica: the client's bytes, with ``stream_options.include_usage`` put in.

Only that one member is touched. The body is not parsed and written again, because another spelling of a number, another
key order or a lost duplicate key could change what the engine does.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_ASK = b'"stream_options":{"include_usage":true}'
_SPACE = re.compile(rb"[ \t\n\r]*")
# Possessive, so that a string of megabytes costs no memory to go back into.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+")
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def asking_for_usage(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """A streaming request's body, asking for the usage chunk.

    Args:
        body: A valid JSON object.
        fields: The same, parsed.
    """
    options = fields.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return body
    if "stream_options" not in fields:
        return _inserted(body, _ASK)
    for start, end in reversed(list(_member_values(body, "stream_options"))):
        body = body[:start] + _asking(body[start:end]) + body[end:]
    return body


def _asking(options: bytes) -> bytes:
    """The value of ``stream_options``, asking for usage."""
    if not options.startswith(b"{"):
        return b'{"include_usage":true}'
    # The engine heeds continuous_usage_stats only together with include_usage: a client that set just the former gets
    # no usage at all, and must not get any now.
    changes = [(span, b"false") for span in _member_values(options, "continuous_usage_stats")]
    asked = [(span, b"true") for span in _member_values(options, "include_usage")]
    for (start, end), value in sorted(changes + asked, reverse=True):
        options = options[:start] + value + options[end:]
    return options if asked else _inserted(options, b'"include_usage":true')


def _inserted(document: bytes, member: bytes) -> bytes:
    """An object with one more member, in front of the others."""
    start = document.index(b"{") + 1
    empty = document[_skip(document, start) :].startswith(b"}")
    return document[:start] + member + (b"" if empty else b",") + document[start:]


def _member_values(body: bytes, name: str) -> Iterator[tuple[int, int]]:
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
