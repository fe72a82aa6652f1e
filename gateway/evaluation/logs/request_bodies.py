"""Bodies of requests: which API they are for, and their form in the gateway's own API."""

from collections.abc import Mapping
from typing import Any

from gateway.core.request import Endpoint
from gateway.evaluation.logs.logged_request import OtherEntry, UnreadableEntry
from gateway.evaluation.logs.messages_api import as_chat, is_messages_api

_OTHER_APIS = ("/embeddings", "/models", "/moderations", "/audio/", "/images/", "/rerank", "/tokenize", "/batches")


def is_generation(body: Any) -> bool:
    """Whether a value looks like the body of a request for text."""
    return isinstance(body, dict) and (
        isinstance(body.get("messages"), list) or isinstance(body.get("prompt"), str | list)
    )


def read_body(body: Mapping[str, Any], path: str = "") -> tuple[Endpoint, dict[str, Any]]:
    """The API and the body of a request.

    Args:
        body: As it was logged.
        path: Path of the API; empty if the log does not say it.

    Raises:
        OtherEntry: It is a request to an API that generates no text.
        UnreadableEntry: It is no request, or one to an API that is not supported.
    """
    if any(name in path for name in _OTHER_APIS):
        raise OtherEntry
    if is_messages_api(body, path):
        if not isinstance(body.get("messages"), list):
            raise UnreadableEntry("a request without `messages`")
        return Endpoint.CHAT, as_chat(body)
    if isinstance(body.get("messages"), list):
        return Endpoint.CHAT, dict(body)
    if isinstance(body.get("prompt"), str | list):
        return Endpoint.COMPLETIONS, dict(body)
    if "input" in body and ("instructions" in body or path.rstrip("/").endswith("/responses")):
        raise UnreadableEntry("a request to the Responses API, which is not supported")
    if "input" in body:
        raise OtherEntry  # embeddings
    raise UnreadableEntry("JSON without `messages` or `prompt`")
