"""Translates an answer piece by piece: the events of a stream as they come, every other answer when it is whole."""

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import orjson

from gateway.api.dialects.dialect import ApiProblem
from gateway.core.ports import Sink
from gateway.proxy.forwarding_sink import ForwardingSink
from gateway.proxy.resume.joined_stream import END
from gateway.proxy.sse import json_of

_MAX_WHOLE_BYTES = 32 * 1024 * 1024
"""Largest answer that is not a stream. Engines send one of megabytes only with log probabilities, which are not asked
for."""

_DONE = b"[DONE]"
_EVENT_STREAM = b"text/event-stream"
_CHANGED = frozenset({b"content-length", b"content-type"})


class FunctionDelta(msgspec.Struct, gc=False):
    """A part of a call."""

    name: str | None = None
    arguments: Any = None

    def __post_init__(self) -> None:
        if self.arguments is not None and not isinstance(self.arguments, str):  # SGLang allows an object
            self.arguments = json.dumps(self.arguments)


class CallDelta(msgspec.Struct, gc=False):
    """A part of a tool call. The first part of each has the id and the name."""

    index: Any = 0
    id: str | None = None
    function: FunctionDelta | None = None

    def __post_init__(self) -> None:
        self.index = self.index or 0


class Delta(msgspec.Struct, gc=False):
    """A part of a choice. vLLM calls thoughts ``reasoning``, SGLang and older vLLM ``reasoning_content``."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(msgspec.Struct, gc=False):
    """A choice in one event. The stop sequence that was met is ``stop_reason`` of vLLM, ``matched_stop`` of SGLang."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None


class ChatChunk(msgspec.Struct, gc=False):
    """One event of a chat stream."""

    model: str | None = None
    choices: list[ChunkChoice] = []
    usage: Mapping[str, Any] | None = None
    error: Any = None


_NO_CHAT = ApiProblem(502, "upstream_error", "The engine's answer is no chat completion.")
_decode = msgspec.json.Decoder(ChatChunk).decode


class AnswerConverter(Protocol):
    """Turns the answer of one chat request into that of another API. Only computes."""

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """A success begins; called once, before all others, with the headers of the answer."""
        ...

    def chunk(self, chunk: ChatChunk) -> bytes:
        """The events of one event of the stream; empty for none."""
        ...

    def end(self) -> bytes:
        """The last events of a stream that is whole."""
        ...

    def broken(self, problem: ApiProblem) -> bytes:
        """The last events of a stream that broke off."""
        ...

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """The body of an answer that is not a stream."""
        ...


class TranslatingSink(ForwardingSink):
    """A ``Sink`` in front of the client's.

    Args:
        sink: The client's sink.
        converter: Converts a success.
        refusal: Status and body of an error in the API's shape.
        headers: Headers that the answer gets.
    """

    def __init__(
        self,
        sink: Sink,
        converter: AnswerConverter,
        refusal: Callable[[ApiProblem], tuple[int, bytes]],
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._sink = sink
        self._converter = converter
        self._refusal = refusal
        self._headers = headers
        self._status = 0
        self._kept: list[tuple[bytes, bytes]] = []
        self._streamed = self._done = False
        self._pending = b""
        self._parts: list[bytes] = []
        self._size = 0

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``. The head of an answer that is not a stream waits for the body."""
        self._status = status
        named = dict(headers)
        self._kept = [header for header in headers if header[0] not in _CHANGED]
        self._kept.extend(self._headers)
        self._streamed = status == HTTPStatus.OK and named.get(b"content-type", b"").lower().startswith(_EVENT_STREAM)
        if status == HTTPStatus.OK:
            self._converter.begin(named)
        if self._streamed:
            self._sink.start(status, [*self._kept, (b"content-type", b"text/event-stream; charset=utf-8")])

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:  # noqa: ARG002
        """See ``Sink``."""
        if self._streamed:
            events = self._events(data, more=more)
            if events or not more:
                self._sink.write(events, more=more)
            return
        self._size += len(data)
        if self._size <= _MAX_WHOLE_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()
        if not more:
            status, body = self._whole(b"".join(self._parts))
            headers = [*self._kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            self._sink.start(status, headers)
            self._sink.write(body, more=False)

    def _events(self, data: bytes, *, more: bool) -> bytes:
        if self._pending:
            data, self._pending = self._pending + data, b""
        out, start = [], 0
        for found in END.finditer(data):
            out.append(self._event(data[start : found.end()]))
            start = found.end()
        if more:
            self._pending = data[start:]
        else:
            out.append(self._event(data[start:]))
            if not self._done:
                out.append(self._converter.end())
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        """The client's events of one event; nothing follows an error."""
        payload = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        if not payload or self._done or payload == _DONE:
            return b""
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if not payload.startswith(b"{"):
                return b""  # an event of another kind
            self._done = True
            return self._converter.broken(_NO_CHAT)
        if chunk.error is None:
            return self._converter.chunk(chunk)
        self._done = True
        return self._converter.broken(engine_problem(self._status, chunk.error))

    def _whole(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer that is not a stream."""
        try:
            answer = json_of(body)
        except ValueError:
            answer = None
        if self._status == HTTPStatus.OK and isinstance(answer, dict):
            try:
                return self._status, self._converter.whole(answer)
            except (LookupError, TypeError, ValueError, RecursionError, msgspec.MsgspecError):
                return self._refusal(_NO_CHAT)
        status = self._status if self._status != HTTPStatus.OK else HTTPStatus.BAD_GATEWAY
        return self._refusal(engine_problem(status, answer))


def engine_problem(status: int, answer: Any) -> ApiProblem:
    """An error as an engine reports it: vLLM's ``{"error": {…}}``, or SGLang's object itself."""
    said = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(said, str):
        return ApiProblem(status, "", said)
    if not isinstance(said, dict):
        return ApiProblem(status, "", f"The engine answered {status} without a reason.")
    message, param, code = said.get("message"), said.get("param"), said.get("code")
    return ApiProblem(
        status,
        said["type"] if isinstance(said.get("type"), str) else "",
        message if isinstance(message, str) else orjson.dumps(said).decode()[:1000],
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )
