"""The filter that streams of events pass: events of all kinds, cut at any byte.

* Nothing is raised.
* How the stream arrives in pieces changes neither what is passed on nor the usage that is found.
* With its usage chunk wanted, every byte is passed on as it came, unless something is no event.
* Without, what is left out is whole events with a usage and without choices.
* No more is held than the longest event and one piece, and every byte is searched a bounded number of times.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

from hypothesis import strategies as st

from benchmarks.fuzz.target import Target, cut
from gateway.core.outcome import Usage
from gateway.proxy import sse
from gateway.proxy.resume.joined_stream import END
from gateway.proxy.sse import EventFilter

_LONGEST = 2000
"""Stands for the 4 MiB that an event may have."""

_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["usage", "choices", "error", "prompt_tokens", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)
_count = st.one_of(st.integers(-2, 2**33), st.none(), st.floats(), st.booleans(), st.text(max_size=3))
_usage = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": _count,
        "completion_tokens": _count,
        "prompt_tokens_details": st.one_of(st.none(), st.fixed_dictionaries({"cached_tokens": _count}), _json),
    },
)
_chunk = st.one_of(
    st.fixed_dictionaries({"choices": st.lists(_json, max_size=2)}, optional={"usage": st.one_of(_usage, _json)}),
    _json,
)


@st.composite
def _data(draw: st.DrawFn) -> bytes:
    indent = draw(st.sampled_from([None, None, None, 1]))
    return b"data:" + draw(st.sampled_from([b" ", b" ", b""])) + json.dumps(draw(_chunk), indent=indent).encode()


_line = st.one_of(
    _data(),
    _data(),
    st.sampled_from(
        [b"data: [DONE]", b": keep-alive", b"", b"event: x", b"id: 1", b"retry: 5", b"data", b"data: {", b"}"]
    ),
    st.binary(max_size=12),
    st.integers(1, 3 * _LONGEST).map(lambda size: b'data: {"x":"' + b"y" * size + b'"}'),
    st.integers(1, 3000).map(lambda depth: b'data: {"a":' + b"[" * depth + b"]" * depth + b"}"),
)
_break = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])
_end = st.sampled_from([b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b""])


@dataclass(frozen=True)
class Example:
    """A stream.

    Attributes:
        data: All of it.
        places: Where it is cut.
        keep_usage: Whether the client asked for the usage chunk.
    """

    data: bytes
    places: Sequence[int]
    keep_usage: bool


@st.composite
def _examples(draw: st.DrawFn) -> Example:
    out = []
    for _ in range(draw(st.integers(0, 6))):
        lines = draw(st.lists(_line, min_size=1, max_size=draw(st.sampled_from([1, 1, 1, 3]))))
        out += [draw(_break).join(lines), draw(_end)]
    data = b"".join(out)
    places = draw(st.lists(st.integers(0, len(data)), max_size=12))
    step = draw(st.sampled_from([0, 0, 1, 2, 7]))
    if step:
        places = list(range(0, len(data), step))
    return Example(data, places, draw(st.booleans()))


class _Counting(EventFilter):
    """Counts the bytes that are searched for the ends of events."""

    searched = 0

    def _ends_behind(self, start: int) -> bool:
        self.searched += len(self._pending) - start
        return super()._ends_behind(start)


def _passed(example: Example, places: Sequence[int]) -> tuple[bytes, Usage | None, bool]:
    events = _Counting(keep_usage=example.keep_usage)
    out = []
    feeds = 0
    for piece in cut(example.data, places):
        out.append(events.feed(piece))
        feeds += 1
        assert len(events._pending) <= _LONGEST
    rest = events.finish()
    assert events.finish() == b""
    assert events.searched <= len(example.data) + 4 * feeds
    assert not (events.garbled and rest)
    return b"".join(out) + rest, events.usage, events.garbled


def _longest_gap(data: bytes) -> int:
    """Bytes of the longest event, at most."""
    ends = [0, *(end.end() for end in END.finditer(data)), len(data)]
    return max(after - before for before, after in itertools.pairwise(ends))


def _is_left_out(passed: bytes, data: bytes) -> Iterator[bool]:
    """Whether what was passed on is the data without some of its events."""
    at = 0
    edges = [0, *(end.end() for end in END.finditer(data)), len(data)]
    for start, end in itertools.pairwise(edges):
        event = data[start:end]
        if passed.startswith(event, at):
            at += len(event)
        else:
            yield b'"usage"' in event
    yield at == len(passed)


def _check(example: Example) -> None:
    with mock.patch.object(sse, "_LONGEST_EVENT", _LONGEST):
        at_once = _passed(example, ())
        in_pieces = _passed(example, example.places)
    if _longest_gap(example.data) <= _LONGEST:
        # The line feed of the last CR LF may stand in front of what is garbled.
        assert at_once[1:] == in_pieces[1:]
        assert at_once[0] in (in_pieces[0], in_pieces[0] + b"\n" * at_once[2])
    for passed, usage, garbled in (at_once, in_pieces):
        if usage is not None:
            assert 0 <= usage.prompt_tokens <= 2**31
            assert 0 <= usage.completion_tokens <= 2**31
            assert usage.cached_tokens is None or 0 <= usage.cached_tokens <= usage.prompt_tokens
        if example.keep_usage:
            assert example.data.startswith(passed)
            assert garbled or passed == example.data
        elif not garbled and _longest_gap(example.data) <= _LONGEST:
            assert all(_is_left_out(passed, example.data))


TARGET = Target("sse", _examples(), _check)
