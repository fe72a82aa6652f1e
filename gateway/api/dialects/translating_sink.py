"""Translates an answer piece by piece: the events of a stream as they come, every other answer when it is whole."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import orjson

from gateway.core.errors import EngineProblem, GatewayError, UpstreamFailed
from gateway.core.outcome import Usage
from gateway.core.ports import Sink
from gateway.engines import parse_usage, payloads
from gateway.proxy.forwarding_sink import ForwardingSink
from gateway.proxy.resume.joined_stream import END
from gateway.proxy.sse import json_of

_MAX_WHOLE_BYTES = 32 * 1024 * 1024
"""Largest answer that is not a stream. Engines send one of megabytes only with log probabilities, which are not asked
for."""

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


_decode = msgspec.json.Decoder(ChatChunk).decode


class AnswerPart(msgspec.Struct):
    """Thoughts, a text, or a call.

    Attributes:
        kind: ``reasoning``, ``message`` or ``call``.
        number: Its place in the answer.
        id: The call's, if the engine gives it one.
        name: Of the called function.
        pieces: Its text, or the arguments of the call, as the engine sends them.
        passed: How many of them the client has got.
        tried: How many of them there were when they were no whole call yet.
        item: The part in the form of the API, as the client got its beginning; empty before.
        delta: An event for more of it, but for what is new; for converters.
    """

    kind: str
    number: int
    id: str | None = None
    name: str = ""
    pieces: list[str] = []
    passed: int = 0
    tried: int = 0
    item: dict[str, Any] = {}
    delta: bytes = b""

    @property
    def text(self) -> str:
        """All pieces together."""
        return "".join(self.pieces)

    def is_whole(self) -> bool:
        """Whether the engine sends no more of it, now that another one has begun."""
        if self.kind != "call":
            return True
        if self.tried == len(self.pieces) or not self.pieces[-1].endswith("}"):
            return False
        self.tried = len(self.pieces)
        try:
            orjson.loads(self.text)
        except orjson.JSONDecodeError:
            return False
        return True


class AnswerConverter(ABC):
    """Turns the answer of one chat request into that of another API. Only computes; subclasses write its form.

    A stream has one part after the other, also where an engine interleaves the pieces of calls: what it sends of later
    parts waits until the one before is whole, or the stream is over.

    Attributes:
        compares: Whether the client names an earlier request that the prompt is compared with.
        parts: The parts of the answer.
        finish: Why the engine ended it.
        reported: Usage as the engine reports it; None if it does not.
    """

    def __init__(self) -> None:
        self.compares = False
        self.parts: list[AnswerPart] = []
        self.finish: str | None = None
        self.reported: Usage | None = None
        self._expected = Usage(0, 0, 0)
        self._said = 0  # events of the engine with content
        self._calls: dict[int, AnswerPart] = {}  # by the numbers that they have in the stream
        self._open = 0  # the part that the client gets
        self._begun = self._is_whole = False
        self._events: list[bytes] = []

    @property
    def usage(self) -> Usage:
        """What the engine counts; without it the tokens that the gateway expected, and the events with content."""
        return self.reported or msgspec.structs.replace(self._expected, completion_tokens=self._said)

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """A success begins; called once, before all others, with the headers of the answer."""
        if b"x-gateway-tokens" not in headers:  # it says that the others are estimates
            tokens = int(headers.get(b"x-gateway-prompt-tokens", b"0"))
            self._expected = Usage(tokens, 0, int(headers.get(b"x-gateway-prefix-tokens", b"0")))

    def chunk(self, chunk: ChatChunk) -> bytes:
        """The events of one event of the stream; empty for none."""
        if chunk.usage is not None:
            self._note_usage(chunk.usage)
        if not self._begun:
            self._begun = True
            self._stream_begins(chunk)
        for choice in chunk.choices[:1]:
            self._said += self._add(choice)
        self._pass_on()
        return self._written()

    def end(self) -> bytes:
        """The last events of a stream that is whole."""
        begun = self.chunk(ChatChunk())
        self._pass_on(is_over=True)
        self._stream_ends()
        return begun + self._written()

    def _read(self, answer: Mapping[str, Any]) -> None:
        """Read an answer that is not a stream; fails in many ways for what is no chat completion."""
        self._begun = self._is_whole = True
        chosen = answer["choices"][0]
        choice = msgspec.convert({**chosen, "delta": chosen["message"]}, ChunkChoice)
        for number, call in enumerate(choice.delta.tool_calls or ()):
            call.index = number
        self._note_usage(answer.get("usage"))
        self._add(choice)

    def _note_usage(self, usage: Any) -> None:
        self.reported = parse_usage(usage) or self.reported

    def _note_choice(self, choice: ChunkChoice) -> None:
        self.finish = choice.finish_reason or self.finish

    def _write(self, kind: str, members: Mapping[str, Any]) -> None:
        if not self._is_whole:
            self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members})))

    def _written(self) -> bytes:
        written, self._events = b"".join(self._events), []
        return written

    def _add(self, choice: ChunkChoice) -> bool:
        """Add what the engine sends to the parts; returns whether it has content."""
        self._note_choice(choice)
        delta = choice.delta
        thoughts, said = delta.reasoning or delta.reasoning_content, delta.content or delta.refusal
        for kind, text in (("reasoning", thoughts), ("message", said)):
            if text:
                part = self.parts[-1] if self.parts and self.parts[-1].kind == kind else self._new(kind)
                part.pieces.append(text)
        for call in delta.tool_calls or ():
            function = call.function or FunctionDelta()
            if call.index not in self._calls:
                self._calls[call.index] = self._new("call", call.id, function.name or "")
            if function.arguments:
                self._calls[call.index].pieces.append(function.arguments)
        return bool(thoughts or said or delta.tool_calls)

    def _new(self, kind: str, id_: str | None = None, name: str = "") -> AnswerPart:
        self.parts.append(part := AnswerPart(kind, len(self.parts), id_, name))
        return part

    def _pass_on(self, *, is_over: bool = False) -> None:
        """Write events for what the client may get now."""
        for part in self.parts[self._open :]:
            if not part.item:
                self._part_begins(part)
            for piece in part.pieces[part.passed :]:
                self._part_grows(part, piece)
            part.passed = len(part.pieces)
            if not is_over and (part is self.parts[-1] or not part.is_whole()):
                return
            self._part_ends(part)
            self._open += 1

    # What a subclass writes

    @abstractmethod
    def broken(self, error: GatewayError) -> bytes:
        """The last events of a stream that broke off."""

    @abstractmethod
    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """The body of an answer that is not a stream."""

    @abstractmethod
    def _stream_begins(self, chunk: ChatChunk) -> None: ...

    @abstractmethod
    def _part_begins(self, part: AnswerPart) -> None: ...

    @abstractmethod
    def _part_grows(self, part: AnswerPart, piece: str) -> None: ...

    @abstractmethod
    def _part_ends(self, part: AnswerPart) -> None: ...

    @abstractmethod
    def _stream_ends(self) -> None: ...


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
        refusal: Callable[[GatewayError], tuple[int, bytes]],
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._sink = sink
        self._converter = converter
        self._refusal = refusal
        self._headers = headers
        self._status = 0
        self._kept: list[tuple[bytes, bytes]] = []
        self._streamed = self._done = False
        self._pending = b""  # the beginning of an event
        self._body = bytearray()  # of an answer that is not a stream

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
                self.send(events, more=more)
            return
        if len(self._body) <= _MAX_WHOLE_BYTES:  # what is cut off is no JSON
            self._body += data
        if not more:
            status, body = self._whole(bytes(self._body))
            self.respond(status, self._kept, body)

    def send(self, events: bytes, *, more: bool) -> None:
        """Send events to the client."""
        self._sink.write(events, more=more)

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send an answer that is not a stream to the client."""
        own = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
        self._sink.start(status, [*headers, *own])
        self._sink.write(body, more=False)

    def _events(self, data: bytes, *, more: bool) -> bytes:
        data, self._pending = self._pending + data, b""
        if more and data[:6] == b"data: " and data[-2:] == b"\n\n" and data.count(b"\n") == 2 and b"\r" not in data:
            return self._payload(data[6:-2])  # one event, as most pieces are
        *events, rest = END.split(data)
        if more:
            self._pending = rest  # only an event of hundreds of KiB comes in several pieces
        else:
            events.append(rest)
        out = [self._payload(b"\n".join(payloads(event))) for event in events]
        if not more and not self._done:
            out.append(self._converter.end())
        return b"".join(out)

    def _payload(self, payload: bytes) -> bytes:
        """The client's events of the data of one event; nothing follows an error."""
        if not payload or self._done:
            return b""
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if not payload.startswith(b"{"):
                return b""  # the end mark, or an event of another kind
            self._done = True
            return self._converter.broken(no_chat())
        if chunk.error is None:
            return self._converter.chunk(chunk)
        self._done = True
        return self._converter.broken(engine_error(self._status, chunk.error))

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
                return self._refusal(no_chat())
        status = self._status if self._status != HTTPStatus.OK else HTTPStatus.BAD_GATEWAY
        return self._refusal(engine_error(status, answer))


def no_chat() -> UpstreamFailed:
    """The error for an answer that cannot be translated."""
    return UpstreamFailed("The engine's answer is no chat completion.")


def engine_error(status: int, answer: Any) -> EngineProblem:
    """An error as an engine reports it: vLLM's ``{"error": {…}}``, or SGLang's object itself."""
    said = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(said, str):
        return EngineProblem(status, said)
    if not isinstance(said, dict):
        return EngineProblem(status, f"The engine answered {status} without a reason.")
    texts = {name: value for name, value in said.items() if isinstance(value, str)}
    message = texts["message"] if "message" in texts else orjson.dumps(said).decode()[:1000]
    return EngineProblem(status, message, kind=texts.get("type", ""), param=texts.get("param"), code=texts.get("code"))
