"""What an attempt sends, its limits, and who gets what happens during it."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.proxy.request_body import EngineBody


class AttemptEvents(Protocol):
    """Gets what happens during an attempt at a replica. Must not raise and must not wait."""

    def on_first_byte(self) -> None:
        """The first byte of a stream has come: the prompt is computed."""
        ...

    def prefill_done(self) -> None:
        """The estimated end of the prefill has come: the prompt should be computed by now."""
        ...

    def on_response_started(self) -> None:
        """The client is about to get the first event of a stream, or the first part of a large body."""
        ...


class ForwardOptions(msgspec.Struct, frozen=True):
    """What one attempt sends, how long it may take, and what is added to its answer.

    Attributes:
        body: Makes the body to send.
        salt: The ``cache_salt`` of the request's prefix space; None leaves the client's own.
        own_headers: Headers the gateway adds to the answer.
        trace_headers: Sent in place of the client's ``traceparent`` and ``tracestate``; None leaves those.
        deadline: When the request times out, in the running loop's time (monotonic seconds).
        retry_after_seconds: Added to an answer of 429 without ``retry-after``.
        prefill_seconds: Estimated time until the prompt is computed; None: the first byte will show it.
        begun: Whether the client has the beginning of the stream already, from another replica.
    """

    body: EngineBody
    salt: str | None
    own_headers: Sequence[tuple[bytes, bytes]]
    trace_headers: Sequence[tuple[bytes, bytes]] | None
    deadline: float
    retry_after_seconds: int
    prefill_seconds: float | None = None
    begun: bool = False


class AnswerLimits(msgspec.Struct, frozen=True):
    """Limits of every answer.

    Attributes:
        first_byte_timeout_seconds: Maximum wait for the first byte of an answer's body.
        chunk_timeout_seconds: Maximum pause within an answer; and how long the client may take to read what was
            written.
        max_answer_bytes: Answers up to this size are kept until the request is settled.
    """

    first_byte_timeout_seconds: float
    chunk_timeout_seconds: float
    max_answer_bytes: int
