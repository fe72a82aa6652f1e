"""What SGLang hands to a chat template, rebuilt from a request.

Every message and tool passes through a typed model, whose unknown fields are dropped and whose missing ones are null;
nulls of messages are dropped again. A final answer of the assistant is taken for the user's, or is continued: then it
is encoded by itself and put behind the generation prompt.

Source: SGLang 0.5.23, ``entrypoints/openai/serving_chat.py`` (``_process_messages``, ``_apply_jinja_template``),
``entrypoints/openai/protocol.py``, ``parser/jinja_template_utils.py``; for the tools of earlier releases 0.5.9, 0.5.10,
0.5.11, 0.5.12, 0.5.15, 0.5.18 and 0.5.20 to 0.5.22 as well. Models with an encoder of their own in place of a template
(DeepSeek V3.2, Kimi K3) are not covered.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import orjson

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import ContentFormat, Message
from gateway.engines.vllm_prompts import function_of, role_of


class ToolForm(StrEnum):
    """How a tool is printed, by the releases that do so.

    The type's order is ``description``, ``name``, ``parameters``, ``strict``. Up to 0.5.22 all of them are there, from
    0.5.23 on in the client's order, and ``strict`` only if given. From 0.5.11 on ``defer_loading`` is behind them.
    """

    OLD = "up to 0.5.10"
    DEFERRED = "0.5.11 to 0.5.22"
    AS_SENT = "0.5.23"


_ROLES = frozenset({"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"})
_MEMBERS = ("tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix")
"""Of messages besides role and content, in the engine's order. A user's message has none of them."""

_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})

PROBE: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]}],
    "tools": [
        {
            "type": "function",
            "function": {"name": "probe", "description": "A test.", "parameters": {"type": "object", "properties": {}}},
        }
    ],
}
"""A chat request whose tokens show which rules a replica follows."""


@dataclass(frozen=True, slots=True)
class SglangRules:
    """See ``VllmRules``.

    Attributes:
        content_format: None for the engine's own choice, which no flag changes.
        tool_form: How it prints tools.
    """

    content_format: ContentFormat | None = None
    tool_form: ToolForm = ToolForm.AS_SENT

    engine: ClassVar = EngineKind.SGLANG
    ignored: ClassVar = frozenset(
        {"chat_template", "documents", "add_generation_prompt", "add_special_tokens", "truncate_prompt_tokens"}
    )
    tokenize_fields: ClassVar = frozenset(
        {"messages", "tools", "tool_choice", "reasoning", "reasoning_effort", "chat_template_kwargs"}
        | {"continue_final_message"}
    )

    @property
    def label(self) -> str:
        """See ``VllmRules``."""
        return f"SGLang {self.tool_form}" + f" with content as `{self.content_format}`" * bool(self.content_format)

    def tools(self, fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """All of them, the one that ``tool_choice`` names, or none."""
        given, choice = fields.get("tools"), fields.get("tool_choice")
        if not given or choice == "none":
            return None
        tools = self._dumped(given)
        if isinstance(choice, Mapping):
            chosen = choice.get("function")
            name = chosen.get("name") if isinstance(chosen, Mapping) else None
            tools = [tool for tool in tools if tool["function"]["name"] == name]
        return tools or None

    def messages(self, given: Sequence[Any], content_format: ContentFormat, *, knows_developer: bool) -> list[Message]:  # noqa: ARG002
        """See ``VllmRules``; the role ``developer`` stays as it is."""
        return [self._message(message, content_format) for message in given]

    def begun(self, fields: Mapping[str, Any], messages: list[Message]) -> tuple[list[Message], str]:
        """See ``VllmRules``."""
        last = messages[-1] if messages else {}
        content = last.get("content")
        if last.get("role") != "assistant" or not isinstance(content, str):
            return messages, ""
        if fields.get("continue_final_message"):
            return messages[:-1], content
        return [*messages[:-1], {"role": "user", "content": content}], ""

    def arguments(self, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The request's, then the server's defaults; but an effort among these is preferred to the request's."""
        given = fields.get("chat_template_kwargs") or {}
        if not isinstance(given, dict) or "chat_template" in given:
            raise TokenizerUnavailable("chat_template_kwargs is not an object, or brings a chat template")
        effort, own = fields.get("reasoning_effort"), given.get("reasoning_effort")
        if isinstance(fields.get("reasoning"), dict) or not isinstance(effort, str | float | None):
            raise TokenizerUnavailable("how the engine is asked to reason is left to it")
        thinks = effort != "none"
        merged = {"reasoning_effort": effort if own is None else own} if (effort, own) != (None, None) else {}
        merged |= defaults
        merged |= {} if effort is None else {"thinking": thinks, "enable_thinking": thinks}
        merged |= {name: value for name, value in given.items() if name != "reasoning_effort"}
        return merged | {"add_generation_prompt": True}

    def _message(self, message: Any, content_format: ContentFormat) -> Message:
        role, content = role_of(message), message.get("content")
        is_user = role == "user" and content is not None
        if not is_user and (role := role.lower()) not in _ROLES:
            raise TokenizerUnavailable("a message has a role that the engine refuses, or no content")
        made: Message = {"role": role, "content": _content(content, content_format, role)}
        for name in () if is_user else _MEMBERS:
            if (value := message.get(name)) is None:
                continue
            if name == "tool_calls":
                value = [_tool_call(call, role) for call in _list(value)]
            made[name] = self._dumped(value) if name == "tools" else value
        if isinstance(made["content"], list):
            made["content"] = made.pop("content")  # behind the others: some templates print whole messages
        return made

    def _dumped(self, tools: Any) -> list[dict[str, Any]]:
        return [self._tool(tool) for tool in _list(tools)]

    def _tool(self, tool: Any) -> dict[str, Any]:
        function = function_of(tool, "a tool")
        if not isinstance(function.get("name"), str):
            raise TokenizerUnavailable("a tool is not an object with a function that has a name")
        made = {name: function.get(name) for name in ("description", "name", "parameters")}
        strict, deferred = function.get("strict"), tool.get("defer_loading")
        outer = {"type": tool.get("type", "function"), "function": made}
        if self.tool_form is ToolForm.OLD:
            made["strict"] = strict or False
            return outer
        _check_types(made["parameters"])
        if strict is not None or self.tool_form is ToolForm.DEFERRED:
            made["strict"] = strict or False
        inner = function.get("defer_loading")
        if inner is not None or deferred is not None:
            made["defer_loading"] = deferred if inner is None else inner
        if self.tool_form is ToolForm.AS_SENT:
            outer["function"] = {name: made[name] for name in function if name in made} | made
        return outer | {"defer_loading": deferred}


def tool_form(version: str) -> ToolForm:
    """The form of a release, as the engine reports it; of an unknown one the newest."""
    numbers = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version)
    release = tuple(map(int, numbers.groups())) if numbers else (1,)
    return ToolForm.OLD if release < (0, 5, 11) else ToolForm.DEFERRED if release < (0, 5, 23) else ToolForm.AS_SENT


def _content(content: Any, content_format: ContentFormat, role: str) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [made for part in _list(content) if (made := _part(part, role)) is not None]
    if content_format == "string" or (role == "tool" and all(part["type"] == "text" for part in parts)):
        return " ".join(part["text"] for part in parts if part["type"] == "text")
    return parts


def _part(part: Any, role: str) -> dict[str, Any] | None:
    """A content part as templates get it; None for one that they do not get."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": kind, "name": part["name"]}
    if kind in ("thinking", "reasoning") and role == "assistant":
        return None
    raise TokenizerUnavailable(f"content part of type {kind!r} has no tokens outside the engine")


def _tool_call(call: Any, role: str) -> dict[str, Any]:
    function = function_of(call, "a tool call")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and role == "assistant":
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            raise TokenizerUnavailable("the engine refuses arguments of a tool call that are no JSON object")
    ids = {"id": call.get("id"), "index": call.get("index"), "type": call.get("type", "function")}
    return ids | {"function": {"name": function.get("name"), "arguments": arguments}}


def _check_types(schema: Any) -> None:
    """Types that JSON Schema does not have (``int``, ``varchar``) get other names, by a long table of the engine."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if any(isinstance(one, str) and one not in _TYPES for one in (kind if isinstance(kind, list) else [kind])):
            raise TokenizerUnavailable("a tool has parameters of a type that the engine renames")
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _check_types(each)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TokenizerUnavailable("messages, parts or tools are not a list")
    return value
