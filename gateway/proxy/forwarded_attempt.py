"""What the forwarder reads of an attempt and reports to it, and the limits of every answer."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.proxy.request_body import EngineBody


class ForwardedAttempt(Protocol):
    """What one attempt sends, how long it may take, and what is added to its answer. It gets what happens meanwhile.

    No method may raise or wait.
    """

    @property
    def body(self) -> EngineBody:
        """Makes the body to send."""
        ...

    @property
    def salt(self) -> str | None:
        """The ``cache_salt`` of the request's prefix space; None leaves the client's own."""
        ...

    @property
    def own_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Headers that the gateway adds to the answer."""
        ...

    @property
    def trace_headers(self) -> Sequence[tuple[bytes, bytes]] | None:
        """Sent in place of the client's ``traceparent`` and ``tracestate``; None leaves those."""
        ...

    @property
    def deadline(self) -> float:
        """When the request times out, in the running loop's time (monotonic seconds)."""
        ...

    @property
    def expected_seconds(self) -> float:
        """See ``InflightRequest``."""
        ...

    @property
    def begun(self) -> bool:
        """Whether the client has the beginning of the stream already, from another replica."""
        ...

    def retry_after_seconds(self) -> int:
        """Whole seconds to wait before the next try, for an answer of 429 without ``retry-after``."""
        ...

    def on_first_byte(self) -> None:
        """The first byte of a stream has come: the prompt is computed."""
        ...

    def on_response_started(self) -> None:
        """The client is about to get the first event of a stream, or the first part of a large body."""
        ...


class AnswerLimits(msgspec.Struct, frozen=True):
    """Limits of every answer.

    Attributes:
        first_byte_timeout_seconds: Maximum wait for the first byte of an answer's body.
        chunk_timeout_seconds: Maximum pause of the replica within an answer.
        max_answer_bytes: Answers up to this size are kept until the request is settled.
    """

    first_byte_timeout_seconds: float
    chunk_timeout_seconds: float
    max_answer_bytes: int
