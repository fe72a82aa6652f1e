"""What vLLM hands to a chat template, rebuilt from a request.

The engine does not give the client's messages to the template as they came: content parts are joined or wrapped, tool
calls are parsed, calls and tools pass through typed models. The template then sees other keys, in another order. Token
ids equal the engine's only if the same is done here.

Source: vLLM 0.32.0, ``renderers/chat_utils.py`` (``_parse_chat_message_content``, ``_postprocess_messages``,
``_strip_claude_code_billing_header``), ``renderers/hf.py`` (developer role), ``entrypoints/generate/base/protocol.py``
(``FunctionDefinition``), ``entrypoints/openai/chat_completion/protocol.py`` (``build_chat_params``).

Also here: the digest of a prompt's media, for engines that do not report their place in the tokens, and parsed JSON
written again with integers of any size.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson
from xxhash import xxh3_64_hexdigest

from gateway.core.errors import TokenizerUnavailable

_MAX_BITS = 425
"""Of an integer that is written with all its digits, 128 of them: the time for that grows with their square."""


def written(value: Any) -> bytes:
    """A value as JSON, also with integers beyond 64 bits, which orjson cannot write."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_bounded(value)).encode()


def _bounded(value: Any) -> Any:
    """A copy in which an integer beyond ``_MAX_BITS`` is infinity.

    Engines accept such integers, so the text differs from theirs there, and only the predicted hit is too short.
    """
    if isinstance(value, dict):
        return {name: _bounded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    if type(value) is int and value.bit_length() > _MAX_BITS:
        return math.inf if value > 0 else -math.inf
    return value


TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
"""Types of content parts that are text."""


def media_variant(fields: Mapping[str, Any]) -> str:
    """A digest of everything in a conversation that is not text; empty for text alone.

    Token ids hold placeholders there, so two prompts with different images would look alike. With this digest in the
    chain they match only when all their media are the same.
    """
    found = b"\0".join(written(part) for part in _media_parts(fields))
    return f"media:{xxh3_64_hexdigest(found)}" if found else ""


def _media_parts(fields: Mapping[str, Any]) -> Iterator[Any]:
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type", "text") not in TEXT_PARTS:
                yield part


ContentFormat = Literal["string", "openai"]
"""What the template expects as ``content``: one string, or a list of parts it loops over."""

Message = dict[str, Any]

# What the engine's types for content parts declare, of any kind (``_KNOWN_CONTENT_PART_FIELDS``). Other keys of a part
# (``cache_control``) are handed to templates that loop over parts.
_PART_FIELDS = frozenset(
    {
        *("type", "text", "refusal", "thinking", "closed", "name", "uuid", "data", "prompt_cache_breakpoint", "file"),
        *("image_url", "image_pil", "image_embeds", "audio_url", "audio_embeds", "input_audio", "video_url"),
        "video_embeds",
    }
)
_CALL_FIELDS = frozenset({"id", "function", "type"})
_BILLING_HEADER = "x-anthropic-billing-header"


def conversation(messages: Sequence[Any], content_format: ContentFormat) -> list[Message]:
    """Messages as the template sees them.

    Raises:
        TokenizerUnavailable: a message holds something other than text (images, audio), whose tokens only the engine
            knows, or has a form the engine will refuse.
    """
    return [_message(message, content_format) for message in messages]


def _message(message: Any, content_format: ContentFormat) -> Message:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        raise TokenizerUnavailable("a message is not an object with a role")
    content = message.get("content")
    if role == "system":
        content = without_billing_header(content)
    if isinstance(content, str) and content_format == "string":
        result: Message = {"role": role, "content": content}
    else:
        result = {"role": role, "content": _content(content, content_format)}
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls:
            result["tool_calls"] = [_tool_call(call) for call in calls]
        # The older name counts where the newer one is not given.
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        parts = result["content"]
        if isinstance(parts, list) and all(part["type"] == "text" for part in parts):
            result["content"] = "\n".join(part["text"] for part in parts)
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            result[key] = message[key]
    if role == "developer":
        result["tools"] = message.get("tools")
    return result


def _content(content: Any, content_format: ContentFormat) -> str | list[dict[str, Any]]:
    if content is None:
        parts: list[Any] = []
    elif isinstance(content, str):
        parts = [content]
    elif isinstance(content, list):
        parts = content
    else:
        raise TokenizerUnavailable("message content is neither a string nor a list of parts")
    if content_format == "string":
        # An empty text is dropped, and the line end before it with it.
        return "\n".join(text for part in parts if (text := _text_of(part)))
    return [_wrapped(part, text) for part in parts if (text := _text_of(part)) is not None]


def _text_of(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("uuid") is not None:
        raise TokenizerUnavailable("a content part is neither a text nor an object that holds one")
    kind = part.get("type")
    if kind == "tool_reference":
        text = part.get("name")
    elif kind in TEXT_PARTS:
        text = part.get(kind if kind in ("refusal", "thinking") else "text")
    else:
        raise TokenizerUnavailable(f"content part of type {kind!r} has no tokens outside the engine")
    if text is not None and not isinstance(text, str):
        raise TokenizerUnavailable("the text of a content part is not a string")
    return text


def _wrapped(part: str | dict[str, Any], text: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": text}
    if part["type"] == "tool_reference":
        return {"type": "tool_reference", "name": text}
    return {"type": "text", "text": text} | {key: value for key, value in part.items() if key not in _PART_FIELDS}


def without_billing_header(content: Any) -> Any:
    """The content of a system message as the engine takes it; the same object if that is unchanged.

    The engine drops a line of one coding client, because the value there changes with every request.
    """
    if isinstance(content, str):
        if not content.startswith(_BILLING_HEADER):
            return content
        rest = content.partition("\n")[2]
        return rest or None
    if not isinstance(content, list):
        return content
    kept = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _tool_call(call: Any) -> dict[str, Any]:
    """A tool call of the history with its arguments as an object; what is no JSON object becomes an empty one.

    Its keys stand in the order of the engine's type (``ChatCompletionMessageFunctionToolCallParam`` of openai), unknown
    ones behind them: templates that print a whole call print them in that order.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise TokenizerUnavailable("a tool call is not an object with a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except ValueError:
            arguments = {}
        except RecursionError as error:
            raise TokenizerUnavailable("the arguments of a tool call are nested too deep") from error
    arguments = arguments if isinstance(arguments, dict) else {}
    ordered = {"id": call.get("id"), "function": {"arguments": arguments, "name": function.get("name")} | function}
    ordered["function"]["arguments"] = arguments
    return ordered | {"type": call.get("type")} | {key: value for key, value in call.items() if key not in _CALL_FIELDS}


def tools(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The request's tools in the engine's own key order, unknown keys dropped; None where there are none."""
    given = fields.get("tools")
    if given is None:
        return None
    if not isinstance(given, list):
        raise TokenizerUnavailable("tools is not a list")
    return [_tool(tool) for tool in given]


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise TokenizerUnavailable("a tool is not an object with a function")
    defer = tool.get("defer_loading")
    kept: dict[str, Any] = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        kept["strict"] = function["strict"]
    if (inner := function.get("defer_loading", defer)) is not None:
        kept["defer_loading"] = inner
    result = {"type": tool.get("type", "function"), "function": kept}
    if defer is not None:
        result["defer_loading"] = defer
    return result


def template_arguments(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of the template besides messages and tools: server defaults, then the request's, then the API's own.

    A value of None (or "auto") counts as not given, as in the engine.
    """
    given = fields.get("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise TokenizerUnavailable("chat_template_kwargs is not an object")
    api: dict[str, Any] = {
        "add_generation_prompt": fields.get("add_generation_prompt", True),
        "continue_final_message": fields.get("continue_final_message", False),
        "documents": fields.get("documents"),
        "reasoning_effort": fields.get("reasoning_effort"),
    }
    if api["reasoning_effort"] is not None and "enable_thinking" not in given:
        api["enable_thinking"] = api["reasoning_effort"] != "none"
    merged = dict(defaults)
    for layer in (given, api):
        merged |= {key: value for key, value in layer.items() if value is not None and value != "auto"}
    merged.pop("chat_template", None)
    merged.pop("tokenize", None)
    return merged


def developer_as_system(messages: list[Message]) -> list[Message]:
    """For templates without a developer role: make it system, then merge all system messages at the front."""
    renamed = [
        {k: v for k, v in message.items() if k != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    if not any(message["role"] == "system" for message in renamed[1:]):
        return renamed
    texts = [_joined(message.get("content")) for message in renamed if message["role"] == "system"]
    merged: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""
