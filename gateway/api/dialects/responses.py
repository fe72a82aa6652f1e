"""OpenAI's Responses API: a request as a chat request, in the way of vLLM's own conversion.

Where it differs: all parts of an assistant's message and of its reasoning are kept (vLLM takes the first), and what
only the client's vendor can read or run (its encrypted reasoning, hosted tools, grammars of tools) is left out with a
warning.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.api.dialects.client_fields import SAME, invalid, member, text_at
from gateway.core.portions import Portioned

_AT_ONCE = 500
"""Items that are converted in one portion."""

_SAME = {*SAME, *"stop user cache_salt prompt_cache_key parallel_tool_calls include_reasoning service_tier".split()}
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
NAMES |= {"verbosity": "text.verbosity", "reasoning_effort": "reasoning.effort"}
"""Members of the Responses API by the names that they have in the chat request."""

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_OPEN = ("in_progress", "incomplete")
_SHOWN = re.compile(r"[\w.-]{1,40}", re.ASCII)
_MOST_WARNINGS = 8

_SEALED = "gateway:"
"""Begins ``encrypted_content`` of the gateway's own."""

COMPACTS_ITSELF = "give Codex' provider another name than OpenAI, and it summarizes by an ordinary request"

_CUSTOM_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function by which a custom tool is shown to the model, as vLLM has them."""


class ToolName(NamedTuple):
    """A tool as its client calls it; ``custom``: its input is a text instead of JSON."""

    name: str
    namespace: str | None = None
    custom: bool = False


def sealed(reasoning: str) -> str:
    """The ``encrypted_content`` of a reasoning item: its text, which the client has got anyway."""
    return _SEALED + reasoning


def items_of(fields: Mapping[str, Any]) -> list[Any]:
    """The items of ``input``.

    Raises:
        BadRequest: it is no text and no list.
    """
    given = fields.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid("input", "must be a text or a list of items", "invalid_type" if given else "missing_parameter")
    return given


def chat_of(
    fields: Mapping[str, Any], items: Sequence[Any] | None = None, before: Sequence[Any] = ()
) -> "Portioned[ResponsesChat]":
    """Convert a request.

    Args:
        fields: The body.
        items: Its items, if they are not those of ``input`` itself.
        before: Items of the responses that it continues.

    Raises:
        BadRequest: an item or a member has not the form that the API asks for, or cannot be converted.
    """
    items = items_of(fields) if items is None else items
    if not items and not before:
        raise invalid("input", "is empty: give at least one item")
    chat = ResponsesChat()
    if instructions := member(fields, "instructions", str):
        chat.append({"role": "system", "content": instructions}, "instructions")
    for number, item in enumerate((*before, *items), -len(before)):
        chat.add(item, f"input[{number}]" if number >= 0 else "previous_response_id")
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield
    last = (items or before)[-1]
    if last.get("type", "message") in ("message", "reasoning") and last.get("status") in _OPEN:
        chat.fields |= {"add_generation_prompt": False, "continue_final_message": True}
    for number, tool in enumerate(member(fields, "tools", list) or ()):
        chat.add_tool(tool, f"tools[{number}]")
    reasoning, text = member(fields, "reasoning", dict) or {}, member(fields, "text", dict) or {}
    given = {name: value for name, value in fields.items() if name in _SAME} | {
        "tools": chat.functions or None,
        "tool_choice": chat.choice(fields.get("tool_choice")),
        "max_tokens": fields.get("max_output_tokens"),
        "reasoning_effort": reasoning.get("effort"),
        "verbosity": text.get("verbosity"),
        "response_format": _format(text.get("format")),
        "stream_options": {"include_usage": True} if fields.get("stream") else None,
    }
    chat.fields |= {name: value for name, value in given.items() if value is not None}
    del chat.warnings[_MOST_WARNINGS:]
    return chat


class ResponsesChat:
    """A request as a chat request, made of its items and tools one by one.

    Attributes:
        fields: The chat request.
        places: Where each message stands in the client's body.
        functions: The tools as the chat request has them.
        tools: The tools by their names there.
        warnings: What was left out.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        self.functions: list[dict[str, Any]] = []
        self.tools: dict[str, ToolName] = {}
        self.warnings: list[str] = []
        self._messages: list[dict[str, Any]] = []
        self.fields: dict[str, Any] = {"messages": self._messages}
        self._called: set[str] = set()

    def append(self, message: dict[str, Any], place: str) -> None:
        """Add a message."""
        self._messages.append(message)
        self.places.append(place)

    def add(self, item: Any, place: str) -> None:
        """Add an item: as a message, or to the assistant's message before it."""
        if not isinstance(item, dict):
            raise invalid(place, "must be an object", "invalid_type")
        kind = item.get("type", "message")
        if kind == "message":
            role, content = item.get("role"), _content(item, "content", place)
            if role == "assistant":
                parts = content if isinstance(content, list) else None
                joined = content if parts is None else "".join(part.get("text", "") for part in parts)
                self._assistant("content", joined, place)
            elif role in ("user", "system", "developer"):
                self.append({"role": role, "content": content}, place)
            else:
                raise invalid(f"{place}.role", "must be user, system, developer or assistant")
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, kind, place)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if (call := text_at(item, "call_id", place)) not in self._called:
                raise invalid(f"{place}.call_id", "names no call before it: send the call's item, too")
            self.append({"role": "tool", "content": _content(item, "output", place), "tool_call_id": call}, place)
        elif kind == "reasoning":
            if (thought := self._reasoning(item, place)) is not None:
                self._assistant("reasoning_content", thought, place)
        else:
            fix = COMPACTS_ITSELF if kind == "compaction_trigger" else "leave the item out"
            problem = f"is {_shown(kind)}, which is not served here: {fix}"
            raise invalid(f"{place}.type", problem, "unsupported_item")

    def add_tool(self, tool: Any, place: str, namespace: str | None = None) -> None:
        """Add a tool, or those of a namespace."""
        if not isinstance(tool, dict) and namespace is None:
            raise invalid(place, "must be an object", "invalid_type")
        kind = tool.get("type") if isinstance(tool, dict) else None
        if namespace is not None and kind != "function":
            self.warnings.append(f"tool {_shown(namespace)} left out in part")
        elif kind == "namespace":
            name = text_at(tool, "name", place)
            for position, inner in enumerate(member(tool, "tools", list, place) or ()):
                self.add_tool(inner, f"{place}.tools[{position}]", name)
        elif kind in ("function", "custom"):
            name = text_at(tool, "name", place)
            flat = name if namespace is None else f"{namespace}__{name}"
            self.tools[flat] = ToolName(name, namespace, custom=kind == "custom")
            if kind == "custom":
                if isinstance(form := tool.get("format"), dict) and form.get("type") == "grammar":
                    self.warnings.append(f"grammar of tool {_shown(name)} not enforced")
                tool = {"description": tool.get("description"), "parameters": _CUSTOM_INPUT}
            function = {member: value for member, value in tool.items() if member != "type"}
            self.functions.append({"type": "function", "function": function | {"name": flat}})
        else:
            self.warnings.append(f"tool {_shown(kind)} left out")

    def choice(self, choice: Any) -> Any:
        """The tool choice; None for the default."""
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            self.warnings.append("tool_choice allowed_tools taken for its mode")
            choice = choice.get("mode")
        kind = choice.get("type") if isinstance(choice, dict) else None
        if choice in (None, "auto", "none") or (choice == "required" and self.tools):
            return choice if self.tools else None
        if kind in ("function", "custom"):
            name = f"{choice['namespace']}__{choice.get('name')}" if choice.get("namespace") else choice.get("name")
            if not isinstance(name, str):
                raise invalid("tool_choice.name", "must be a string")
            found = [name] if name in self.tools else [flat for flat, tool in self.tools.items() if tool.name == name]
            if len(found) == 1:
                return {"type": "function", "function": {"name": found[0]}}
        elif kind is not None:
            self.warnings.append(f"tool_choice {_shown(kind)} left out")
            return None
        raise invalid("tool_choice", "must be auto, none, required, or name one of `tools`")

    def _assistant(self, name: str, value: Any, place: str) -> None:
        before = self._messages[-1] if self._messages else {}
        if before.get("role") == "assistant" and before.get(name) is None:
            before[name] = value
        else:
            self.append({"role": "assistant", name: value}, place)

    def _call(self, item: Mapping[str, Any], kind: str, place: str) -> None:
        name, call = text_at(item, "name", place), text_at(item, "call_id", place)
        if item.get("namespace"):
            name = f"{text_at(item, 'namespace', place)}__{name}"
        arguments = text_at(item, "arguments" if kind == "function_call" else "input", place)
        if kind == "custom_tool_call":
            arguments = json.dumps({"input": arguments}, ensure_ascii=False)
        self._called.add(call)
        if not (self._messages and self._messages[-1]["role"] == "assistant"):
            self.append({"role": "assistant"}, place)
        made = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._messages[-1].setdefault("tool_calls", []).append(made)

    def _reasoning(self, item: Mapping[str, Any], place: str) -> str | None:
        for name in ("content", "summary"):
            if parts := member(item, name, list, place):
                texts = (part if isinstance(part, dict) else {} for part in parts)
                return "".join(text_at(part, "text", f"{place}.{name}[{at}]") for at, part in enumerate(texts))
        given = member(item, "encrypted_content", str, place) or _SEALED
        if given.startswith(_SEALED):
            return given.removeprefix(_SEALED)
        self.warnings.append("encrypted reasoning of another server left out")
        return None


def _content(item: Mapping[str, Any], name: str, place: str) -> Any:
    """A text, or content parts, as chat requests have them."""
    content = item.get(name)
    if content is None or isinstance(content, str):
        return content
    place = f"{place}.{name}"
    if not isinstance(content, list):
        raise invalid(place, "must be a text or a list of content parts", "invalid_type")
    return [_part(part, f"{place}[{number}]") for number, part in enumerate(content)]


def _part(part: Any, place: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise invalid(place, "must be an object", "invalid_type")
    kind = part.get("type")
    if isinstance(kind, str) and (name := _TEXTS.get(kind)) is not None:
        return {"type": "text", "text": text_at(part, name, place)}
    if kind != "input_image" or part.get("file_id") is not None:
        raise invalid(place, f"is {_shown(kind)}, which is not served here: files have no store", "unsupported_content")
    detail = {} if part.get("detail") is None else {"detail": part["detail"]}
    return {"type": "image_url", "image_url": {"url": text_at(part, "image_url", place), **detail}}


def _format(form: Any) -> dict[str, Any] | None:
    """``text.format`` as a ``response_format``; None for plain text."""
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema" or not isinstance(form, dict):
        raise invalid("text.format", "must be an object of type text, json_object or json_schema", "invalid_type")
    return {"type": kind, kind: {name: value for name, value in form.items() if name != "type"}}


def _shown(text: Any) -> str:
    """A client's word in a header or an error."""
    return text if isinstance(text, str) and _SHOWN.fullmatch(text) else "of another type"
