"""Send a request to a replica and its answer to the client."""

import asyncio
from collections.abc import Callable, Sequence

import orjson

from gateway.relay.body import asking_for_usage, salted
from gateway.relay.fleet import Replica
from gateway.relay.headers import client_headers, upstream_headers
from gateway.relay.http import HttpClient, NotConnected, TransportError
from gateway.relay.sse import EventFilter
from gateway.values.outcome import Ending, Outcome, Usage
from gateway.values.ports import Sink
from gateway.values.request import ChatRequest
from gateway.vendors import parse_usage


class Forwarder:
    """Forwards requests.

    Args:
        client: Connections to the replicas.
        forward_authorization: Whether a client's ``authorization`` travels on to replicas without one of their own.
        first_byte_timeout_seconds: Longest wait for the first byte of an answer's body.
        chunk_timeout_seconds: Silence inside an answer that is borne; it is ended at most an eighth later.
        max_answer_bytes: Answers up to this size are kept until the request is settled.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        forward_authorization: bool,
        first_byte_timeout_seconds: float,
        chunk_timeout_seconds: float,
        max_answer_bytes: int,
    ) -> None:
        self._client = client
        self._forward_authorization = forward_authorization
        self._first_byte_timeout = first_byte_timeout_seconds
        self._chunk_timeout = chunk_timeout_seconds
        self._max_answer_bytes = max_answer_bytes

    async def forward(
        self,
        request: ChatRequest,
        replica: Replica,
        rank: int,
        sink: Sink,
        *,
        salt: str | None,
        own_headers: Sequence[tuple[bytes, bytes]],
        trace_headers: Sequence[tuple[bytes, bytes]] | None,
        on_first_byte: Callable[[], None],
    ) -> Outcome:
        """Forward one request; never raises for what the replica or the client does.

        An answer that breaks after its beginning is ended with an error event. One that breaks before is not
        answered at all: ``Outcome.started`` is false and the caller decides what the client gets.

        Args:
            request: What the client sent.
            replica: Where it goes.
            rank: To which of its data-parallel ranks.
            sink: Where the answer goes.
            salt: Sent as ``cache_salt``, in place of the client's own; None leaves the body as it is.
            own_headers: Headers the gateway adds to the answer.
            trace_headers: Sent in place of the client's ``traceparent`` and ``tracestate``; None leaves those.
            on_first_byte: Called once when the first byte of a stream has come.
        """
        attempt = _Attempt(sink, own_headers, on_first_byte, request, self._max_answer_bytes)
        body = asking_for_usage(request.body, request.fields) if request.stream else request.body
        if salt is not None:
            body = salted(body, request.fields, salt)
        headers = upstream_headers(
            request.headers,
            request.request_id.encode(),
            replica.authorization,
            replica.rank_header(rank),
            trace_headers,
            forward_authorization=self._forward_authorization,
        )
        path = f"{request.endpoint}?{request.query.decode('latin-1')}" if request.query else request.endpoint
        ending = Ending.COMPLETE
        try:
            async with asyncio.timeout(self._first_byte_timeout) as timeout:
                async with self._client.request("POST", replica.origin, path, headers, body) as response:
                    await attempt.begin(response.status, response.headers)
                    reset_at = 0.0
                    while (piece := await response.read()) is not None:
                        if (now := attempt.now()) >= reset_at:
                            # Moving a timer costs as much as passing a piece on, so it is moved now and then, further.
                            timeout.reschedule(now + 1.125 * self._chunk_timeout)
                            reset_at = now + 0.125 * self._chunk_timeout
                        await attempt.piece(piece)
        except TransportError as error:
            ending = Ending.NOT_CONNECTED if isinstance(error, NotConnected) else Ending.BROKEN
        except TimeoutError:
            ending = Ending.TIMED_OUT
        except asyncio.CancelledError:
            ending = _ending_of_cancellation(sink)
        try:
            await attempt.end(ending)
        except asyncio.CancelledError:
            ending = _ending_of_cancellation(sink)
        return attempt.outcome(ending)


def _ending_of_cancellation(sink: Sink) -> Ending:
    """Inside ``except CancelledError``: the sink's reasons end the attempt, any other ends the task."""
    if not (sink.gone or sink.interrupted):
        raise  # noqa: PLE0704 - re-raises the CancelledError being handled
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    return Ending.CLIENT_GONE if sink.gone else Ending.INTERRUPTED


class _Attempt:
    """The state of one answer on its way."""

    def __init__(
        self,
        sink: Sink,
        own_headers: Sequence[tuple[bytes, bytes]],
        on_first_byte: Callable[[], None],
        request: ChatRequest,
        max_answer_bytes: int,
    ) -> None:
        self.now = asyncio.get_running_loop().time
        self._sink = sink
        self._own_headers = own_headers
        self._on_first_byte = on_first_byte
        self._filter = EventFilter(keep_usage=request.usage_wanted)
        self._room = max_answer_bytes
        self._began_at = self.now()
        self._first_byte_at: float | None = None
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._streamed = False
        self._started = False
        self._pieces: list[bytes] = []
        self._answer: list[bytes] = []
        self._usage: Usage | None = None

    async def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The head of the answer is there."""
        self._status = status
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        self._streamed = status == 200 and content_type.startswith(b"text/event-stream")
        self._headers = client_headers(headers, self._own_headers)
        if self._streamed:
            self._started = True
            await self._sink.start(status, self._headers)

    async def piece(self, data: bytes) -> None:
        """A piece of the body is there."""
        if not self._streamed:
            self._pieces.append(data)
            return
        if self._first_byte_at is None:
            self._first_byte_at = self.now()
            self._on_first_byte()
        if self._room > 0:
            self._room -= len(data)
            self._answer.append(data)
        out = self._filter.feed(data)
        if out:
            await self._sink.write(out, more=True)

    async def end(self, ending: Ending) -> None:
        """Nothing more will come."""
        if self._streamed:
            self._usage = self._filter.usage
            if ending is Ending.CLIENT_GONE:
                return
            rest = self._filter.finish()
            # What stands behind the last whole event of a broken stream would swallow the error event.
            await self._sink.write(rest if ending is Ending.COMPLETE else _broken_off(ending), more=False)
        elif ending is Ending.COMPLETE and self._status is not None:
            body = b"".join(self._pieces)
            self._started = True
            self._headers.append((b"content-length", str(len(body)).encode()))
            await self._sink.start(self._status, self._headers)
            await self._sink.write(body, more=False)
            if self._status == 200:
                self._answer = [body] if len(body) <= self._room else []
                self._usage = _usage_of(body)

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
        )


def _usage_of(body: bytes) -> Usage | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parse_usage(answer.get("usage")) if isinstance(answer, dict) else None


_BROKEN_OFF = {
    Ending.TIMED_OUT: ("The replica stayed silent too long", "replica_timeout"),
    Ending.INTERRUPTED: ("The gateway is shutting down", "shutting_down"),
}


def _broken_off(ending: Ending) -> bytes:
    """The last events of a stream that was not finished: what happened, in the API's shape, then the end mark."""
    reason, code = _BROKEN_OFF.get(ending, ("The replica broke the connection", "replica_disconnected"))
    error = {
        "message": f"{reason}; the answer is incomplete. Send the request again.",
        "type": "upstream_error",
        "param": None,
        "code": code,
    }
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"
