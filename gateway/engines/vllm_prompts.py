"""What vLLM hands to a chat template, rebuilt from a request.

The engine does not give the client's messages to the template as they came: content parts are joined or wrapped, tool
calls are parsed, calls and tools pass through typed models. The template then sees other keys, in another order. Token
ids equal the engine's only if the same is done here.

Source: vLLM 0.32.0, ``renderers/chat_utils.py`` (``_parse_chat_message_content``, ``_postprocess_messages``,
``_strip_claude_code_billing_header``), ``renderers/hf.py`` (developer role), ``entrypoints/generate/base/protocol.py``
(``FunctionDefinition``), ``entrypoints/openai/chat_completion/protocol.py`` (``build_chat_params``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import TEXT_PARTS, ContentFormat, Message

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


def role_of(message: Any) -> str:
    """The role of a message."""
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        raise TokenizerUnavailable("a message is not an object with a role")
    return role


def function_of(holder: Any, what: str) -> dict[str, Any]:
    """The function of a tool, or of a tool call."""
    function = holder.get("function") if isinstance(holder, dict) else None
    if not isinstance(function, dict):
        raise TokenizerUnavailable(f"{what} is not an object with a function")
    return function


def _message(message: Any, content_format: ContentFormat) -> Message:
    role, content = role_of(message), message.get("content")
    if role == "system":
        content = without_billing_header(content)
    is_shown = isinstance(content, str) and content_format == "string"
    result: Message = {"role": role, "content": content if is_shown else _content(content, content_format)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = [_tool_call(call) for call in calls]
        # The older name counts where the newer one is not given.
        for name in ("reasoning_content", "reasoning"):
            if (reasoning := message.get(name)) is not None:
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
    parts = [] if content is None else [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
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
        return content.partition("\n")[2] or None
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
    function = function_of(call, "a tool call")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except ValueError:
            arguments = {}
        except RecursionError as error:
            raise TokenizerUnavailable("the arguments of a tool call are nested too deep") from error
    taken = {"arguments": arguments if isinstance(arguments, dict) else {}}
    ordered = {"id": call.get("id"), "function": taken | {"name": None} | function | taken, "type": call.get("type")}
    return ordered | {key: value for key, value in call.items() if key not in _CALL_FIELDS}


def _tool(tool: Any) -> dict[str, Any]:
    function = function_of(tool, "a tool")
    defer = tool.get("defer_loading")
    optional = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", defer)}
    kept = {key: function.get(key) for key in ("name", "description", "parameters")} | _given(optional)
    return {"type": tool.get("type", "function"), "function": kept} | _given({"defer_loading": defer})


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def developer_as_system(messages: list[Message]) -> list[Message]:
    """For templates without a developer role: make it system, then merge all system messages at the front."""
    renamed = [
        {k: v for k, v in each.items() if k != "tools"} | {"role": "system"} if each["role"] == "developer" else each
        for each in messages
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


@dataclass(frozen=True, slots=True)
class VllmRules:
    """How vLLM makes the input of its chat template of a request. Equal rules are interchangeable.

    Its methods raise ``TokenizerUnavailable`` for what only the engine can encode, and for forms that it refuses.

    Attributes:
        content_format: What templates are taken to expect (``--chat-template-content-format``); None: as the engine
            finds it out from the template.
        excludes_tools: Whether it runs with ``--exclude-tools-when-tool-choice-none``.
        engine: The engine.
        ignored: Fields of requests that it does not know, of those that change how another engine encodes.
        tokenize_fields: Fields of a chat request that its ``/tokenize`` takes.
    """

    content_format: ContentFormat | None = None
    excludes_tools: bool = False

    engine: ClassVar = EngineKind.VLLM
    ignored: ClassVar[frozenset[str]] = frozenset()
    tokenize_fields: ClassVar = frozenset(
        {"messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens"}
        | {"chat_template", "chat_template_kwargs"}
    )

    @property
    def label(self) -> str:
        """Engine, release and flags, for messages."""
        excludes = " --exclude-tools-when-tool-choice-none" * self.excludes_tools
        return f"vLLM{excludes}" + f" with content as `{self.content_format}`" * bool(self.content_format)

    def tools(self, fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The request's tools as the template gets them; None where there are none."""
        given = fields.get("tools")
        if given is None or (self.excludes_tools and fields.get("tool_choice") == "none"):
            return None
        if not isinstance(given, list):
            raise TokenizerUnavailable("tools is not a list")
        return [_tool(tool) for tool in given]

    def messages(self, given: Sequence[Any], content_format: ContentFormat, *, knows_developer: bool) -> list[Message]:
        """Messages as the template gets them.

        Args:
            given: Those of the request.
            content_format: What the template expects.
            knows_developer: Whether the template names the role ``developer``.
        """
        made = conversation(given, content_format)
        if not knows_developer and any(message["role"] == "developer" for message in made):
            return developer_as_system(made)
        return made

    def begun(self, fields: Mapping[str, Any], messages: list[Message]) -> tuple[list[Message], str]:  # noqa: ARG002
        """The messages that are rendered, and the text of an answer to be continued that is encoded by itself."""
        return messages, ""

    def arguments(self, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Further variables of the template: server defaults, then the request's, then the API's own.

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
            merged |= {key: value for key, value in _given(layer).items() if value != "auto"}
        return {key: value for key, value in merged.items() if key not in ("chat_template", "tokenize")}
