"""Bodies of requests: which API they are for, and their form in the gateway's own API.

Requests to Anthropic's Messages API become chat requests with the same text in the same order.
"""

from collections.abc import Mapping
from typing import Any

import orjson

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
    """The chat request: ``system`` becomes the first message, tool blocks become tool calls and tool messages.

    Cache hints (``cache_control``) are left out: they are no part of the prompt.
    """
    messages: list[dict[str, Any]] = []
    system = _content(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in body.get("messages") or ():
        if isinstance(message, dict):
            messages += _messages(message)
    chat = {name: body[name] for name in ("model", "max_tokens", "temperature", "top_p", "stream") if name in body}
    chat["messages"] = messages
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        chat["tools"] = [_tool(tool) for tool in tools if isinstance(tool, dict)]
    return chat


def _messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chat messages of one message: results of tools become messages of their own, in front of its text."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    others: list[Any] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            result = _content(block.get("content"))
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result or ""})
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            others.append(block)
    own: dict[str, Any] = {"role": role, "content": _content(others)}
    if calls:
        own["tool_calls"] = calls
    if reasoning:
        own["reasoning_content"] = "\n".join(reasoning)
    return results if results and not others else [*results, own]


def _content(value: Any) -> Any:
    """Content blocks as a text if they are nothing else, else as parts; None for nothing."""
    if not isinstance(value, list):
        return value
    parts = [_part(block) for block in value]
    texts = [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(parts):
        return parts
    return "\n".join(texts) if texts else None


def _part(block: Any) -> Any:
    if not isinstance(block, dict):
        return {"type": "text", "text": block} if isinstance(block, str) else {"type": "unknown"}
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if block.get("type") == "image":
        source = block.get("source")
        source = source if isinstance(source, dict) else {}
        url = source.get("url") or f"data:{source.get('media_type', '')};base64,{source.get('data', '')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {name: value for name, value in block.items() if name != "cache_control"}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = orjson.dumps(block.get("input") or {}).decode()
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        return {name: value for name, value in tool.items() if name != "cache_control"}
    function: dict[str, Any] = {"name": tool.get("name")}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}


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
