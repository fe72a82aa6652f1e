"""Searches for request bodies that the gateway reads or changes wrongly.

    python -c "from benchmarks.fuzz import body; print(body.run(60, seed=1))"

Bodies are JSON documents in odd spellings (repeated members, escaped names, white space, numbers beyond a double), with
random changes to their bytes. For each one:

* ``parse_request`` returns a request or raises a ``GatewayError``, and the request has what Python's own parser reads;
* the bodies for replicas (``asking_for_usage``, ``salted``, ``continued_body``) and the functions of ``json_bytes``
  mean what setting the members in the parsed body would mean, and leave the bytes of all other members as they were;
* for shapes that repeat a piece, four times as many pieces cost at most some six times the work and memory. Work is
  counted: calls, and bytes that are sliced, joined and searched.

What other members look like is read with the scanner of Python's ``json``, which shares no code with the gateway.
"""

import json
import math
import random
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import orjson

from gateway.api.parse import parse_request
from gateway.config.server_settings import ServerSettings
from gateway.core import json_edit as json_bytes
from gateway.core.errors import GatewayError
from gateway.core.ids import RequestId
from gateway.core.portions import finished
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import EVERYBODY
from gateway.proxy import request_body as replica_body
from gateway.proxy.resume import continued, is_resumable

MODEL, SALT = "m", "c2FsdA"
_LIMITS = ServerSettings().json_limits
_BATCH = 1000
_PIECES = 400
_GROWTH = 6.0
"""Times the work and memory that four times the pieces may cost."""
_WORK_AT_LEAST = 20_000
_MEMORY_AT_LEAST = 256 * 1024
_BYTES_PER_BYTE = 256
"""Memory for a byte of the body: the parsed form of short members is that much larger."""
_MOST_CPU_SECONDS = 10.0
"""For one function on a body of some 100 KB: far beyond what it takes, far below work by the square inside of C."""


def run(seconds: float, seed: int) -> int:
    """Search for so long; each batch of random bodies is followed by one shape that grows.

    Returns:
        How many bodies were tried.

    Raises:
        AssertionError: a body breaks one of the properties, or raises something else than a ``GatewayError``; its
            message has the shortest such body that was found.
    """
    until = time.monotonic() + seconds
    tried = batch = 0
    chance, shapes = random.Random(seed), list(SHAPES)
    chance.shuffle(shapes)
    while batch == 0 or time.monotonic() < until:
        tried += _batch(chance, until)
        check_growth(shapes[batch % len(shapes)])
        batch += 1
    return tried


def check(endpoint: Endpoint, body: bytes, *, text: str = "more", spent: int = 3) -> bool:
    """Check all properties of one body but those of growing; whether it was a valid request.

    Args:
        endpoint: Where it is sent.
        body: The body.
        text: What a stream has sent before it is continued.
        spent: The number of its tokens.
    """
    try:
        request = _parsed(endpoint, body)
    except GatewayError:
        return False
    fields = json.loads(body.decode())
    assert _same(request.fields, fields), f"parse_request reads {body!r} as {request.fields!r}"
    assert request.body == body, "the request has other bytes than its client sent"
    _check_json_bytes(body, fields)
    _check_asking(body, fields)
    _check_salted(body, fields)
    _check_continued(request, fields, text, spent)
    return True


# Random bodies


_NUMBERS = "0 -0 1 7 12 1.50 1e5 1E+400 -1e-400 NaN Infinity -Infinity 18446744073709551616 9007199254740993".split()
_LITERALS = ("true", "false", "null")
_LETTERS = 'ab01 {}[]",:\\/\n\t\x00\u00e9\u4e2d\u2028\ufeff\U0001f600'
_SPACES = ("", "", "", " ", "\n\t", " \r\n ")
_NAMES = (
    "stream_options include_usage continuous_usage_stats cache_salt messages prompt model stream max_tokens"
    " max_completion_tokens min_tokens continue_final_message add_generation_prompt role content x"
).split()
_INSERTED = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\\ud800",
    b"\xef\xbb\xbf",
    b"NaN",
    b"1" * 5000,
)
_BOOLEAN_MEMBERS = ("stream", "continue_final_message", "add_generation_prompt")
_NUMBER_MEMBERS = ("max_tokens", "max_completion_tokens", "min_tokens")


class BodyWriter:
    """Writes request bodies at random: valid ones in most cases.

    Args:
        chance: Chooses.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def body(self) -> bytes:
        """A body."""
        members = [self._member() for _ in range(self._chance.randrange(6))]
        # What makes it a valid request stands last, where it counts.
        needed = [self._named("model", f'"{MODEL}"'), self._named("stream", "true")]
        needed += [self._named("messages", self._messages()), self._named("prompt", self._prompt())]
        self._chance.shuffle(needed)
        members += [each for each in needed if self._chance.randrange(20)]
        written = self._object(members).encode("utf-8", "surrogatepass")
        return self._changed(written) if self._chance.randrange(4) == 0 else written

    def text(self) -> str:
        """A short text."""
        return "".join(self._chance.choices(_LETTERS, k=self._chance.randrange(9)))

    def _changed(self, body: bytes) -> bytes:
        for _ in range(self._chance.randrange(1, 4)):
            at, end = sorted(self._chance.randrange(len(body) + 1) for _ in range(2))
            piece = self._chance.choice((*_INSERTED, b"", body[at:end]))
            body = body[:at] + piece + body[self._chance.choice((at, min(at + 1, len(body)), end)) :]
        return body

    def _object(self, members: Sequence[tuple[str, str]]) -> str:
        space = self._chance.choice(_SPACES)
        written = f"{space},{space}".join(f"{name}{space}:{space}{value}" for name, value in members)
        return f"{space}{{{space}{written}{space}}}{space}"

    def _member(self) -> tuple[str, str]:
        name = self._chance.choice(_NAMES)
        if self._chance.randrange(3) == 0:
            return self._named(self._chance.choice((name, self.text())), self._value(0))
        if name in _BOOLEAN_MEMBERS:
            return self._named(name, self._chance.choice(_LITERALS))
        if name in _NUMBER_MEMBERS:
            return self._named(name, str(self._chance.randrange(100)))
        if name == "stream_options":
            return self._named(name, self._options())
        return self._named(name, self._messages() if name == "messages" else self._prompt())

    def _named(self, name: str, value: str) -> tuple[str, str]:
        return self._spelled(name), value

    def _spelled(self, text: str) -> str:
        """A string in one of its spellings."""
        how = self._chance.randrange(4)
        if how < 2:
            return json.dumps(text, ensure_ascii=how == 0)
        count = len(text) if how == 2 else 1
        units = text[:count].encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2))
        return f'"{escaped}{json.dumps(text[count:], ensure_ascii=False)[1:]}'

    def _value(self, depth: int) -> str:
        kind = self._chance.randrange(5 if depth < 4 else 3)
        if kind == 0:
            return self._chance.choice((*_NUMBERS, *_LITERALS))
        if kind < 3:
            return self._spelled(self.text())
        values = [self._value(depth + 1) for _ in range(self._chance.randrange(4))]
        if kind == 3:
            return f"[{self._chance.choice(_SPACES)}{' , '.join(values)}]"
        return self._object([self._named(self._chance.choice((*_NAMES, self.text())), value) for value in values])

    def _options(self) -> str:
        names = ("include_usage", "continuous_usage_stats", "x")
        members = [
            (self._chance.choice(names), self._chance.choice(_LITERALS)) for _ in range(self._chance.randrange(4))
        ]
        return self._chance.choice(("null", *[self._object([self._named(*member) for member in members])] * 4))

    def _messages(self) -> str:
        said = []
        for _ in range(self._chance.randrange(1, 4)):
            content = self._spelled(self.text()) if self._chance.randrange(4) else self._value(2)
            role = self._spelled(self._chance.choice(("user", "assistant")))
            said.append(self._object([self._named("role", role), self._named("content", content)]))
        return f"[{','.join(said)}]"

    def _prompt(self) -> str:
        ids = f"[{', '.join(str(self._chance.randrange(100_000)) for _ in range(self._chance.randrange(1, 5)))}]"
        text = self._spelled(self.text())
        return self._chance.choice((text, ids, f"[ {text} ]", f"[{ids} ]", f"[{text},{text}]"))


def _batch(chance: random.Random, until: float) -> int:
    writer = BodyWriter(chance)
    for tried in range(_BATCH):
        if tried and time.monotonic() > until:
            return tried
        endpoint, body = chance.choice(list(Endpoint)), writer.body()
        text, spent = writer.text() or "more", chance.randrange(16)
        try:
            check(endpoint, body, text=text, spent=spent)
        except Exception as error:
            raise _finding(endpoint, shortest(endpoint, body, type(error), text, spent), text, spent) from error
    return _BATCH


def _finding(endpoint: Endpoint, body: bytes, text: str, spent: int) -> AssertionError:
    try:
        check(endpoint, body, text=text, spent=spent)
    except Exception as error:
        return AssertionError(
            f"{endpoint} with {body!r}, text {text!r}, spent {spent}: {type(error).__name__}: {error}"
        )
    return AssertionError(f"{endpoint} with {body!r} failed once, and not again")


def shortest(endpoint: Endpoint, body: bytes, failure: type[Exception], text: str, spent: int) -> bytes:
    """A body without what is not needed for this failure."""

    def fails(given: bytes) -> bool:
        try:
            check(endpoint, given, text=text, spent=spent)
        except Exception as error:
            return type(error) is failure
        return False

    size = len(body) // 2
    while size:
        at = 0
        while at < len(body):
            shorter = body[:at] + body[at + size :]
            if fails(shorter):
                body = shorter
            else:
                at += size
        size //= 2
    return body


# What bodies have to mean


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object, by the offsets of its parts."""

    name: str
    start: int
    value: int
    end: int


_SCANNED = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _items(document: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Begin and end of every item of the object or array that begins there: an object's names and values in turn."""
    text = document.decode("latin-1")  # a character for each byte; what has a meaning in JSON is ASCII
    at = _skip(text, start)
    closing = {"{": "}", "[": "]"}[text[at]]
    at = _skip(text, at + 1)
    while text[at] != closing:
        _, end = _SCANNED.raw_decode(text, at)
        yield at, end
        at = _skip(text, end)
        if text[at] in ",:":
            at = _skip(text, at + 1)


def _object_members(document: bytes, start: int = 0) -> list[_Member]:
    spans = list(_items(document, start))
    return [
        _Member(json.loads(document[begin:stop]), begin, *value)
        for (begin, stop), value in zip(spans[::2], spans[1::2], strict=True)
    ]


def _same(one: Any, other: Any) -> bool:
    """Whether two parsed values are equal, where an integer beyond 64 bits may be a double."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return one == float(other) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


def _unordered(fields: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(fields.items()))


def _check_change(before: bytes, after: bytes, expected: Mapping[str, Any], changed: Sequence[str]) -> None:
    """A body means what is expected, and the members of other names are the bytes they were, in their order."""
    found = json.loads(after.decode())
    assert _same(_unordered(found), _unordered(expected)), f"{before!r} becomes {after!r}, not {expected!r}"
    old, new = _object_members(before), _object_members(after)
    kept = [before[each.start : each.end] for each in old if each.name not in changed]
    left = [after[each.start : each.end] for each in new if each.name not in changed]
    assert kept == left, f"other members change: {before!r} becomes {after!r}"
    if [each.name for each in old] == [each.name for each in new]:
        gaps = [[doc[a:b] for a, b in _gaps(members, len(doc))] for doc, members in ((before, old), (after, new))]
        assert gaps[0] == gaps[1], f"white space changes: {before!r} becomes {after!r}"


def _gaps(members: Sequence[_Member], length: int) -> Iterator[tuple[int, int]]:
    """What is around the members."""
    at = 0
    for each in members:
        yield at, each.start
        at = each.end
    yield at, length


def _check_json_bytes(body: bytes, fields: dict[str, Any]) -> None:
    members = _object_members(body)
    for name in dict.fromkeys([*fields, "absent"]):
        spans = [(each.value, each.end) for each in members if each.name == name]
        assert list(json_bytes.member_values(body, name)) == spans, f"member_values of {name!r} in {body!r}"
        left = json_bytes.without(body, name)
        if not spans:
            assert left is body, "a document without the member is copied"
        _check_change(body, left, {other: value for other, value in fields.items() if other != name}, [name])
    member = b'"put in":[1]'
    longer = json_bytes.inserted(body, member)
    _check_change(body, longer, {"put in": [1], **fields}, ["put in"])
    assert longer.replace(member + (b"," if fields else b""), b"", 1) == body, f"{body!r} becomes {longer!r}"
    for path, (start, end) in _places(body, fields):
        changed = json_bytes.replaced(body, {path: b'"new"'})
        assert changed == body[:start] + b'"new"' + body[end:], f"{path} replaced in {body!r} gives {changed!r}"


def _places(body: bytes, fields: dict[str, Any]) -> Iterator[tuple[json_bytes.Path, tuple[int, int]]]:
    """Some places of a document, two levels deep: of repeated members the last one."""
    for each in {member.name: member for member in _object_members(body)}.values():
        yield (each.name,), (each.value, each.end)
        value = fields[each.name]
        if isinstance(value, dict):
            for inner in {member.name: member for member in _object_members(body, each.value)}.values():
                yield (each.name, inner.name), (inner.value, inner.end)
        elif isinstance(value, list):
            for number, span in enumerate(_items(body, each.value)):
                yield (each.name, number), span


def _check_asking(body: bytes, fields: dict[str, Any]) -> None:
    options = fields.get("stream_options")
    asked: dict[str, Any] = {"include_usage": True}
    if isinstance(options, dict):
        stats = {"continuous_usage_stats": False} if "continuous_usage_stats" in options else {}
        asked = options if options.get("include_usage") is True else {**options, **stats, **asked}
    after = finished(replica_body.asking_for_usage(body, fields))
    found = json.loads(after)["stream_options"]
    assert _same(_unordered(found), _unordered(asked)), f"{body!r} asks for usage by {found!r}"
    _check_change(body, after, {**fields, "stream_options": found}, ["stream_options"])
    if asked == options:
        assert after == body, f"{body!r} asks for usage, and is changed"


def _check_salted(body: bytes, fields: dict[str, Any]) -> None:
    after = finished(replica_body.salted(body, fields, SALT))
    _check_change(body, after, {**fields, "cache_salt": SALT}, ["cache_salt"])
    spans = json_bytes.member_values(after, "cache_salt")
    assert {after[start:end] for start, end in spans} == {b'"%b"' % SALT.encode()}, f"{after!r} has a client's salt"


def _check_continued(request: ChatRequest, fields: dict[str, Any], text: str, spent: int) -> None:
    if not is_resumable(request):
        return
    made = continued.continued_body(request, text, [11, 12], spent)
    assert made is not None, f"{request.body!r} is resumable and cannot be continued"
    expected, changed = dict(fields), ["messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens"]
    found = json.loads(made.decode())
    for name in changed[2:]:
        value = request.fields.get(name)
        if type(value) is int:
            expected[name] = max(value - spent, 0)
        elif name in fields:
            expected[name] = found[name]  # what is no integer may be converted as engines do, or left
    if request.endpoint is Endpoint.CHAT and fields.get("continue_final_message") is True:
        *before, last = fields["messages"]
        expected["messages"] = [*before, {**last, "content": last["content"] + text}]
    elif request.endpoint is Endpoint.CHAT:
        expected["messages"] = [*fields["messages"], {"role": "assistant", "content": text}]
        expected |= {"continue_final_message": True, "add_generation_prompt": False}
        changed += ["continue_final_message", "add_generation_prompt"]
    else:
        expected.setdefault("max_tokens", 16 - spent)
        expected["prompt"] = _longer(fields["prompt"], text)
    _check_change(request.body, made, expected, changed)


def _longer(prompt: Any, text: str) -> Any:
    if isinstance(prompt, str):
        return prompt + text
    return [*prompt, 11, 12] if isinstance(prompt[0], int) else [_longer(prompt[0], text)]


# Work and memory


@dataclass(frozen=True, slots=True)
class Shape:
    """A body of any size: so many equal pieces between a begin and an end, separated by commas or by nothing."""

    name: str
    begin: bytes
    piece: bytes
    end: bytes
    separator: bytes = b","
    endpoint: Endpoint = Endpoint.CHAT

    def body(self, pieces: int) -> bytes:
        """The body with so many of them."""
        return self.begin + self.separator.join([self.piece] * pieces) + self.end


_REST = b'"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
_PROMPTED = b'"model":"m","stream":true,"prompt":"Hi"}'


def _unknown(name: str, piece: bytes, *, separator: bytes = b",", around: bytes = b"[]") -> Shape:
    return Shape(name, b'{"x":' + around[:1], piece, around[1:] + b"," + _REST, separator)


SHAPES = (
    Shape("stream-options", b"{", b'"stream_options":{}', b"," + _REST),
    Shape("stream-options-null", b"{", b'"stream_options":null', b"," + _REST),
    Shape("include-usage", b'{"stream_options":{', b'"include_usage":false', b"}," + _REST),
    Shape("usage-stats", b'{"stream_options":{', b'"continuous_usage_stats":true', b"}," + _REST),
    Shape("cache-salt", b"{", b'"cache_salt":"x"', b"," + _REST),
    Shape("cache-salt-escaped", b"{", b'"cache\\u005fsalt":"x"', b"," + _REST),
    Shape("max-tokens", b"{", b'"max_tokens":1', b"," + _REST),
    Shape("continue-final", b"{", b'"continue_final_message":false', b"," + _REST),
    Shape("same-names", b"{", b'"y":0', b"," + _REST),
    Shape("messages-repeated", b"{", b'"messages":[]', b"," + _REST),
    Shape("messages", b'{"model":"m","stream":true,"messages":[', b'{"role":"user","content":"Hi"}', b"]}"),
    Shape("parts", b'{"model":"m","stream":true,"messages":[{"role":"user","content":[', b'{"type":"text"}', b"]}]}"),
    Shape("text", b'{"model":"m","stream":true,"messages":[{"role":"user","content":"', b"words ", b'"}]}', b""),
    _unknown("numbers", b"1"),
    _unknown("doubles", b"1.5e7"),
    _unknown("strings", b'"a"'),
    _unknown("lists", b"[]"),
    _unknown("objects", b'{"a":1}'),
    _unknown("backslashes", rb"\\", separator=b"", around=b'""'),
    _unknown("quotes", rb"\"", separator=b"", around=b'""'),
    _unknown("brackets-in-text", b"[{", separator=b"", around=b'""'),
    _unknown("surrogates", rb"\ud83d\ude00", separator=b"", around=b'""'),
    _unknown("white-space", b"1 \t\n\r"),
    Shape("white-space-before", b"", b" \n", b'{"x":1,' + _REST, b""),
    Shape("white-space-behind", b"{" + _REST, b" \n", b"", b""),
    Shape("nan", b'{"x":[NaN,', b"1", b"]," + _REST),
    Shape("numbers-unclosed", b'{"x":[', b"1", b""),
    Shape("nesting", b'{"x":', b"[", b"", b""),
    Shape("ids", b'{"model":"m","stream":true,"prompt":[', b"7", b"]}", b",", Endpoint.COMPLETIONS),
    Shape("prompt", b'{"model":"m","stream":true,"prompt":["', b"words ", b'" ]}', b"", Endpoint.COMPLETIONS),
    Shape("prompt-spaces", b'{"model":"m","stream":true,"prompt":["a"', b"  ", b"]}", b"", Endpoint.COMPLETIONS),
    Shape("prompts-repeated", b"{", b'"prompt":"a"', b"," + _PROMPTED, b",", Endpoint.COMPLETIONS),
)


def check_growth(shape: Shape, pieces: int = _PIECES) -> None:
    """Four times the pieces cost about four times the work and memory, whichever function it is."""
    small, large = shape.body(pieces), shape.body(4 * pieces)
    operations = zip(_operations(shape, small), _operations(shape, large), strict=True)
    for (name, once, needs_bytes), (_, more, _) in operations:
        what = f"{name} on {shape.name}, {pieces} and {4 * pieces} pieces"
        began = time.process_time()
        more(large)
        seconds = time.process_time() - began
        assert seconds < _MOST_CPU_SECONDS, f"{what}: {seconds:.1f} s of CPU time for {len(large)} bytes"
        _check_costs(f"{what}: work", _work(once, small, needs_bytes), _work(more, large, needs_bytes), _WORK_AT_LEAST)
        memory = _memory(once, small), _memory(more, large)
        _check_costs(f"{what}: memory", *memory, _MEMORY_AT_LEAST)
        assert memory[1] < _BYTES_PER_BYTE * len(large) + _MEMORY_AT_LEAST, f"{what}: {memory[1]} bytes of memory"


def _check_costs(what: str, small: int, large: int, least: int) -> None:
    assert large < least or large < _GROWTH * small, f"{what} grows from {small} to {large}"


_Operation = tuple[str, Callable[[bytes], object], bool]


def _operations(shape: Shape, body: bytes) -> list[_Operation]:
    """What the gateway does with a body: name, function, and whether it needs real bytes."""
    steps: list[_Operation] = [("parse_request", lambda given: _read(shape.endpoint, given), True)]
    request = _read(shape.endpoint, body)
    if request is None:
        return steps
    fields = request.fields
    steps += [
        ("asking_for_usage", lambda given: finished(replica_body.asking_for_usage(given, fields)), False),
        ("salted", lambda given: finished(replica_body.salted(given, fields, SALT)), False),
        ("member_values", lambda given: sum(1 for _ in json_bytes.member_values(given, "y")), False),
        ("without", lambda given: json_bytes.without(given, "y"), False),
        ("inserted", lambda given: json_bytes.inserted(given, b'"a":1'), False),
        ("replaced", lambda given: json_bytes.replaced(given, {("model",): b'"n"'}), False),
    ]
    if is_resumable(request):
        steps.append(("continued_body", lambda given: _continue(request, given), False))
    return steps


def _continue(request: ChatRequest, body: bytes) -> bytes | None:
    names = (name for name in ChatRequest.__slots__ if name != "body")
    return continued.continued_body(
        ChatRequest(body=body, **{name: getattr(request, name) for name in names}), "text", [1], 1
    )


def _read(endpoint: Endpoint, body: bytes) -> ChatRequest | None:
    try:
        return _parsed(endpoint, body)
    except GatewayError:
        return None


def _parsed(endpoint: Endpoint, body: bytes) -> ChatRequest:
    parsing = parse_request(
        endpoint,
        b"",
        body,
        (),
        models=[MODEL],
        limits=_LIMITS,
        hold=lambda _: None,
        request_id=RequestId("r"),
        received_at=0.0,
        caller=EVERYBODY,
        peer="",
    )
    return finished(parsing)


class Counted(bytes):
    """Bytes that count how many of them are copied and searched, also of what is made of them."""

    work = 0

    @classmethod
    def _made(cls, given: bytes) -> "Counted":
        Counted.work += len(given)
        return cls(given)

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return self._made(found) if isinstance(found, bytes) else found

    def __add__(self, other: Any) -> "Counted":
        return self._made(super().__add__(other))

    def __radd__(self, other: Any) -> "Counted":
        return self._made(bytes(other) + bytes(self))

    def index(self, *given: Any) -> int:
        """Find, or fail."""
        found = super().index(*given)
        Counted.work += found - (given[1] if len(given) > 1 else 0)
        return found

    def find(self, *given: Any) -> int:
        """Find."""
        found = super().find(*given)
        Counted.work += (len(self) if found < 0 else found) - (given[1] if len(given) > 1 else 0)
        return found

    def rstrip(self, *given: Any) -> "Counted":
        """Strip."""
        return self._made(super().rstrip(*given))

    def count(self, *given: Any) -> int:
        """Count."""
        Counted.work += len(self)
        return super().count(*given)

    def decode(self, *given: Any) -> str:
        """Decode."""
        Counted.work += len(self)
        return super().decode(*given)


_FOR_COUNTED = SimpleNamespace(
    loads=lambda given: orjson.loads(bytes(given)), dumps=orjson.dumps, JSONDecodeError=orjson.JSONDecodeError
)


def _work(function: Callable[[bytes], object], body: bytes, needs_bytes: bool) -> int:
    """Calls, and bytes that were copied and searched."""
    calls = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        del frame, argument
        calls += event in ("call", "c_call")

    Counted.work = 0
    given = body if needs_bytes else Counted(body)
    modules = [module for module in (json_bytes, replica_body, continued) if hasattr(module, "orjson")]
    patches = [mock.patch.object(module, "orjson", _FOR_COUNTED) for module in modules]
    for patch in patches:
        patch.start()
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        function(given)
    finally:
        sys.setprofile(before)
        for patch in patches:
            patch.stop()
    return calls + Counted.work


def _memory(function: Callable[[bytes], object], body: bytes) -> int:
    """Bytes allocated at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        function(body)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
