"""JSON text changed in one place: where a value stands, so that everything around it stays the bytes it was.

Every document given to these functions must be valid JSON (it was parsed before), also in the wider sense of Python's
parser: NaN, Infinity, numbers beyond a double. JSON allows repeating a name in an object; the last one counts.
"""

import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import orjson

from gateway.core.portions import Portioned, finished

Path = tuple[str | int, ...]
"""From the document's root to a value: names of members and positions in arrays."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_SCALAR = re.compile(rb"[^\s,\]}]+")
# Possessive, so that a string of megabytes costs no memory to go back into.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}])', re.DOTALL)
_WS = rb"[ \t\n\r]*+"
_LONGEST = b"{0,4096}+"
"""How much of a string or a value one match passes; a longer one is passed in portions."""
_TEXT = rb'[^"\\]%b(?:\\.[^"\\]%b){0,64}+' % (_LONGEST, _LONGEST)
_FLAT_VALUE = rb'(?:"%b"|[^\s,\[\]{}"]%b(?=[\s,\]}])|\{[^"\[\]{}]%b\}|\[[^"\[\]{}]%b\])' % (_TEXT, *[_LONGEST] * 3)
"""A short value without strings and containers inside it."""
_ESCAPED_BYTES = 12
"""Of one character at most: two escapes of six bytes."""
_AFTER_VALUE = re.compile(_WS + rb",?+")
_NO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_PART_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_QUOTE = ord('"')
_QUOTES_LOOKED_AT = 32
_STEP = 128 * 1024
"""Bytes that one call of a regular expression looks at: it holds the interpreter lock until it is done."""
_STEPS_AT_ONCE = 512
_MEMBERS_AT_ONCE = 256
"""Members that one portion, and one call of a regular expression, pass: some milliseconds of work."""


def inserted(document: bytes, member: bytes) -> bytes:
    """An object with one more member, in front of the others."""
    start = document.index(b"{") + 1
    empty = document.startswith(b"}", _skip(document, start))
    return document[:start] + member + (b"" if empty else b",") + document[start:]


def member_values(body: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Where the values of an object's members of one name stand."""
    return ((found[1], found[2]) for found in _values_and_pauses(body, (name,)) if found is not None)


def last_member_value(document: bytes, name: str) -> Portioned[tuple[int, int]]:
    """Where the value stands that counts among those of an object's members of one name, of which there is one at
    least."""
    last: tuple[int, int] | None = None
    for found in _values_and_pauses(document, (name,)):
        if found is None:
            yield
        else:
            last = found[1], found[2]
    assert last is not None, "the object has no such member"
    return last


def spliced(document: bytes, changes: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A document with other bytes at some places. Every byte is copied once, however many places there are.

    Args:
        document: The document.
        changes: Where each place begins and ends, and what stands there afterwards; in the document's order.
    """
    pieces: list[bytes] = []
    done = 0
    for start, end, new in changes:
        pieces += (document[done:start], new)
        done = end
    pieces.append(document[done:])
    return b"".join(pieces)


def with_members(document: bytes, fields: Collection[str], members: Mapping[str, bytes]) -> Portioned[bytes]:
    """An object whose members of some names all have these values; those that it lacks are put in front.

    Args:
        document: The object.
        fields: The names of all its members.
        members: The values, as JSON, by name.
    """
    present = tuple(name for name in members if name in fields)
    if present:
        changes: list[tuple[int, int, bytes]] = []
        for found in _values_and_pauses(document, present):
            if found is None:
                yield
            else:
                name, start, end = found
                changes.append((start, end, members[name]))
        document = spliced(document, changes)
    lacking = [b"%b:%b" % (orjson.dumps(name), value) for name, value in members.items() if name not in fields]
    return inserted(document, b",".join(lacking)) if lacking else document


def without(document: bytes, name: str) -> bytes:
    """An object without its members of one name, each with one comma and the space behind that.

    The very document that was given if it has none.
    """
    starts: list[int] = []
    ends: list[int] = []
    gone: list[bool] = []
    for key, start, _, end in _members(document, _skip(document, 0)):
        starts.append(start)
        ends.append(end)
        gone.append(key == name)
    if True not in gone:
        return document
    kept = [number for number, each in enumerate(gone) if not each]
    if not kept:
        return document[: starts[0]] + document[ends[-1] :]
    # Each of them up to where the next one begins; the last one without the comma, where something stood behind it.
    pieces = [document[starts[number] : starts[number + 1]] for number in kept[:-1]]
    pieces.append(document[starts[kept[-1]] : ends[kept[-1]]])
    return b"".join((document[: starts[0]], *pieces, document[ends[-1] :]))


def replaced(document: bytes, values: Mapping[Path, bytes]) -> bytes:
    """A document with other values at some places. One walk over the document, however many there are.

    Args:
        document: The document.
        values: The new values, as JSON, by path. No path leads into another one's value, and none is empty.

    Raises:
        KeyError: there is nothing at a path.
    """
    changes = sorted(_places(document, _skip(document, 0), list(values.items()), 0))
    if len(changes) != len(values):
        raise KeyError("a path leads nowhere")
    return spliced(document, changes)


def _places(
    document: bytes, start: int, values: Sequence[tuple[Path, bytes]], depth: int
) -> Iterator[tuple[int, int, bytes]]:
    """Where the new values belong in the object or array at ``start``, to which ``depth`` steps of their paths lead."""
    inside: dict[str | int, list[tuple[Path, bytes]]] = {}
    for path, value in values:
        inside.setdefault(path[depth], []).append((path, value))
    for begin, wanted in _children(document, start, inside):
        if len(wanted[0][0]) == depth + 1:
            yield begin, _value_end(document, begin), wanted[0][1]
        elif document[begin : begin + 1] in (b"{", b"["):
            yield from _places(document, begin, wanted, depth + 1)


def _children(
    document: bytes, start: int, inside: Mapping[str | int, list[tuple[Path, bytes]]]
) -> Iterator[tuple[int, list[tuple[Path, bytes]]]]:
    """Where the values begin whose name or position is in ``inside``, and what is there."""
    if document[start : start + 1] == b"{":
        last = {name: begin for name, _, begin, _ in _members(document, start) if name in inside}
        for name, begin in last.items():
            yield begin, inside[name]
        return
    missing = len(inside)
    for position, begin in enumerate(_items(document, start)):
        if position in inside:
            yield begin, inside[position]
            missing -= 1
            if not missing:
                return


def _values_and_pauses(document: bytes, names: tuple[str, ...]) -> Iterator[tuple[str, int, int] | None]:
    """Name, start and end of the value of every member of an object that has one of these names.

    Between them stands None after each portion of some milliseconds.
    """
    member = _member_pattern(names)
    longest = _ESCAPED_BYTES * max(map(len, names))
    position = _skip(document, 0) + 1
    steps, pause_at = 0, position + _STEP
    while (found := member.match(document, position)) is not None:
        position = found.end()
        key, (start, end) = found[1], found.span(2)
        if key is None:  # the end of the object, or a long name
            if document[position : position + 1] != b'"':
                return
            behind = yield from _string_end(document, position)
            key, position = document[position + 1 : behind - 1], _skip(document, _skip(document, behind) + 1)
        name: str | None = None
        if len(key) <= longest:
            name = orjson.loads(b'"%b"' % key) if b"\\" in key else key.decode()
        if start < 0:
            start, end = position, (yield from _portioned_value_end(document, position))
            after = _AFTER_VALUE.match(document, end)
            assert after is not None
            position = after.end()
        if name is not None and name in names:
            yield name, start, end
        steps += 1
        if steps == _STEPS_AT_ONCE or position >= pause_at:
            steps, pause_at = 0, position + _STEP
            yield None


@functools.lru_cache(maxsize=64)
def _member_pattern(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Matches a member (its name, and its value if that is flat) with the comma behind it.

    Also matches some flat members in front of it that have none of these names, so that they cost no step each. A name
    that is spelled with escapes may be one of them, so it ends such a run.
    """
    wanted = b"|".join(re.escape(name.encode()) for name in names)
    other = rb'%b"(?!(?:%b)")[^"\\]%b"%b:%b%b%b,' % (_WS, wanted, _LONGEST, _WS, _WS, _FLAT_VALUE, _WS)
    member = rb'%b(?:"(%b)"%b:%b(?:(%b)%b,?+)?+)?+' % (_WS, _TEXT, _WS, _WS, _FLAT_VALUE, _WS)
    return re.compile(rb"(?:%b){0,%d}+%b" % (other, _MEMBERS_AT_ONCE, member), re.DOTALL)


def _members(body: bytes, start: int) -> Iterator[tuple[str, int, int, int]]:
    """Of every member of the object that begins at ``start``: name, where it and its value begin, where both end."""
    position = _skip(body, start + 1)
    while body[position : position + 1] != b"}":
        key_end = string_end(body, position)
        colon = _skip(body, key_end)
        begin = _skip(body, colon + 1)
        end = _value_end(body, begin)
        yield orjson.loads(body[position:key_end]), position, begin, end
        position = _skip(body, end)
        if body[position : position + 1] == b",":
            position = _skip(body, position + 1)


def _items(body: bytes, start: int) -> Iterator[int]:
    """Where every item of the array that begins at ``start`` begins."""
    position = _skip(body, start + 1)
    while body[position : position + 1] != b"]":
        yield position
        position = _skip(body, _value_end(body, position))
        if body[position : position + 1] == b",":
            position = _skip(body, position + 1)


def _skip(body: bytes, position: int) -> int:
    while True:
        space = _SPACE.match(body, position, position + _STEP)
        assert space is not None
        if space.end() < position + _STEP:
            return space.end()
        position = space.end()


def _value_end(body: bytes, start: int) -> int:
    return finished(_portioned_value_end(body, start))


def _portioned_value_end(body: bytes, start: int) -> Portioned[int]:
    first = body[start : start + 1]
    if first == b'"':
        return (yield from _string_end(body, start))
    if first not in (b"{", b"["):
        scalar = _SCALAR.match(body, start)
        assert scalar is not None
        return scalar.end()
    depth = 0
    position, pause_at = start, start + _STEP
    while True:
        if position >= pause_at:
            pause_at = position + _STEP
            yield
        bracket = _BRACKET.match(body, position, position + _STEP)
        if bracket is None:
            position = yield from _without_brackets(body, position)
            continue
        position = bracket.end()
        depth += 1 if bracket[1] in (b"{", b"[") else -1
        if depth == 0:
            return position


def _without_brackets(body: bytes, position: int) -> Portioned[int]:
    """Behind as much as there is without a bracket within a step; of a string that is longer, behind its end."""
    passed = _NO_BRACKET.match(body, position, position + _STEP)
    assert passed is not None
    assert passed.end() < len(body), "the body was parsed before"
    return passed.end() if passed.end() > position else (yield from _string_end(body, position))


def string_end(body: bytes, start: int) -> int:
    """Where the string ends that begins at ``start``."""
    return finished(_string_end(body, start))


def _string_end(body: bytes, start: int) -> Portioned[int]:
    position = start + 1
    # Looking for the next quote is many times faster than looking at every byte, unless there are very many quotes.
    for _ in range(_QUOTES_LOOKED_AT):
        quote = body.index(b'"', position)
        backslashes = _backslashes(body, max(position, quote - _STEP), quote)
        if backslashes == _STEP:
            break
        if backslashes % 2 == 0:
            return quote + 1
        position = quote + 1
    while True:
        yield
        part = _PART_OF_STRING.match(body, position, position + _STEP)
        assert part is not None
        position = part.end()
        if body[position] == _QUOTE:
            return position + 1


def _backslashes(body: bytes, start: int, end: int) -> int:
    """How many backslashes stand right in front of ``end``, behind ``start``."""
    before, step = end, 32
    while before > start:
        piece = body[max(before - step, start) : before]
        left = len(piece.rstrip(b"\\"))
        before -= len(piece) - left
        if left:
            break
        step = _STEP
    return end - before


def json_text(text: str) -> bytes:
    """A text as JSON, also if it holds half a character, which engines take."""
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError:
        return json.dumps(text).encode()
