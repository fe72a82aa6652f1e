"""JSON documents of many MiB, counted and parsed in portions.

One call of a parser for a whole document holds the interpreter lock for up to seconds: millions of members, or a text
whose characters become four bytes each. Here a document is first scanned for the brackets, colons and commas outside of
its strings, and refused if it has too many of them. Then it is cut at commas into pieces of at most ``PORTION`` bytes,
and orjson parses piece by piece. Both steps yield after each portion: see ``portions``.
"""

import json
import re
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from gateway.core.portions import Portioned

PORTION = 64 * 1024
"""Bytes of a portion. The most expensive ones (empty lists, names that differ) take orjson some 5 ms."""

MAX_TEXT_BYTES = 32 * 1024 * 1024
"""Memory of one string. One character beyond U+FFFF makes every character of its string take four bytes, and a string
of 64 MiB takes 70 ms to build in one uninterrupted step."""

_OPEN, _CLOSE, _COLON, _COMMA = 1, 2, 3, 4
_KIND = np.zeros(256, dtype=np.uint8)
for _characters, _kind in ((b"[{", _OPEN), (b"]}", _CLOSE), (b":", _COLON), (b",", _COMMA)):
    _KIND[list(_characters)] = _kind
_STEP = np.array([0, 1, -1, 0, 0], dtype=np.int32)
_QUOTE, _BACKSLASH = b'"\\'
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}
_SPACE = b" \t\n\r"
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


class JsonLimits(NamedTuple):
    """What a document may hold at most.

    Attributes:
        depth: Levels of nesting.
        containers: Objects and lists.
        members: Members of all objects.
        values: Commas and containers, so about as many as there are items and members.
    """

    depth: int
    containers: int
    members: int
    values: int


class TooMuchJson(ValueError):
    """A document exceeds a limit.

    Attributes:
        kind: The field of ``JsonLimits``, or ``text`` for ``MAX_TEXT_BYTES``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class InvalidJson(ValueError):
    """A document is not JSON; the message says what is wrong, and near which byte."""


class JsonCounts(NamedTuple):
    """What a document holds.

    Attributes:
        containers: Objects and lists.
        members: Members of all objects.
        values: Commas and containers: at least as many as there are items and members.
    """

    containers: int
    members: int
    values: int


_UNCOUNTED = bytes(set(range(256)) - set(b"[{:,"))


def upper_bounds(document: bytes) -> JsonCounts:
    """Counts that a document cannot exceed, at the price of looking for four characters: those in strings count too."""
    found = document.translate(None, _UNCOUNTED)  # one pass over a long text instead of four
    containers = found.count(b"[") + found.count(b"{")
    return JsonCounts(containers, found.count(b":"), found.count(b",") + containers)


def parsed(document: bytes, limits: JsonLimits) -> Portioned[Any]:
    """Parse a document: ``scanned`` and ``built``."""
    structure = yield from scanned(document, limits)
    return (yield from built(document, structure))


def lenient(document: bytes) -> Any:
    """What Python's parser makes of a document: it takes NaN, infinities and numbers beyond a double, as engines do.

    Raises:
        ValueError: it is not JSON, or holds half of a surrogate pair, which cannot be written again.
        RecursionError: it is nested too deep.
    """
    value = json.loads(document.decode())
    if _HALF_A_PAIR.search(document):
        json.dumps(value, ensure_ascii=False).encode()
    return value


@dataclass(frozen=True, slots=True)
class Structure:
    """The brackets, colons and commas of a document that stand outside of its strings.

    Attributes:
        at: Their offsets.
        kind: What each of them is.
        depth: How many containers are open behind each of them.
        counts: How many there are.
    """

    at: "np.ndarray[Any, np.dtype[np.int64]]"
    kind: "np.ndarray[Any, np.dtype[np.uint8]]"
    depth: "np.ndarray[Any, np.dtype[np.int32]]"
    counts: JsonCounts


def scanned(document: bytes, limits: JsonLimits) -> Portioned[Structure]:
    """The structure of a document.

    Raises:
        TooMuchJson: it exceeds a limit; what stands behind that is not looked at.
        InvalidJson: its brackets or quotes do not match.
    """
    found: list[tuple[Any, Any, Any]] = []
    depth = containers = members = values = 0
    in_string = escaped = False
    for start in range(0, len(document), PORTION):
        characters = np.frombuffer(document, np.uint8, min(PORTION, len(document) - start), start)
        quotes, escaped = _quotes(characters, after_escape=escaped)
        inside = np.zeros(len(characters), np.bool_)
        inside[quotes] = True
        inside = np.logical_xor.accumulate(inside)
        if in_string:
            inside = ~inside
        in_string ^= len(quotes) % 2 == 1
        kinds = _KIND[characters]
        kinds[inside] = 0
        at = np.flatnonzero(kinds)
        kind = kinds[at]
        depths = np.cumsum(_STEP[kind], dtype=np.int32) + np.int32(depth)
        if len(at):
            number = np.bincount(kind, minlength=5)
            containers += int(number[_OPEN])
            members += int(number[_COLON])
            values += int(number[_COMMA]) + int(number[_OPEN])
            for name, count, most in (
                ("depth", int(depths.max()), limits.depth),
                ("containers", containers, limits.containers),
                ("members", members, limits.members),
                ("values", values, limits.values),
            ):
                if count > most:
                    raise TooMuchJson(name)
            if depths.min() < 0:
                raise InvalidJson(f"a bracket closes what was not opened, near byte {start + int(at[depths.argmin()])}")
            depth = int(depths[-1])
            found.append((at + start, kind, depths))
        yield
    if in_string or depth:
        raise InvalidJson("it ends inside of a string, an object or a list")
    empty: Any = np.zeros(0, np.int64)
    at, kind, depths = map(np.concatenate, zip(*found, strict=True)) if found else (empty, empty, empty)
    return Structure(at, kind, depths, JsonCounts(containers, members, values))


def built(document: bytes, structure: Structure) -> Portioned[Any]:
    """Parse a scanned document with orjson, and pieces that orjson refuses with Python's parser.

    Args:
        document: The document.
        structure: Its structure.

    Raises:
        TooMuchJson: one of its strings takes more than ``MAX_TEXT_BYTES``.
        InvalidJson: it is not JSON.
    """
    return (yield from _Builder(document, structure).value(0, len(document)))


def _quotes(characters: Any, *, after_escape: bool) -> tuple[Any, bool]:
    """Where the quotes of a portion stand that begin or end a string, and whether its last character escapes the next.

    Args:
        characters: The portion.
        after_escape: Whether its first character is escaped.
    """
    quotes = np.flatnonzero(characters == _QUOTE)
    backslashes = np.flatnonzero(characters == _BACKSLASH)
    if after_escape:
        quotes, backslashes = quotes[quotes > 0], backslashes[backslashes > 0]
    if not len(backslashes):
        return quotes, False
    # Of a run of backslashes the first, the third and so on escape what follows.
    order = np.arange(len(backslashes))
    begins = np.empty(len(backslashes), np.bool_)
    begins[0] = True
    begins[1:] = np.diff(backslashes) != 1
    first = np.maximum.accumulate(np.where(begins, order, 0))
    escapes = backslashes[(order - first) % 2 == 0] + 1
    is_escaped = np.zeros(len(characters) + 1, np.bool_)
    is_escaped[escapes] = True
    return quotes[~is_escaped[quotes]], bool(is_escaped[-1])


class _Builder:
    """Parses a document piece by piece.

    Args:
        document: The document.
        structure: Its structure; every container that is opened is closed.
    """

    def __init__(self, document: bytes, structure: Structure) -> None:
        self._document = document
        self._structure = structure

    def value(self, start: int, end: int) -> Portioned[Any]:
        """The value between two offsets, with the space around it."""
        document = self._document
        start, end = yield from self._without_space(start, end)
        if end - start <= PORTION:
            yield
            return self._loads(document[start:end], start)
        first, last = np.searchsorted(self._structure.at, (start, end))
        if document[start] == _QUOTE and document[end - 1] == _QUOTE and first == last:
            return (yield from self._text(start + 1, end - 1))
        if document[start] in _CLOSING and document[end - 1] == _CLOSING[document[start]]:
            return (yield from self._container(start, end, int(first), int(last)))
        raise InvalidJson(f"unexpected character or too long a number near byte {start}")

    def _container(self, start: int, end: int, first: int, last: int) -> Portioned[Any]:
        """The object or list that begins at ``start``; its brackets are ``first`` and the one before ``last``."""
        at, kind = self._structure.at[first:last], self._structure.kind[first:last]
        depth = self._structure.depth[first:last]
        if (depth[:-1] < depth[0]).any():
            raise InvalidJson(f"a bracket does not fit the one that it closes, near byte {end - 1}")
        commas = at[(kind == _COMMA) & (depth == depth[0])]
        yield
        starts = np.concatenate(([start + 1], commas + 1))
        ends = np.concatenate((commas, [end - 1]))
        is_object = self._document[start] == ord("{")
        members: dict[str, Any] = {}
        items: list[Any] = []
        number = 0
        while number < len(starts):
            begin = int(starts[number])
            after = int(np.searchsorted(ends, begin + PORTION, "right"))
            if after <= number:
                child = begin, int(ends[number])
                if len(starts) == 1:
                    child = yield from self._without_space(*child)
                    if child[0] >= child[1]:  # an empty container with much space in it
                        break
                if is_object:
                    name, value = yield from self._member(*child, int(depth[0]))
                    members[name] = value
                else:
                    items.append((yield from self.value(*child)))
                number += 1
                continue
            piece = self._document[begin : int(ends[after - 1])]
            if len(starts) > 1 and after - number == 1 and not piece.strip(_SPACE):
                raise InvalidJson(f"a value is missing near byte {begin}")
            if is_object:
                members.update(self._loads(b"{" + piece + b"}", begin - 1))
            else:
                items += self._loads(b"[" + piece + b"]", begin - 1)
            number = after
            yield
        return members if is_object else items

    def _member(self, start: int, end: int, depth: int) -> Portioned[tuple[str, Any]]:
        structure = self._structure
        colon = int(np.searchsorted(structure.at, start))
        if colon >= len(structure.at) or structure.kind[colon] != _COLON or structure.depth[colon] != depth:
            raise InvalidJson(f"expected a name and a colon near byte {start}")
        name = yield from self.value(start, int(structure.at[colon]))
        if not isinstance(name, str):
            raise InvalidJson(f"expected a name in quotes near byte {start}")
        return name, (yield from self.value(int(structure.at[colon]) + 1, end))

    def _text(self, start: int, end: int) -> Portioned[str]:
        """The string between two quotes."""
        text = ""
        width = 1
        while start < end:
            cut = self._cut(start, end)
            piece: str = self._loads(b'"' + self._document[start:cut] + b'"', start - 1)
            width = max(width, _width(piece))
            if (len(text) + len(piece)) * width > MAX_TEXT_BYTES:
                raise TooMuchJson("text")
            text += piece  # in place: a string that only this name refers to grows where it is
            start = cut
            yield
        return text

    def _cut(self, start: int, end: int) -> int:
        """Where a piece of a string ends that begins at ``start``: between two characters."""
        document, cut = self._document, start + PORTION
        if cut >= end:
            return end
        while document[cut] & 0xC0 == 0x80 and cut > start + PORTION - 4:
            cut -= 1
        if _is_escape(document[start:cut]):
            cut -= 1
        # ``\uXXXX`` stays whole, and both halves of a surrogate pair stay together.
        back = document.rfind(b"\\u", max(start, cut - 5), cut)
        if back >= 0 and _is_escape(document[start : back + 1]):
            cut = back
        if _HIGH_SURROGATE.match(document, cut - 6, cut) and _is_escape(document[start : cut - 5]):
            cut -= 6
        return cut

    def _without_space(self, start: int, end: int) -> Portioned[tuple[int, int]]:
        document = self._document
        while start < end and document[start] in _SPACE:
            start += _led(document[start : min(start + PORTION, end)])
            yield
        while start < end and document[end - 1] in _SPACE:
            end -= _trailed(document[max(start, end - PORTION) : end])
            yield
        return start, end

    def _loads(self, piece: bytes, offset: int) -> Any:
        """The value of a piece that begins at an offset of the document."""
        try:
            return orjson.loads(piece)
        except orjson.JSONDecodeError as error:
            try:
                return lenient(piece)
            except RecursionError:
                raise TooMuchJson("depth") from None
            except ValueError:
                before = len(error.doc[: error.pos].encode(errors="replace"))
                raise InvalidJson(f"{error.msg}, near byte {offset + before}") from None


def _width(text: str) -> int:
    """Bytes that each character of a text takes in memory."""
    if text.isascii():
        return 1
    return max((sys.getsizeof(text) - sys.getsizeof("")) // len(text), 1)


def _is_escape(text: bytes) -> bool:
    """Whether the backslash at the end of a text, if there is one, escapes what follows."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1


def _led(text: bytes) -> int:
    return len(text) - len(text.lstrip(_SPACE))


def _trailed(text: bytes) -> int:
    return len(text) - len(text.rstrip(_SPACE))
