"""A declared prefix as a request on its way through the house, and what stands in for its client."""

from collections.abc import Sequence

import orjson

from gateway.core.ids import RequestId
from gateway.core.request import ChatRequest
from gateway.core.tenant import Caller
from gateway.warmup.warmup_plan import WarmupStep

_KEPT_BYTES = 65536
_SHOWN_CHARS = 300


def warm_request(step: WarmupStep, request_id: RequestId, now: float) -> ChatRequest:
    """The request of a step; ``now`` is monotonic seconds."""
    prefix = step.prefix
    return ChatRequest(
        endpoint=prefix.endpoint,
        query=b"",
        body=prefix.body,
        fields=prefix.fields,
        headers=((b"content-type", b"application/json"),),
        model=prefix.model,
        stream=False,
        usage_wanted=False,
        request_id=request_id,
        session=None,
        received_at=now,
        caller=step.caller,
        warms=step.target,
    )


class Discarded:
    """A ``Sink`` that keeps of an answer only whether it was one.

    Attributes:
        status: HTTP status; None as long as there is none.
    """

    gone = False
    interrupted = False

    def __init__(self) -> None:
        self.status: int | None = None
        self._body = b""

    @property
    def succeeded(self) -> bool:
        """Whether the engine did what it was asked for."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def message(self) -> str:
        """What the engine said when it did not, in one line."""
        if self.status is None:
            return "no answer"
        said = _said(self._body) or self._body.decode("utf-8", "replace")
        line = " ".join(said.split())
        return (line[:_SHOWN_CHARS] + "…" if len(line) > _SHOWN_CHARS else line) or "no message"

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:  # noqa: ARG002
        """See ``Sink``."""
        self.status = status

    async def write(self, data: bytes, *, more: bool) -> None:  # noqa: ARG002
        """See ``Sink``."""
        if not self.succeeded and len(self._body) < _KEPT_BYTES:
            self._body += data


class Unlimited:
    """A ``Grant`` that counts nothing: what the operator sends is not the tenant's doing."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def charge(self, prompt_tokens: int, now: float) -> None:
        """See ``Grant``."""

    def correct(self, prompt_tokens: int) -> None:
        """See ``Grant``."""

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:  # noqa: ARG002
        """See ``Grant``."""
        return ()

    def release(self) -> None:
        """See ``Grant``."""


def _said(body: bytes) -> str | None:
    """The message of an error body: OpenAI's shape, the older one without ``error`` around it, or FastAPI's own."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict):
        return None
    error = answer.get("error")
    for holder, name in ((error, "message"), (answer, "message"), (answer, "detail"), (answer, "error")):
        if isinstance(holder, dict) and isinstance(said := holder.get(name), str):
            return said
    return None
