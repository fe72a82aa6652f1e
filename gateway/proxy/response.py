"""Passes one answer from a replica to the client, checks that it is complete, and ends it."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.engines import parse_usage
from gateway.fleet.failures import REFUSALS, RETRIED, refusal
from gateway.http_client import Broken, HttpExchange, NotConnected, TransportError
from gateway.proxy.endings import broken_off, ending_of_cancellation
from gateway.proxy.forwarded_attempt import AnswerLimits, ForwardedAttempt
from gateway.proxy.headers import client_headers
from gateway.proxy.resume.sent_text import adds_content
from gateway.proxy.sse import EventFilter, is_plain, json_of
from gateway.proxy.usage_scan import UsageScan

# Looking up a member of an enum takes as long as five calls.
_OK = int(HTTPStatus.OK)
_COMPLETE = Ending.COMPLETE
_CLIENT_GONE = Ending.CLIENT_GONE

_RETRY_AFTER = b"retry-after"
_UNENCODED = (b"identity", b"")

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

_MAX_REPARSED_BYTES = 2**20
"""A body up to this size is parsed with Python's parser if the fast one refuses it, which is right for NaN. Of a larger
one the encoding is not checked either."""

_UNBUFFERED = (b"x-accel-buffering", b"no")
"""nginx with its defaults would hold a stream back; other clients ignore it."""


class _Body(msgspec.Struct):
    usage: Any = None


_body_decoder = msgspec.json.Decoder(_Body)


class ResponseRelay:
    """Passes one response on: the ``ResponseReceiver`` of an attempt, and its ``InflightRequest``.

    ``Forwarder.forward`` waits for ``ended``; ``finish`` then writes the end of the response to the client. While the
    client reads more slowly than the replica sends, the exchange is paused, and what was received is held.

    Args:
        request: The request.
        sink: Receives the answer.
        attempt: The attempt; gets what happens during it.
        limits: The limits.

    Attributes:
        sent_at: See ``InflightRequest``.
        last_byte_at: See ``InflightRequest``.
        expected_seconds: See ``InflightRequest``.
        content_at: See ``InflightRequest``; of an answer with status 200 that is not a stream its first byte.
        client_key: Whether the replica got the client's own key, which it may refuse.
        until: When the replica is silent for too long, in the loop's time. While it is paused because the client does
            not read, only the deadline counts: the connection of the client has a limit of its own.
        status: Status of the answer; None before its head was received.
        started: Whether the client has got anything.
        problem: Description of the replica's failure, for the log.
        ended: How the exchange with the replica ended; raises what is no failure of the replica.
        ending: How the answer ended; valid after ``received``.
        exchange: The exchange; None before it is sent.
    """

    _filter: EventFilter
    """Of a stream; made with its head."""

    def __init__(self, request: ChatRequest, sink: Sink, attempt: ForwardedAttempt, limits: AnswerLimits) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._request = request
        self._sink = sink
        self._attempt = attempt
        self._limits = limits
        self._bytes_left = limits.max_answer_bytes
        self._pause_seconds = limits.chunk_timeout_seconds
        self._deadline = deadline = attempt.deadline
        self.sent_at = self.last_byte_at = now = loop.time()
        self.until = self._first_until = min(now + limits.first_byte_timeout_seconds, deadline)
        self.content_at: float | None = None
        self.expected_seconds = attempt.expected_seconds
        self.client_key = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._streamed = False
        self._body: bytes | bytearray = bytearray()
        self._scan: UsageScan | None = None
        self._length: bytes | None = None
        self._answer: bytes | bytearray = bytearray()
        self._usage: Usage | None = None
        self._rest = b""
        self._parts: deque[bytes] = deque()  # received and not passed on yet
        self.status: int | None = None
        self.started = False
        self.problem = ""
        self.ending = _COMPLETE
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self.exchange: HttpExchange | None = None

    # ResponseReceiver

    def response_begun(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``ResponseReceiver``.

        Raises:
            Broken: the body has an encoding that was not requested.
        """
        self.status = status
        named = dict(reversed(headers))  # of several with one name the first one counts
        own, self._location = self._attempt.own_headers, named.get(b"location", b"").decode("latin-1")
        self._length = named.get(b"content-length")
        if status == _OK and named.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            self._streamed = True
            self._filter = EventFilter(keep_usage=self._request.usage_wanted, seam=self._attempt.seam)
            own = (*own, _UNBUFFERED)
        self._headers = client_headers(headers, own)
        if status != _OK:
            return
        encoding = named.get(b"content-encoding", b"")
        if encoding.lower() not in _UNENCODED:
            # It was not requested, and a few bytes of it may decompress to any size.
            raise Broken(f"the answer is compressed (content-encoding: {encoding.decode('latin-1')[:40]})")

    def body_received(self, data: bytes, chunk: bytes | None = None) -> None:
        """See ``ResponseReceiver``.

        Raises:
            Broken: it cannot be a part of an answer.
        """
        now = self._loop.time()
        if not self._streamed:
            self.last_byte_at = now
            if self.status == _OK:
                self.content_at = self.content_at or now
            self._answers(now)
            self._body += data
            if self._scan is not None or len(self._body) > _MAX_HELD_BYTES:
                self._pass_on()
            return
        size = len(data)
        if self._bytes_left > 0:
            self._bytes_left -= size
            self._answer += data
        sink = self._sink
        if self._filter.at_event and is_plain(data):
            self.last_byte_at = now
            if self.content_at is not None:  # as ``_answers``, without a call
                until = now + self._pause_seconds
                self.until = until if until < self._deadline else self._deadline  # noqa: FURB136 - min() is slow
            elif adds_content(data):
                self._content_came(now)
            if not self.started:
                self._start()
            sink.write(data, more=True, chunk=chunk)
        elif size <= _FILTERED_AT_ONCE or data.count(b"\n") + data.count(b"\r") <= _MAX_LINES:
            self._filtered(data)
        else:
            self._parts.extend(_divided(data, _FILTERED_AT_ONCE))
            self._send_parts()
            return
        if sink.congested:
            self._wait_for_client()

    def response_complete(self) -> None:
        """See ``ResponseReceiver``."""
        if not self.ended.done():
            self.ended.set_result(_COMPLETE)

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

    def time_over(self, now: float) -> None:
        """Nothing was received for too long: ``until`` is over at ``now``, in the loop's time. Called once."""
        self._end(Ending.EXPIRED if now >= self._deadline else Ending.TIMED_OUT)

    def call_back(self, problem: str) -> None:
        """See ``InflightRequest``."""
        if not self.ended.done():
            self.problem = problem
            self._end(Ending.BROKEN)

    # Passing on

    def _answers(self, now: float) -> None:
        """The replica works at the answer: the limit of a pause begins anew."""
        self.until = min(now + self._pause_seconds, self._deadline)

    def _content_came(self, now: float) -> None:
        self.content_at = now
        self._answers(now)
        self._attempt.on_content()

    def _filtered(self, data: bytes) -> None:
        """Filter a part of a stream, and pass the result on."""
        out = self._filter.feed(data)
        if not self._filter.silent:
            self.last_byte_at = now = self._loop.time()
            if self.content_at is not None:
                self._answers(now)
            elif self._filter.content:
                self._content_came(now)
        if out:
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
            if self._attempt.begun or self.status in RETRIED:
                raise Broken(f"the answer has more than {_MAX_HELD_BYTES >> 20} MiB")
            self._attempt.on_content()
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
        if self._sink.congested:
            self._wait_for_client()
        elif self._parts:
            self._pause()
            self._loop.call_soon(self._go_on)

    def _wait_for_client(self) -> None:
        self.until = self._deadline
        self._pause()
        self._sink.on_writable(self._go_on)

    def _pause(self) -> None:
        if self.exchange is not None:
            self.exchange.pause()

    def _go_on(self) -> None:
        """The client reads again, or it is the turn of the next part."""
        if self.ended.done():
            return
        self._answers(self._loop.time())
        if self.content_at is None:
            self.until = max(self.until, self._first_until)
        try:
            if self._parts:
                self._send_parts()
        except Exception as error:  # noqa: BLE001 - as if the exchange had raised it
            self.failed(error)
            return
        if not self._parts and not self._sink.congested and self.exchange is not None:
            self.exchange.resume()

    # The end

    def received(self, ending: Ending) -> None:
        """The replica's answer is over: decide how it ended. The client has not got the end of the answer yet.

        Args:
            ending: How the exchange with the replica ended.
        """
        if self._streamed:
            self._rest = self._filter.finish()
            self._usage = self._filter.usage
        if ending is _COMPLETE:
            if not self._is_whole():
                ending, self.problem = Ending.BROKEN, "the answer is not whole"
            elif self.status in REFUSALS and self._scan is None:
                model, body = self._request.model, bytes(self._body)
                self.problem = refusal(self.status or 0, body, model, self._location, client_key=self.client_key)
                ending = Ending.REFUSED if self.problem else ending
        elif self._streamed and ending is not _CLIENT_GONE and self._is_whole():
            ending, self.problem = _COMPLETE, ""  # only the end of the HTTP answer is missing
        self.ending = ending

    async def finish(self) -> Outcome:
        """Write the end of the answer to the client, or an error event, and return the final outcome."""
        if self._sink.congested and self.ending is not _CLIENT_GONE:
            self.ending = await self._client_reads(self.ending)
        if self.ending is not _CLIENT_GONE:
            self._write_ending(self.ending)
        return self.outcome()

    def outcome(self) -> Outcome:
        """The outcome as far as the client has got the answer."""
        return Outcome(
            ending=self.ending,
            status=self.status,
            started=self.started,
            ttft_seconds=None if self.content_at is None or not self._streamed else self.content_at - self.sent_at,
            seconds=self._loop.time() - self.sent_at,
            usage=self._usage,
            answer=(bytes(self._answer),) if self._answer and self._bytes_left >= 0 else (),
            streamed=self._streamed,
            problem=self.problem,
        )

    async def _client_reads(self, ending: Ending) -> Ending:
        """Wait until the client has read what was written, or its connection ends. Returns the ending, which may be
        another one then."""
        writable = asyncio.Event()
        self._sink.on_writable(writable.set)
        try:
            await writable.wait()
        except asyncio.CancelledError:
            return ending_of_cancellation(self._sink)
        return ending

    def _write_ending(self, ending: Ending) -> None:
        if self._scan is not None:
            # Of a body that broke off the connection is closed before its end: there is no other sign in a JSON text.
            if ending is _COMPLETE:
                self._write(b"", more=False)
        elif self._streamed and ending is _COMPLETE:
            self._write(self._rest, more=False)
        elif self.started:
            # An incomplete event at the end of a broken stream would merge with the error event.
            self._write(broken_off(ending), more=False)
        elif self._attempt.begun:
            # Status and headers are sent: an error event is the only way left to report the failure.
            self._sink.write(broken_off(ending), more=False)
        elif ending is _COMPLETE and self.status is not None:
            self._write_whole(self.status, bytes(self._body))

    def _write(self, data: bytes, *, more: bool) -> None:
        """Send events, or a part of a large body, to the client."""
        if not self.started:
            self._start()
        self._sink.write(data, more=more)

    def _start(self) -> None:
        assert self.status is not None
        self.started = True
        if not self._attempt.begun:
            self._sink.start(self.status, self._headers)

    def _write_whole(self, status: int, body: bytes) -> None:
        """Send an answer that is not a stream."""
        self.started = True
        self._headers.append((b"content-length", b"%d" % len(body)))
        if status == _OK:
            self._answer = body if len(body) <= self._bytes_left else b""
        elif status in (429, 529) and all(name != _RETRY_AFTER for name, _ in self._headers):
            self._headers.append((_RETRY_AFTER, b"%d" % self._attempt.retry_after_seconds()))
        self._sink.start(status, self._headers)
        self._sink.write(body, more=False)

    def _is_whole(self) -> bool:
        """Whether an answer that is complete in HTTP is complete in content: last event of a stream, or a JSON
        object."""
        if self.status != _OK:
            return (self.status or 0) >= HTTPStatus.MULTIPLE_CHOICES  # no other success is an answer
        if self._streamed:
            return self._filter.done
        if self._scan is not None:
            self._usage = self._scan.finish()
            return True
        try:
            self._body = body = bytes(self._body)
            self._usage = parse_usage(_usage_of(body))
        except ValueError:
            return False
        return True


def _divided(data: bytes, size: int) -> Iterable[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _usage_of(body: bytes) -> object:
    """The ``usage`` member of a JSON object. Raises ValueError if the body is none."""
    is_short = len(body) <= _MAX_REPARSED_BYTES
    try:
        if is_short:
            body.decode()  # the decoder does not look into strings that it skips
        return _body_decoder.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if not is_short:
            # Perhaps valid for Python's parser, which would stop all other requests meanwhile.
            if body.lstrip().startswith(b"{") and body.rstrip().endswith(b"}"):
                return None
            raise ValueError("not an object") from None
    answer = json_of(body)
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    return answer.get("usage")
