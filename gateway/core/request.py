"""A client's request: its body as bytes, and parsed."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from gateway.core.client_places import SAME_PLACES, ClientPlaces
from gateway.core.experiment_group import Assignment
from gateway.core.ids import ModelId, RequestId, Target
from gateway.core.tenant import EVERYBODY, Caller


class Endpoint(StrEnum):
    """The generation endpoints. The value is the path, as clients and engines know it."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


JSON, FORM = "application/json", "multipart/form-data"


class EnginePath(NamedTuple):
    """An endpoint of the engines whose requests have no prefix to be placed by: they are passed on as they come.

    Attributes:
        path: The path, as clients and engines know it.
        media: Media types of its bodies.
        computes: Whether its JSON holds prompts: their tokens are limited, and what is cached of them kept apart.
        needs_model: Whether a request has to name its model, even if there is only one.
        method: HTTP method of the request.
    """

    path: str
    media: tuple[str, ...] = (JSON,)
    computes: bool = True
    needs_model: bool = True
    method: str = "POST"

    def __str__(self) -> str:
        return self.path


ENGINE_PATHS = (
    *map(EnginePath, ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")),
    *(EnginePath(f"/v1/audio/{name}", (FORM,)) for name in ("transcriptions", "translations")),
    *(EnginePath(path, computes=False, needs_model=False) for path in ("/tokenize", "/detokenize")),
)
"""Those that are always served; an operator may allow further ones."""


LONG_BODY_BYTES = 2 * 1024 * 1024
"""Longer bodies hold images rather than text: request records omit them, and streams free them."""

_READ_LATER = frozenset(
    {
        *("messages", "prompt", "n", "best_of", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
        *("logprobs", "prompt_logprobs", "echo", "cache_salt", "user"),
    }
)
"""Members that are read after the first event of an answer has been sent."""


class RequestIdentity(msgspec.Struct, frozen=True, gc=False):
    """What a request belongs to, as its client names it; see ``api.identity``. All are printable, and show no key.

    Attributes:
        session: Its session, unique within a tenant; empty for none.
        agent: The subagent of the session that sends it; empty for its main agent.
        parent_agent: The agent that started the subagent; empty for the main agent.
        affinity: What is kept at one replica if nothing else decides; empty for none.
        is_exact: Whether the session is one conversation with its subagents, and not several with a name in common.
    """

    session: str = ""
    agent: str = ""
    parent_agent: str = ""
    affinity: str = ""
    is_exact: bool = True


NO_IDENTITY = RequestIdentity()


class ChatRequest(msgspec.Struct, frozen=True):
    """One generation request, or one to an ``EnginePath``, which has no prompt.

    Attributes:
        endpoint: Which API was called; without a meaning where ``path`` is set.
        query: Query string as it came, without the question mark.
        body: The body as it came. Engines get this, not ``fields``.
        fields: The body parsed; only to be read. With a ``path`` just the model, unless there are prompts.
        headers: The client's headers in their order, names in lower case, values as they came.
        model: ``fields["model"]``.
        stream: Whether the client asked for server-sent events.
        usage_wanted: Whether the client itself asked for the usage chunk of a stream.
        request_id: The client's, or one the gateway made.
        session: The session of its identity if that is exact, or None. Several tenants may use the same one.
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
        path: The ``EnginePath`` that was called; empty for a generation request.
        method: HTTP method; of a generation request POST.
        identity: Session and agent as the client names them.
        places: Where the client's body has what this request has.
        compares: Id of the earlier request, or of its answer, to compare the prompt with; None without one.
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
    path: str = ""
    method: str = "POST"
    identity: RequestIdentity = NO_IDENTITY
    places: ClientPlaces = SAME_PLACES
    compares: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            force_setattr(self, "size", len(self.body))

    def qualified(self, name: str | None) -> str | None:
        """A name that a client chose, such as a session's, as a key among those of all tenants; None for none."""
        return f"{self.caller.tenant.id}\0{name}" if name else None

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
