"""Puts the values back that placeholders stand for in an answer, streamed or not.

A placeholder may be split over events: what may be the beginning of one is held until the next event of the same choice
and field. Placeholders are restored in text, reasoning, refusals and the arguments of tool calls; log probabilities and
token ids stay as the engine generated them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from gateway.core.json_edit import Path, json_text, replaced
from gateway.core.ports import Sink
from gateway.engines import payloads
from gateway.proxy.forwarding_sink import ForwardingSink
from gateway.proxy.resume.joined_stream import END
from gateway.proxy.sse import json_of

_PLACEHOLDER = re.compile(r"\[[a-z][a-z0-9_-]{0,39}-[0-9]{1,4}\]")
_BEGINNING = re.compile(r"\[[a-z0-9_-]{0,45}$")
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
MAX_WHOLE_BYTES = 4 * 2**20
"""A larger answer that is not a stream is passed on as it is: parsing it would stop all other requests meanwhile."""

_Place = tuple[int, str, int]
"""A text of a stream: index of the choice, name of the field, index of the tool call."""


class RestoringSink(ForwardingSink):
    """A ``Sink`` in front of the client's.

    Args:
        sink: The client's sink.
        values: What stands for which value. The values are in memory only, until the answer is over.
    """

    def __init__(self, sink: Sink, values: Mapping[str, str]) -> None:
        self._sink = sink
        self._values = values
        self._head: tuple[int, Sequence[tuple[bytes, bytes]]] | None = None
        self._streamed = False
        self._held: dict[_Place, str] = {}
        self._last: dict[str, Any] = {}

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``. The head of an answer that is not a stream waits for the body, whose length changes."""
        self._streamed = any(
            name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers
        )
        if self._streamed or status != HTTPStatus.OK:
            self._sink.start(status, headers)
        else:
            self._head = (status, headers)

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:  # noqa: ARG002
        """See ``Sink``. The pieces of a stream are whole events."""
        if self._head is not None:
            (status, headers), self._head = self._head, None
            if not more and len(data) <= MAX_WHOLE_BYTES:
                data = self._whole(data)
                length = (b"content-length", b"%d" % len(data))
                headers = [length if header[0] == b"content-length" else header for header in headers]
            self._sink.start(status, headers)
        elif self._streamed:
            data = b"".join(self._events(data))
            if not more and self._held:
                data = self._flushed() + data  # in front of the error event of a stream that broke off
            if not data and more:
                return
        self._sink.write(data, more=more)

    def _whole(self, body: bytes) -> bytes:
        """The body of an answer with its values."""
        try:
            answer = json_of(body)
        except ValueError:
            return body
        edits: dict[Path, bytes] = {}
        for position, choice in enumerate(_choices(answer)):
            for path, text, escaped in _texts(choice, "message"):
                if (restored := self._restored(text, escaped=escaped)) != text:
                    edits["choices", position, *path] = json_text(restored)
        return replaced(body, edits) if edits else body

    def _events(self, data: bytes) -> Iterator[bytes]:
        start = 0
        for end in END.finditer(data):
            yield self._event(data[start : end.end()])
            start = end.end()
        if start < len(data):
            yield data[start:]

    def _event(self, event: bytes) -> bytes:
        found = list(payloads(event))
        if len(found) != 1:
            # The end mark, or nothing that engines send.
            return self._flushed() + event if self._held and b"[DONE]" in event else event
        try:
            chunk = json_of(found[0])
        except ValueError:
            return event
        edits: dict[Path, bytes] = {}
        choices = list(_choices(chunk))
        added = False
        for position, choice in enumerate(choices):
            index = _number(choice.get("index"))
            ends = choice.get("finish_reason") is not None
            places: set[_Place] = set()
            for path, text, escaped in _texts(choice, "delta"):
                place = _place(index, choice, path)
                places.add(place)
                ready = self._ready(place, text, escaped=escaped, ends=ends)
                if ready != text:
                    edits["choices", position, *path] = json_text(ready)
                    _put(choice, path, ready)
            if places or ends:
                others = [place for place in self._held if place[0] == index and place not in places]
                added |= self._add_held(choice, others)
        if choices and isinstance(chunk, dict):
            self._last = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
        if added:
            return _written(chunk)
        return b"data: " + replaced(found[0], edits) + b"\n\n" if edits else event

    def _ready(self, place: _Place, text: str, *, escaped: bool, ends: bool) -> str:
        """The text of an event with values, without what may be the beginning of a placeholder."""
        text = self._held.pop(place, "") + text
        beginning = None if ends else _BEGINNING.search(text)
        if beginning and any(name.startswith(beginning[0]) for name in self._values):
            self._held[place] = beginning[0]
            text = text[: beginning.start()]
        return self._restored(text, escaped=escaped)

    def _restored(self, text: str, *, escaped: bool) -> str:
        """A text with values.

        Args:
            text: The text.
            escaped: Whether it is JSON, in which values have to be escaped.
        """

        def value(match: re.Match[str]) -> str:
            found = self._values.get(match[0])
            if found is None:
                return match[0]
            return json_text(found).decode()[1:-1] if escaped else found

        return _PLACEHOLDER.sub(value, text) if "[" in text else text

    def _add_held(self, choice: dict[str, Any], places: Sequence[_Place]) -> bool:
        """Add what is held of other fields of a choice to its event. Returns whether there was something."""
        for place in places:
            _, name, call = place
            text = self._held.pop(place)
            if name == "text":
                choice["text"] = text
                continue
            delta = choice["delta"] = choice.get("delta") or {}
            if name == "arguments":
                delta["tool_calls"] = [
                    *(delta.get("tool_calls") or ()),
                    {"index": call, "function": {"arguments": text}},
                ]
            else:
                delta[name] = text
        return bool(places)

    def _flushed(self) -> bytes:
        """Events with all that is held, for a stream that ends without a finish reason."""
        choices: dict[int, dict[str, Any]] = {}
        for place in list(self._held):
            choice = choices.setdefault(place[0], {"index": place[0], "finish_reason": None})
            self._add_held(choice, [place])
        return _written({**self._last, "choices": list(choices.values())})


def _choices(answer: object) -> list[dict[str, Any]]:
    """The choices of an answer or event; empty if it has another form."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return []
    return choices


def _texts(choice: Mapping[str, Any], member: str) -> Iterator[tuple[Path, str, bool]]:
    """The texts of a choice: path, text, and whether it is JSON."""
    if isinstance(text := choice.get("text"), str):
        yield ("text",), text, False
    message = choice.get(member)
    if not isinstance(message, dict):
        return
    for name in _TEXTS:
        if isinstance(text := message.get(name), str):
            yield (member, name), text, False
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
            yield (member, "tool_calls", number, "function", "arguments"), text, True


def _place(index: int, choice: Mapping[str, Any], path: Path) -> _Place:
    """Which text of the stream an event continues."""
    name = str(path[-1])
    if name != "arguments":
        return index, name, 0
    number = path[2]
    return index, name, _number(choice["delta"]["tool_calls"][number].get("index"))


def _number(index: object) -> int:
    return index if isinstance(index, int) else 0


def _written(chunk: object) -> bytes:
    """An event."""
    try:
        payload = orjson.dumps(chunk)
    except orjson.JSONEncodeError:  # half a character, or a large number
        payload = json.dumps(chunk).encode()
    return b"data: " + payload + b"\n\n"


def _put(value: Any, path: Path, text: str) -> None:
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = text
