"""The outcome of one attempt at a replica."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine reports them.

    Attributes:
        prompt_tokens: Over all prompts of the request.
        completion_tokens: Over all choices.
        cached_tokens: Prompt tokens taken from the cache; None if the engine does not say.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


class Ending(StrEnum):
    """How a request at a replica ended."""

    COMPLETE = "complete"
    """The complete answer reached the client, with any status."""
    NOT_CONNECTED = "not_connected"
    """No connection to the replica: nothing was computed, another replica may take it."""
    BROKEN = "broken"
    """The replica broke the connection, sent an invalid answer, or went down meanwhile."""
    TIMED_OUT = "timed_out"
    """The replica stayed silent too long."""
    REFUSED = "refused"
    """The replica refused the gateway, not the client: its key, its path, or the whole model. Nothing was computed."""
    EXPIRED = "expired"
    """The timeout of the request expired, set by client or configuration."""
    INTERRUPTED = "interrupted"
    """The gateway is shutting down; the upstream request was aborted."""
    CLIENT_GONE = "client_gone"
    """The client closed its connection; the upstream request was aborted."""


class FailureStage(StrEnum):
    """When a replica failed a request, as ``gateway_failovers_total`` counts it."""

    CONNECT = "connect"
    """No connection could be made."""
    FIRST_BYTE = "first_byte"
    """It broke off, fell silent or went down before the client had got any content."""
    STATUS = "status"
    """It, or a proxy in front of it, answered that it does not work: 502, 503 or 504."""
    BUSY = "busy"
    """It answered 429, or 529."""
    REFUSED = "refused"
    """It refused the gateway: its key or its path, with a redirect, or because it has not loaded the model."""
    STREAM = "stream"
    """It broke off, fell silent or went down in the middle of a stream."""


class Outcome(msgspec.Struct, frozen=True):
    """The end of one attempt.

    Attributes:
        ending: How it ended.
        status: Status the replica answered with; None if it never did.
        started: Whether anything of the answer went to the client.
        ttft_seconds: From dispatch to the first content of the answer; None if it never came, or if the answer was not
            a stream, whose first byte comes with its last.
        seconds: From dispatch to the end.
        usage: What the engine reported, if it did.
        answer: Raw body of a 200 answer (the JSON, or the stream's events) up to a limit; empty beyond it.
        streamed: Whether the answer was a stream of events.
        problem: What was wrong with the replica or its answer, in words for the log; empty where nothing was.
    """

    ending: Ending
    status: int | None
    started: bool
    ttft_seconds: float | None
    seconds: float
    usage: Usage | None
    answer: Sequence[bytes] = ()
    streamed: bool = False
    problem: str = ""

    @property
    def has_content(self) -> bool:
        """Whether the client has got content: another replica could only continue the answer."""
        return self.ttft_seconds is not None if self.streamed else self.started
