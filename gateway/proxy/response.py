"""Passes one answer from a replica to the client, checks that it is complete, and ends it."""

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.engines import parse_usage
from gateway.fleet.replica import InflightRequest
from gateway.http_client import Broken, HttpExchange, NotConnected, TransportError
from gateway.proxy.endings import broken_off, ending_of_cancellation
from gateway.proxy.forward_options import AnswerLimits, AttemptEvents, ForwardOptions
from gateway.proxy.headers import client_headers
from gateway.proxy.sse import EventFilter, is_plain, json_of
from gateway.proxy.usage_scan import UsageScan
from gateway.tasks import in_task

_DONE = re.compile(rb"[\r\n]data: ?\[DONE\]")
"""The last event of every stream."""

_TAIL = 64
"""Bytes at the end of a stream that are searched for it; a proxy's comment may follow it."""

_RETRY_AFTER = b"retry-after"

_MAX_HELD_BYTES = 16 * 2**20
"""A response that is not a stream is held up to this size until it is complete, so that it can be retried if it breaks
off. A larger one is passed on as it arrives: computing it again elsewhere would give the same bytes. Sixty
choices of 30,000 tokens take 12 MiB; ``prompt_logprobs`` of a long prompt, or many embeddings, take more."""

_PART_BYTES = 256 * 1024
"""A held response is sent in parts of this size, so that progress of a slow client is visible."""

_FILTERED_AT_ONCE = 4 * 1024
"""Bytes of a stream of very short lines that are filtered before other tasks run."""

_MAX_LINES = 512
"""Lines of a longer piece that are filtered at once. A piece this long of ordinary events has far fewer."""

_MAX_PARSED_BYTES = 2**20
"""A larger body is checked without building its values, which takes a third of the time and no memory."""

_MAX_REPARSED_BYTES = 2**20
"""A body up to this size is parsed with Python's parser if the fast one refuses it, which is right for NaN."""

_RETRIED = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class _Body(msgspec.Struct):
    usage: Any = None


_body_decoder = msgspec.json.Decoder(_Body)


class ResponseRelay:
    """Passes one response on: the ``ResponseReceiver`` of an attempt.

    ``Forwarder.forward`` waits for ``ended``; ``finish`` then writes the end of the response to the client. While the
    client reads more slowly than the replica sends, the exchange is paused, and what was received is held.

    Args:
        request: The request.
        sink: Receives the answer.
        options: Those of the attempt.
        events: Gets what happens during the attempt.
        limits: The limits.

    Attributes:
        request: The same.
        options: The same.
        sink: The same.
        problem: Description of the replica's failure, for the log.
        ended: How the exchange with the replica ended; raises what is no failure of the replica.
        flight: The attempt in flight.
        exchange: The exchange; None before it is sent.
    """

    def __init__(
        self, request: ChatRequest, sink: Sink, options: ForwardOptions, events: AttemptEvents, limits: AnswerLimits
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.request = request
        self.sink = sink
        self.options = options
        self._events = events
        self._limits = limits
        self._filter = EventFilter(keep_usage=request.usage_wanted)
        self._bytes_left = limits.max_answer_bytes
        self._began_at = now = loop.time()
        self._first_byte_at: float | None = None
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._streamed = False
        self._started = False
        self._body = bytearray()
        self._scan: UsageScan | None = None
        self._length: bytes | None = None
        self._answer = bytearray()
        self._usage: Usage | None = None
        self._tail = b"\n"
        self._rest = b""
        self._parts: deque[bytes] = deque()  # received and not passed on yet
        self._ending = Ending.COMPLETE
        self.problem = ""
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self._pause_seconds = limits.chunk_timeout_seconds
        self._deadline = options.deadline
        self.flight = InflightRequest(loop, now, self._time_over)
        self._first_byte_until = min(now + limits.first_byte_timeout_seconds, options.deadline)
        self._in_prefill = options.prefill_seconds is not None
        if options.prefill_seconds is None:
            self._wait_for_first_byte(now)
        else:
            self.flight.wait_until(min(now + options.prefill_seconds, self._first_byte_until))
        self.exchange: HttpExchange | None = None

    def close(self) -> None:
        """The attempt is over: end its exchange, if it has not ended."""
        self.flight.cancel()
        if self.exchange is not None:
            self.exchange.close()

    # ResponseReceiver

    def response_begun(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``ResponseReceiver``.

        Raises:
            Broken: the body has an encoding that was not requested.
        """
        self._status = status
        content_type, encoding = b"", b"identity"
        for name, value in reversed(headers):  # of several with one name the first one counts
            if name == b"content-type":
                content_type = value
            elif name == b"content-encoding":
                encoding = value
            elif name == b"content-length":
                self._length = value
        self._streamed = status == 200 and content_type.startswith(b"text/event-stream")
        self._headers = client_headers(headers, self.options.own_headers)
        if status == 200 and encoding.lower() not in (b"identity", b""):
            # It was not requested, and a few bytes of it may decompress to any size.
            raise Broken(f"the answer is compressed (content-encoding: {encoding.decode('latin-1')[:40]})")

    def body_received(self, data: bytes, chunk: bytes | None = None) -> None:
        """See ``ResponseReceiver``.

        Raises:
            Broken: it cannot be a part of an answer.
        """
        now = self._loop.time()
        flight = self.flight
        flight.last_byte_at = now
        flight.deadline = min(now + self._pause_seconds, self._deadline)
        if self._first_byte_at is None:
            self._in_prefill = False
            self._extend(now)
            if not self._streamed:
                self._body += data
                if self._scan is not None or len(self._body) > _MAX_HELD_BYTES:
                    self._pass_on()
                return
            self._first_byte_at = now
            self._events.on_first_byte()
        size = len(data)
        if self._bytes_left > 0:
            self._bytes_left -= size
            self._answer += data
        if self._filter.at_event and is_plain(data):
            self._tail = data if size >= _TAIL else self._tail[-_TAIL:] + data
            if not self._started:
                self._start()
            self.sink.write(data, more=True, chunk=chunk)
        elif size <= _FILTERED_AT_ONCE or data.count(b"\n") + data.count(b"\r") <= _MAX_LINES:
            self._filtered(data)
        else:
            self._parts.extend(_divided(data, _FILTERED_AT_ONCE))
            self._send_parts()
            return
        if self.sink.congested:
            self._wait_for_client()

    def response_complete(self) -> None:
        """See ``ResponseReceiver``."""
        self._end(Ending.COMPLETE)

    def failed(self, error: Exception) -> None:
        """See ``ResponseReceiver``."""
        if isinstance(error, TransportError):
            self.problem = str(error)
            self._end(Ending.NOT_CONNECTED if isinstance(error, NotConnected) else Ending.BROKEN)
        elif not self.ended.done():
            self.ended.set_exception(error)

    def _end(self, ending: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)

    def _extend(self, now: float) -> None:
        """From now on the replica, or a client that does not read, has the time of one pause."""
        self.flight.wait_until(min(now + self._pause_seconds, self._deadline))

    def _wait_for_first_byte(self, now: float) -> None:
        # The nearer time first: the loop's timer is set once then.
        self._extend(now)
        self.flight.wait_until(self._first_byte_until)

    def _time_over(self) -> None:
        """The prefill should have ended, the replica was silent for too long, or its health checks fail."""
        if self.flight.called_back:
            self.problem = "its health checks fail"
            self._end(Ending.BROKEN)
        elif self._in_prefill:
            self._in_prefill = False
            self._events.prefill_done()
            self._wait_for_first_byte(self._loop.time())
        elif self._started and self.sink.congested:
            # The replica sends, but the client does not read: treat a client that slow as disconnected.
            self._end(Ending.CLIENT_GONE)
        else:
            self._end(Ending.EXPIRED if self._loop.time() >= self.options.deadline else Ending.TIMED_OUT)

    # Passing on

    def _filtered(self, data: bytes) -> None:
        """Filter a part of a stream, and pass the result on."""
        if out := self._filter.feed(data):
            self._tail = out if len(out) >= _TAIL else self._tail[-_TAIL:] + out
            self._write(out, more=True)
        if self._filter.garbled:
            raise Broken("something in the stream is no event")

    def _pass_on(self) -> None:
        """Begin to send a large body to the client: the held part now, all further pieces as they arrive.

        Raises:
            Broken: it cannot be sent, because the client has events of a stream already, or because it is a failure
                that another replica may make good.
        """
        if self._scan is None:
            if self.options.begun or self._status in _RETRIED:
                raise Broken(f"the answer has more than {_MAX_HELD_BYTES >> 20} MiB")
            self._scan = UsageScan()
            if self._length is not None:
                self._headers.append((b"content-length", self._length))
        body, self._body = bytes(self._body), bytearray()
        self._parts.extend(_divided(body, _PART_BYTES))
        self._send_parts()

    def _send_parts(self) -> None:
        """Pass on what is held: one part for each iteration of the event loop, while the client reads.

        Raises:
            Broken: it cannot be a part of an answer.
        """
        part = self._parts.popleft()
        if self._scan is not None:
            self._scan.feed(part)
            self._write(part, more=True)
        else:
            self._filtered(part)
        if self.sink.congested:
            self._wait_for_client()
        elif self._parts:
            self._pause()
            self._loop.call_soon(self._go_on)

    def _wait_for_client(self) -> None:
        self._pause()
        self.sink.on_writable(self._go_on)

    def _pause(self) -> None:
        if self.exchange is not None:
            self.exchange.pause()

    def _go_on(self) -> None:
        """The client reads again, or it is the turn of the next part."""
        if self.ended.done():
            return
        self._extend(self._loop.time())
        try:
            if self._parts:
                self._send_parts()
        except Exception as error:  # noqa: BLE001 - as if the exchange had raised it
            self.failed(error)
            return
        if not self._parts and not self.sink.congested and self.exchange is not None:
            self.exchange.resume()

    # The end

    def received(self, ending: Ending) -> Outcome:
        """The replica's answer is over. Returns the outcome; the client has not got the end of the answer yet.

        Args:
            ending: How the exchange with the replica ended.
        """
        self._rest = self._filter.finish()
        if ending is Ending.COMPLETE:
            if not self._is_whole():
                ending = Ending.BROKEN
                self.problem = "the answer is not whole"
        elif self._streamed and self._is_whole() and ending is not Ending.CLIENT_GONE:
            ending, self.problem = Ending.COMPLETE, ""  # only the end of the HTTP answer is missing
        if self._streamed:
            self._usage = self._filter.usage
        self._ending = ending
        return self._outcome(ending)

    async def finish(self) -> Outcome:
        """Write the end of the answer to the client, or an error event, and return the final outcome."""
        ending = self._ending
        if ending is not Ending.CLIENT_GONE and self.sink.congested:
            ending = await self._client_reads(ending)
        if ending is not Ending.CLIENT_GONE:
            self._write_ending(ending)
        return self._outcome(ending)

    async def _client_reads(self, ending: Ending) -> Ending:
        """Wait until the client has read what was written. Returns the ending, which may be another one then."""
        writable = asyncio.Event()
        self.sink.on_writable(writable.set)
        try:
            await in_task()
            # The replica is done: a client that does not read the end must not keep the connection in use.
            async with asyncio.timeout(self._limits.chunk_timeout_seconds):
                await writable.wait()
        except TimeoutError:
            return Ending.CLIENT_GONE
        except asyncio.CancelledError:
            return ending_of_cancellation(self.sink)
        return ending

    def _write_ending(self, ending: Ending) -> None:
        if self._scan is not None:
            # Of a body that broke off the connection is closed before its end: there is no other sign in a JSON text.
            if ending is Ending.COMPLETE:
                self._write(b"", more=False)
        elif self._streamed and ending is Ending.COMPLETE:
            self._write(self._rest, more=False)
        elif self._started:
            # An incomplete event at the end of a broken stream would merge with the error event.
            self._write(broken_off(ending), more=False)
        elif self.options.begun:
            # Status and headers are sent: an error event is the only way left to report the failure.
            self.sink.write(broken_off(ending), more=False)
        elif ending is Ending.COMPLETE and self._status is not None:
            self._write_whole(self._status, bytes(self._body))

    def _write(self, data: bytes, *, more: bool) -> None:
        """Send events, or a part of a large body, to the client."""
        if not self._started:
            self._start()
        self.sink.write(data, more=more)

    def _start(self) -> None:
        assert self._status is not None
        self._started = True
        self._events.on_response_started()
        self.sink.start(self._status, self._headers)

    def _write_whole(self, status: int, body: bytes) -> None:
        """Send an answer that is not a stream."""
        self._started = True
        self._headers.append((b"content-length", b"%d" % len(body)))
        if status == HTTPStatus.TOO_MANY_REQUESTS and all(name != _RETRY_AFTER for name, _ in self._headers):
            self._headers.append((_RETRY_AFTER, b"%d" % self.options.retry_after_seconds))
        self.sink.start(status, self._headers)
        self.sink.write(body, more=False)
        if status == HTTPStatus.OK:
            self._answer = bytearray(body if len(body) <= self._bytes_left else b"")

    def _is_whole(self) -> bool:
        """Whether an answer that is complete in HTTP is complete in content: last event of a stream, or a JSON
        object."""
        if self._status != HTTPStatus.OK:
            return self._status is not None
        if self._streamed:
            return _DONE.search(self._tail[-_TAIL:] + self._rest) is not None
        if self._scan is not None:
            self._usage = self._scan.finish()
            return True
        try:
            self._usage = parse_usage(_usage_of(bytes(self._body)))
        except ValueError:
            return False
        return True

    def _outcome(self, ending: Ending) -> Outcome:
        return Outcome(
            ending=ending,
            status=self._status,
            started=self._started,
            ttft_seconds=None if self._first_byte_at is None else self._first_byte_at - self._began_at,
            seconds=self._loop.time() - self._began_at,
            usage=self._usage,
            answer=(bytes(self._answer),) if self._answer and self._bytes_left >= 0 else (),
            streamed=self._streamed,
            problem=self.problem,
        )


def _divided(data: bytes, size: int) -> Iterable[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _usage_of(body: bytes) -> object:
    """The ``usage`` member of a JSON object. Raises ValueError if the body is none."""
    if len(body) > _MAX_PARSED_BYTES:
        try:
            return _body_decoder.decode(body).usage
        except (msgspec.DecodeError, RecursionError):
            if len(body) > _MAX_REPARSED_BYTES:
                # Perhaps valid for Python's parser, which would stop all other requests meanwhile.
                if body.lstrip().startswith(b"{") and body.rstrip().endswith(b"}"):
                    return None
                raise ValueError("not an object") from None
    answer = json_of(body)
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    return answer.get("usage")
