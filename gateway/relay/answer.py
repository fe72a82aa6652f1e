"""One answer on its way from a replica to the client: passed on, watched for whether it is whole, and ended."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import orjson

from gateway.relay.flight import Flight
from gateway.relay.headers import client_headers
from gateway.relay.http import Broken
from gateway.relay.sse import EventFilter, json_of
from gateway.values.errors import DeadlineExceeded, GatewayError, ShuttingDown, UpstreamFailed, UpstreamTimeout
from gateway.values.outcome import Ending, Outcome, Usage
from gateway.values.ports import Sink
from gateway.values.request import ChatRequest
from gateway.vendors import parse_usage

_DONE = re.compile(rb"[\r\n]data: ?\[DONE\]")
"""The last event of every stream."""

_TAIL = 64
"""Bytes of a stream's end that are looked through for it; behind it there may be a proxy's comment."""

_RETRY_AFTER = b"retry-after"

_MOST_WHOLE_BYTES = 64 * 1024 * 1024
"""Of an answer that is not a stream. Held until all of it is there; a hundred choices of 30,000 tokens take 20 MiB."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What goes with a request, and for how long.

    Attributes:
        salt: Sent as ``cache_salt``, in place of the client's own; None leaves the body as it is.
        own_headers: Headers the gateway adds to the answer.
        trace_headers: Sent in place of the client's ``traceparent`` and ``tracestate``; None leaves those.
        deadline: When the client stops waiting, in the running loop's time (monotonic seconds).
        retry_after_seconds: Told with an answer of 429 that does not say by itself when to come again.
        begun: Whether the client has got the beginning already, from another replica.
    """

    salt: str | None
    own_headers: Sequence[tuple[bytes, bytes]]
    trace_headers: Sequence[tuple[bytes, bytes]] | None
    deadline: float
    retry_after_seconds: int
    begun: bool = False


class Answer:
    """The state of one answer on its way.

    Attributes:
        problem: What was wrong with the replica or its answer, in words.
    """

    def __init__(
        self,
        sink: Sink,
        terms: Terms,
        on_first_byte: Callable[[], None],
        request: ChatRequest,
        max_answer_bytes: int,
        *,
        on_started: Callable[[], None],
    ) -> None:
        self.now = asyncio.get_running_loop().time
        self._sink = sink
        self._terms = terms
        self._on_first_byte = on_first_byte
        self._on_started = on_started
        self._filter = EventFilter(keep_usage=request.usage_wanted)
        self._room = max_answer_bytes
        self._began_at = self.now()
        self._first_byte_at: float | None = None
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._streamed = False
        self._started = False
        self._pieces: list[bytes] = []
        self._whole_bytes = 0
        self._answer: list[bytes] = []
        self._usage: Usage | None = None
        self._tail = b"\n"
        self._rest = b""
        self._held_up = False
        self.problem = ""

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The head of the answer is there.

        Raises:
            Broken: nobody can read what follows.
        """
        self._status = status
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        self._streamed = status == 200 and content_type.startswith(b"text/event-stream")
        self._headers = client_headers(headers, self._terms.own_headers)
        encoding = next((value for name, value in headers if name == b"content-encoding"), b"identity")
        if status == 200 and encoding.lower() not in (b"identity", b""):
            # It was not asked for, and what a few bytes of it become may be without end.
            raise Broken(f"the answer is compressed (content-encoding: {encoding.decode('latin-1')[:40]})")

    async def piece(self, data: bytes) -> None:
        """A piece of the body is there.

        Raises:
            Broken: it cannot be a part of an answer.
        """
        if not self._streamed:
            self._whole_bytes += len(data)
            if self._whole_bytes > _MOST_WHOLE_BYTES:
                raise Broken(f"the answer has more than {_MOST_WHOLE_BYTES >> 20} MiB")
            self._pieces.append(data)
            return
        if self._first_byte_at is None:
            self._first_byte_at = self.now()
            self._on_first_byte()
        if self._room > 0:
            self._room -= len(data)
            self._answer.append(data)
        if out := self._filter.feed(data):
            self._tail = out[-_TAIL:] if len(out) >= _TAIL else (self._tail + out)[-_TAIL:]
            await self._tell(out, more=True)
        if self._filter.garbled:
            raise Broken("something in the stream is no event")

    def ending_of_timeout(self, flight: Flight, *, expired: bool) -> Ending:
        """How an attempt ended whose time was over; ``expired``: that of the whole request."""
        if flight.called_back:
            self.problem = "its health checks fail"
            return Ending.BROKEN
        if self._held_up:
            # Not the replica is silent: its pieces cannot be passed on. Whoever reads so slowly is as good as gone.
            return Ending.CLIENT_GONE
        return Ending.EXPIRED if expired else Ending.TIMED_OUT

    async def end(self, ending: Ending, withhold: Callable[[Ending, int | None, bool], bool]) -> Ending:
        """Nothing more will come. Returns how it really ended."""
        self._rest = self._filter.finish()
        if ending is Ending.COMPLETE:
            if not self._is_whole():
                ending = Ending.BROKEN
                self.problem = "the answer is not whole"
        elif self._streamed and self._is_whole() and ending is not Ending.CLIENT_GONE:
            ending, self.problem = Ending.COMPLETE, ""  # only the end of the HTTP answer is missing
        if self._streamed:
            self._usage = self._filter.usage
        if ending is Ending.CLIENT_GONE or withhold(ending, self._status, self._started):
            return ending
        if self._streamed and ending is Ending.COMPLETE:
            await self._tell(self._rest, more=False)
        elif self._started:
            # What stands behind the last whole event of a broken stream would swallow the error event.
            await self._tell(broken_off(ending), more=False)
        elif self._terms.begun:
            # There is no other way left to tell it, not even a refusal.
            await self._sink.write(broken_off(ending), more=False)
        elif ending is Ending.COMPLETE and self._status is not None:
            await self._tell_whole(self._status, b"".join(self._pieces))
        return ending

    async def _tell(self, data: bytes, *, more: bool) -> None:
        """Events for the client."""
        self._held_up = True
        if not self._started:
            self._started = True
            self._on_started()
            await self._sink.start(HTTPStatus.OK, self._headers)
        await self._sink.write(data, more=more)
        self._held_up = False

    async def _tell_whole(self, status: int, body: bytes) -> None:
        """An answer that is not a stream."""
        self._started = True
        self._headers.append((b"content-length", str(len(body)).encode()))
        if status == HTTPStatus.TOO_MANY_REQUESTS and all(name != _RETRY_AFTER for name, _ in self._headers):
            self._headers.append((_RETRY_AFTER, b"%d" % self._terms.retry_after_seconds))
        await self._sink.start(status, self._headers)
        await self._sink.write(body, more=False)
        if status == HTTPStatus.OK:
            self._answer = [body] if len(body) <= self._room else []

    def _is_whole(self) -> bool:
        """Whether an answer that HTTP calls complete is one: a stream has its last event, a body is a JSON object."""
        if self._status != HTTPStatus.OK:
            return self._status is not None
        if self._streamed:
            return _DONE.search(self._tail + self._rest) is not None
        try:
            answer = json_of(b"".join(self._pieces))
        except ValueError:
            return False
        if not isinstance(answer, dict):
            return False
        self._usage = parse_usage(answer.get("usage"))
        return True

    def outcome(self, ending: Ending) -> Outcome:
        """The attempt, told as a value."""
        return Outcome(
            ending=ending,
            status=self._status,
            started=self._started,
            ttft_seconds=None if self._first_byte_at is None else self._first_byte_at - self._began_at,
            seconds=self.now() - self._began_at,
            usage=self._usage,
            answer=self._answer if self._room >= 0 else (),
            streamed=self._streamed,
            problem=self.problem,
        )


_BROKEN_OFF: Mapping[Ending, tuple[str, str, type[GatewayError]]] = {
    Ending.TIMED_OUT: ("The replica stayed silent too long", "replica_timeout", UpstreamTimeout),
    Ending.EXPIRED: ("The time that the request may take is over", "deadline_exceeded", DeadlineExceeded),
    Ending.INTERRUPTED: ("The gateway is shutting down", "shutting_down", ShuttingDown),
}
_REPLICA_FAILED = ("The replica broke off", "replica_disconnected", UpstreamFailed)


def broken_off(ending: Ending) -> bytes:
    """The last events of a stream that was not finished: what happened, in the API's shape, then the end mark."""
    reason, code, kind = _BROKEN_OFF.get(ending, _REPLICA_FAILED)
    error = {
        "message": f"{reason}; the answer is incomplete. Send the request again.",
        "type": kind.type,
        "param": None,
        "code": code,
    }
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"
