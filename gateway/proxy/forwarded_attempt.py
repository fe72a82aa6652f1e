"""What the forwarder reads of an attempt and reports to it, and the limits of every answer."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.proxy.request_body import EngineBody
from gateway.proxy.resume.joined_stream import ReopenedStream


class ForwardedAttempt(Protocol):
    """What one attempt sends, how long it may take, and what is added to its answer. It gets what happens meanwhile.

    No method may raise or wait.

    Attributes:
        body: Makes the body to send.
        salt: The ``cache_salt`` of the request's prefix space; None leaves the client's own.
        own_headers: Headers that the gateway adds to the answer.
        trace_headers: Sent in place of the client's ``traceparent`` and ``tracestate``; None leaves those.
        deadline: When the request times out, in the running loop's time (monotonic seconds).
        expected_seconds: See ``InflightRequest``.
        begun: Whether the client has the head, and perhaps more of the stream, already, from another replica.
        is_retry: Whether another replica has failed the request.
        seam: Rewrites the stream for a client that has another one's first events; None: it is sent as it comes.
    """

    body: EngineBody
    salt: str | None
    own_headers: Sequence[tuple[bytes, bytes]]
    trace_headers: Sequence[tuple[bytes, bytes]] | None
    deadline: float
    expected_seconds: float
    begun: bool
    is_retry: bool
    seam: ReopenedStream | None

    def retry_after_seconds(self) -> int:
        """Whole seconds to wait before the next try, for an answer of 429 without ``retry-after``."""
        ...

    def on_content(self) -> None:
        """The first content of a stream has come, or a large body: the prompt is computed, and no retry follows."""
        ...


class AnswerLimits(msgspec.Struct, frozen=True):
    """Limits of every answer.

    Attributes:
        first_byte_timeout_seconds: Maximum wait for the first content of a stream, or the first byte of another answer.
        chunk_timeout_seconds: Maximum pause of the replica within an answer; records of a stream without data are none.
        max_answer_bytes: Answers up to this size are kept until the request is settled.
    """

    first_byte_timeout_seconds: float
    chunk_timeout_seconds: float
    max_answer_bytes: int
