"""A client's request: its body as bytes, and parsed."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from gateway.core.diagnosis import NamedRequest
from gateway.core.experiment_group import Assignment
from gateway.core.ids import ModelId, RequestId, Target
from gateway.core.tenant import EVERYBODY, Caller


class Endpoint(StrEnum):
    """The generation endpoints. The value is the path, as clients and engines know it."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


LONG_BODY_BYTES = 2 * 1024 * 1024
"""Longer bodies hold images rather than text: request records omit them, and streams free them."""

_READ_LATER = frozenset(
    {
        *("messages", "prompt", "n", "best_of", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
        *("logprobs", "prompt_logprobs", "echo", "cache_salt", "user"),
    }
)
"""Members that are read after the first event of an answer has been sent."""


class ChatRequest(msgspec.Struct, frozen=True):
    """One generation request.

    Attributes:
        endpoint: Which API was called.
        query: Query string as it came, without the question mark.
        body: The body as it came. Engines get this, not ``fields``.
        fields: The body parsed; only to be read.
        headers: The client's headers in their order, names in lower case, values as they came.
        model: ``fields["model"]``.
        stream: Whether the client asked for server-sent events.
        usage_wanted: Whether the client itself asked for the usage chunk of a stream.
        request_id: The client's, or one the gateway made.
        session: ``x-session-id``, or None.
        received_at: Monotonic seconds when the body was complete.
        caller: The authenticated caller.
        peer: Address it came from; empty if unknown.
        timeout_seconds: How long the client waits for the whole answer (``x-request-timeout``); None for not said.
        size: Bytes of the body as it came; also after ``drop_content``.
        dropped: Called with the number of bytes that are freed of the body as it came; None if they are not counted.
        warmup_target: The target whose cache the request is to fill; None for a client's request.
        assignment: Its group in the experiment; None outside of one.
        restores: Values of the client by the placeholders that stand for them in the prompt, to be put into the answer;
            None: the answer stays as it is.
        dialect: The API that the client speaks, if the request was translated from it; empty otherwise.
        compares: The earlier request to compare its prompt with; None if the client names none.
    """

    endpoint: Endpoint
    query: bytes
    body: bytes
    fields: Mapping[str, Any]
    headers: Sequence[tuple[bytes, bytes]]
    model: ModelId
    stream: bool
    usage_wanted: bool
    request_id: RequestId
    session: str | None
    received_at: float
    caller: Caller = EVERYBODY
    peer: str = ""
    timeout_seconds: float | None = None
    warmup_target: Target | None = None
    size: int = -1
    dropped: Callable[[int], None] | None = None
    assignment: Assignment | None = None
    restores: Mapping[str, str] | None = None
    dialect: str = ""
    compares: NamedRequest | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            force_setattr(self, "size", len(self.body))

    def drop_content(self) -> int:
        """Free the members that are not read after the first event of the answer.

        These are the body, unless it is short enough to be explained, and most members of ``fields``.

        Returns:
            Bytes of the body that are freed.
        """
        kept = {name: value for name, value in self.fields.items() if name in _READ_LATER}
        force_setattr(self, "fields", kept)
        freed = len(self.body) if len(self.body) > LONG_BODY_BYTES else 0
        if freed:
            force_setattr(self, "body", b"")
        return freed
