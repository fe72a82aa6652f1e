"""Bodies of requests: which API they are for, and their form in the gateway's own API.

Requests to Anthropic's Messages API become the chat requests that the gateway makes of them.
"""

from collections.abc import Mapping
from typing import Any

from gateway.api.dialects.messages_api import MessagesChat
from gateway.api.dialects.responses import chat_of
from gateway.core.errors import BadRequest
from gateway.core.portions import finished
from gateway.core.request import Endpoint
from gateway.evaluation.logs.logged_request import OtherEntry, UnreadableEntry

_OTHER_APIS = ("/embeddings", "/models", "/moderations", "/audio/", "/images/", "/rerank", "/tokenize", "/batches")
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "document", "search_result"})
"""Types of content blocks that chat requests do not have."""


def is_messages_api(body: Mapping[str, Any], path: str = "") -> bool:
    """Whether a body is a request to the Messages API, by its path, or by what only such requests have."""
    if path.split("?", maxsplit=1)[0].rstrip("/").endswith("/messages"):
        return True
    if path or not isinstance(body.get("messages"), list):
        return False
    if "system" in body or "anthropic_version" in body or "stop_sequences" in body:
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    return any(
        isinstance(block, dict) and block.get("type") in _BLOCKS
        for message in body["messages"]
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
    )


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that the gateway makes of a request to the Messages API.

    Raises:
        UnreadableEntry: The gateway would refuse it.
    """
    chat = MessagesChat()
    try:
        finished(chat.convert(body, counts=True))
    except BadRequest as error:
        raise UnreadableEntry(f"a request to the Messages API that a gateway refuses ({error.param})") from None
    except RecursionError:
        raise UnreadableEntry("a request that is nested too deep") from None
    return chat.fields


def is_generation(body: Any) -> bool:
    """Whether a value looks like the body of a request for text."""
    return isinstance(body, dict) and (
        isinstance(body.get("messages"), list)
        or isinstance(body.get("prompt"), str | list)
        or ("input" in body and "instructions" in body)
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
        if body.get("previous_response_id") or body.get("conversation"):
            raise UnreadableEntry("a request to the Responses API that continues a stored response")
        try:
            return Endpoint.CHAT, finished(chat_of(body)).fields
        except BadRequest as refused:
            raise UnreadableEntry(f"a request to the Responses API: {refused.message}") from None
    if "input" in body:
        raise OtherEntry  # embeddings
    raise UnreadableEntry("JSON without `messages` or `prompt`")
