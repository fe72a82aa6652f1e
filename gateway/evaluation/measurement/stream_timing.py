"""Sends one streamed request and measures it, on the gateway's own HTTP client.

Times are taken in the read of the socket, before anything is parsed. A general-purpose client adds a millisecond or
more between the socket and its caller, which is a large part of a warm TTFT; and the event loop's own clock has steps
of a millisecond (uvloop).
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.explanation import MEASUREMENT
from gateway.core.outcome import Usage
from gateway.engines import parse_usage, payloads
from gateway.http_client import HttpClient, NotConnected, Origin

_LONGEST_EVENT = 4 * 1024 * 1024
_LONGEST_ERROR = 64 * 1024
_SHOWN_CHARS = 240
_TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "text")


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """How a request went. Times are those of ``time.perf_counter``.

    Attributes:
        sent_at: When it was sent.
        first_token_at: When the first token came; None if none came.
        ended_at: When the answer was complete, or failed.
        usage: The engine's counts; None without them.
        status: HTTP status; 0 without an answer.
        error: Why it failed, one line without the key; empty if it did not.
    """

    sent_at: float
    first_token_at: float | None
    ended_at: float
    usage: Usage | None
    status: int
    error: str


class StreamTimer:
    """Measures requests to any number of servers.

    Args:
        connect_seconds: Limit for making a connection.
        timeout_seconds: Limit for a whole answer.
        key: API key, sent as a bearer token; empty for none.
    """

    def __init__(self, connect_seconds: float, timeout_seconds: float, key: str = "") -> None:
        self._http = HttpClient(connect_seconds)
        self._timeout = timeout_seconds
        self._key = key
        self._headers = [(b"content-type", b"application/json"), (b"x-client", MEASUREMENT.encode())]
        if key:
            self._headers.append((b"authorization", b"Bearer " + key.encode()))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    async def fetch_models(self, origin: Origin) -> tuple[int, bytes]:
        """Status and body of ``GET /v1/models``. Raises ``TransportError``."""
        return await self._http.fetch("GET", origin, "/v1/models", self._headers, timeout_seconds=self._timeout)

    async def send(
        self, origin: Origin, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> StreamTiming:
        """Send a request and wait for the end of its answer. Never raises for what a server does.

        Args:
            origin: The server.
            path: Path of the endpoint.
            body: The body, which asks for a stream with usage.
            headers: In addition to those of every request.
        """
        answer = _Answer()
        sent_at = time.perf_counter()
        exchange = self._http.send("POST", origin, path, [*self._headers, *headers], body, answer)
        try:
            async with asyncio.timeout(self._timeout):
                await answer.over
        except TimeoutError:
            answer.error = answer.error or f"no complete answer within {self._timeout:g} s"
        finally:
            exchange.close()
        return StreamTiming(
            sent_at,
            answer.first_token_at,
            answer.ended_at or time.perf_counter(),
            answer.usage,
            answer.status,
            one_line(answer.error, self._key),
        )


def one_line(text: str, key: str = "") -> str:
    """A message of a server for the terminal: one line of printable characters, bounded, without the key."""
    if key:
        text = text.replace(key, "(key)")
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * _SHOWN_CHARS])
    return " ".join(plain.split())[:_SHOWN_CHARS]


def error_message(status: int, body: bytes) -> str:
    """An error answer in words: the status, and the message if the body has one."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    return f"status {status}: {_message(document) or body[:_SHOWN_CHARS].decode(errors='replace')}".rstrip(": ")


def _message(document: Any) -> str:
    """The message of an OpenAI error, or of FastAPI's; empty if there is none."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error", document.get("detail", document.get("message")))
    found = error.get("message") if isinstance(error, dict) else error
    return found if isinstance(found, str) else ""


class _Answer:
    """A ``ResponseReceiver`` that times a stream of events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._first_choice_at: float | None = None
        self._is_done = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.usage: Usage | None = None
        self.error = ""

    def response_begun(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``ResponseReceiver``."""
        self.status = status
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        if status == 200 and not kind.lower().startswith(b"text/event-stream"):
            self.error = "it answered without a stream, although one was asked for"

    def body_received(self, data: bytes, chunk: bytes | None = None) -> None:  # noqa: ARG002
        """See ``ResponseReceiver``."""
        now = time.perf_counter()
        if self.status != 200 or self.error:
            self._rest += data[: _LONGEST_ERROR - len(self._rest)]
            return
        # Only the new part can hold the end of an event, up to the byte before it.
        start = max(len(self._rest) - 1, 0)
        self._rest += data.replace(b"\r\n", b"\n") if b"\r" in data else data
        end = self._rest.rfind(b"\n\n", start)
        if end >= 0:
            events = bytes(self._rest[:end])
            del self._rest[: end + 2]
            self._is_done = self._is_done or events.endswith(b"data: [DONE]")
            for payload in payloads(events):
                self._take(payload, now)
        elif len(self._rest) > _LONGEST_EVENT:
            self._fail(f"an event of the stream has more than {_LONGEST_EVENT:,} bytes")

    def response_complete(self) -> None:
        """See ``ResponseReceiver``."""
        self.ended_at = time.perf_counter()
        if self.status != 200:
            self.error = error_message(self.status, bytes(self._rest))
        elif not self._is_done:
            self._fail("the stream ended before its end mark ([DONE])")
        if self.first_token_at is None:
            # A token without text, such as the end of the answer.
            self.first_token_at = self._first_choice_at
        if self.first_token_at is None:
            self._fail("the stream ended without a token")
        self._end()

    def failed(self, error: Exception) -> None:
        """See ``ResponseReceiver``."""
        said = str(error) or type(error).__name__
        self._fail(f"no connection: {said}" if isinstance(error, NotConnected) else said)
        self._end()

    def _end(self) -> None:
        self.ended_at = self.ended_at or time.perf_counter()
        if not self.over.done():
            self.over.set_result(None)

    def _fail(self, why: str) -> None:
        self.error = self.error or why

    def _take(self, payload: bytes, now: float) -> None:
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            self._fail("an event of the stream is not JSON")
            return
        if not isinstance(event, dict):
            self._fail("an event of the stream is no object")
            return
        if event.get("error"):
            self._fail(f"the stream broke: {_message(event) or 'an error without a message'}")
            return
        if event.get("usage"):
            self.usage = parse_usage(event["usage"])
        choices = event.get("choices")
        if self.first_token_at is None and isinstance(choices, list) and choices:
            self._first_choice_at = now if self._first_choice_at is None else self._first_choice_at
            if any(map(_has_token, choices)):
                self.first_token_at = now


def _has_token(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    return any((delta if isinstance(delta, dict) else choice).get(name) for name in _TOKEN_FIELDS)
