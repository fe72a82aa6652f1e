"""OpenAI's Responses API: a request as a chat request, in the way of vLLM's own conversion.

Where it differs: all parts of an assistant's message are kept (vLLM takes the first), and what only the client's vendor
can read or run (its encrypted reasoning, hosted tools, grammars of tools) is left out with a warning.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.core.errors import BadRequest
from gateway.core.portions import Portioned

_AT_ONCE = 500
"""Items that are converted in one portion."""

_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed"),
    *("repetition_penalty", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "priority", "user"),
    *("cache_salt", "prompt_cache_key", "parallel_tool_calls", "chat_template_kwargs", "skip_special_tokens"),
    *("include_stop_str_in_output", "include_reasoning", "structured_outputs"),
)
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
NAMES |= {"verbosity": "text.verbosity", "reasoning_effort": "reasoning.effort"}
"""Members of the Responses API by the names that they have in the chat request."""

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_OPEN = ("in_progress", "incomplete")
_SHOWN = re.compile(r"[\w.-]{1,40}", re.ASCII)
_MOST_WARNINGS = 8

_SEALED = "pgw1."
"""Begins ``encrypted_content`` that is the gateway's own: the reasoning text, which the client has got anyway."""

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


class ResponsesChat(NamedTuple):
    """A converted request.

    Attributes:
        fields: The chat request.
        places: Where each message stands in the client's body.
        tools: The tools by their names in the chat request.
        warnings: What was left out.
    """

    fields: dict[str, Any]
    places: list[str]
    tools: dict[str, ToolName]
    warnings: list[str]


def sealed(reasoning: str) -> str:
    """The ``encrypted_content`` of a reasoning item."""
    return _SEALED + base64.b64encode(reasoning.encode()).decode()


def invalid(param: str, expected: str, code: str = "invalid_type") -> BadRequest:
    """The error for a member that is not as ``expected`` says."""
    return BadRequest(f"`{param}` {expected}.", param=param, code=code)


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
) -> Portioned[ResponsesChat]:
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
        raise invalid("input", "is empty: give at least one item", "invalid_value")
    made = _Messages()
    if instructions := member(fields, "instructions", str):
        made.append({"role": "system", "content": instructions}, "instructions")
    for number, item in enumerate((*before, *items), -len(before)):
        made.add(item, f"input[{number}]" if number >= 0 else "previous_response_id")
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield
    chat: dict[str, Any] = {name: fields[name] for name in _SAME if fields.get(name) is not None}
    chat["messages"] = made.messages
    last = (items or before)[-1]
    if last.get("type", "message") in ("message", "reasoning") and last.get("status") in _OPEN:
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    tools: dict[str, ToolName] = {}
    if functions := list(_functions(fields, tools, made.warnings)):
        chat["tools"] = functions
    reasoning, text = member(fields, "reasoning", dict) or {}, member(fields, "text", dict) or {}
    more = {
        "tool_choice": _tool_choice(fields.get("tool_choice"), tools, made.warnings),
        "max_tokens": fields.get("max_output_tokens"),
        "reasoning_effort": reasoning.get("effort"),
        "verbosity": text.get("verbosity"),
        "response_format": _format(text.get("format")),
        "stream_options": {"include_usage": True} if fields.get("stream") else None,
    }
    chat |= {name: value for name, value in more.items() if value is not None}
    return ResponsesChat(chat, made.places, tools, made.warnings[:_MOST_WARNINGS])


class _Messages:
    """Chat messages, made of items one by one."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self.warnings: list[str] = []
        self._called: set[str] = set()

    def append(self, message: dict[str, Any], place: str) -> None:
        self.messages.append(message)
        self.places.append(place)

    def add(self, item: Any, place: str) -> None:
        """Add an item: as a message, or to the assistant's message before it."""
        if not isinstance(item, dict):
            raise invalid(place, "must be an object")
        kind = item.get("type", "message")
        if kind == "message":
            role, content = item.get("role"), _content(item, "content", place)
            if role == "assistant":
                texts = content if isinstance(content, list) else None
                joined = content if texts is None else "".join(part.get("text", "") for part in texts)
                self._assistant("content", joined, place)
            elif role in ("user", "system", "developer"):
                self.append({"role": role, "content": content}, place)
            else:
                raise invalid(f"{place}.role", "must be user, system, developer or assistant", "invalid_value")
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, kind, place)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if (call := _text(item, "call_id", place)) not in self._called:
                raise invalid(f"{place}.call_id", "names no call before it: send the call's item, too", "invalid_value")
            self.append({"role": "tool", "content": _content(item, "output", place), "tool_call_id": call}, place)
        elif kind == "reasoning":
            if (thought := self._reasoning(item, place)) is not None:
                self._assistant("reasoning_content", thought, place)
        else:
            raise invalid(
                f"{place}.type", f"is {_shown(kind)}, which is not served here: leave the item out", "unsupported_item"
            )

    def _assistant(self, name: str, value: Any, place: str) -> None:
        before = self.messages[-1] if self.messages else {}
        if before.get("role") == "assistant" and before.get(name) is None:
            before[name] = value
        else:
            self.append({"role": "assistant", name: value}, place)

    def _call(self, item: Mapping[str, Any], kind: str, place: str) -> None:
        name, call = _text(item, "name", place), _text(item, "call_id", place)
        if item.get("namespace"):
            name = f"{_text(item, 'namespace', place)}__{name}"
        arguments = _text(item, "arguments" if kind == "function_call" else "input", place)
        if kind == "custom_tool_call":
            arguments = json.dumps({"input": arguments}, ensure_ascii=False)
        self._called.add(call)
        if not (self.messages and self.messages[-1]["role"] == "assistant"):
            self.append({"role": "assistant"}, place)
        made = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages[-1].setdefault("tool_calls", []).append(made)

    def _reasoning(self, item: Mapping[str, Any], place: str) -> str | None:
        for name in ("content", "summary"):
            if parts := member(item, name, list, place):
                return _text(parts[0] if isinstance(parts[0], dict) else {}, "text", f"{place}.{name}[0]")
        given = member(item, "encrypted_content", str, place) or _SEALED
        try:
            if given.startswith(_SEALED):
                return base64.b64decode(given[len(_SEALED) :], validate=True).decode()
        except ValueError:
            pass
        self.warnings.append("encrypted reasoning of another server left out")
        return None


def _content(item: Mapping[str, Any], name: str, place: str) -> Any:
    """A text, or content parts, as chat requests have them."""
    content, place = item.get(name), f"{place}.{name}"
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(place, "must be a text or a list of content parts")
    return [_part(part, f"{place}[{number}]") for number, part in enumerate(content)]


def _part(part: Any, place: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise invalid(place, "must be an object")
    kind = part.get("type")
    if isinstance(kind, str) and (name := _TEXTS.get(kind)) is not None:
        return {"type": "text", "text": _text(part, name, place)}
    if kind != "input_image" or part.get("file_id") is not None:
        raise invalid(place, f"is {_shown(kind)}, which is not served here: files have no store", "unsupported_content")
    detail = {} if part.get("detail") is None else {"detail": part["detail"]}
    return {"type": "image_url", "image_url": {"url": _text(part, "image_url", place), **detail}}


def _functions(fields: Mapping[str, Any], tools: dict[str, ToolName], warnings: list[str]) -> Iterator[dict[str, Any]]:
    """The functions of all tools as chat requests have them; ``tools`` gets their names."""
    for number, tool in enumerate(member(fields, "tools", list) or ()):
        if not isinstance(tool, dict):
            raise invalid(f"tools[{number}]", "must be an object")
        kind, place = tool.get("type"), f"tools[{number}]"
        if kind not in ("function", "custom", "namespace"):
            warnings.append(f"tool {_shown(kind)} left out")
            continue
        name = _text(tool, "name", place)
        if kind == "function":
            tools[name] = ToolName(name)
            yield _function(tool)
        elif kind == "custom":
            tools[name] = ToolName(name, custom=True)
            if isinstance(form := tool.get("format"), dict) and form.get("type") == "grammar":
                warnings.append(f"grammar of tool {_shown(name)} not enforced")
            yield _function({"name": name, "description": tool.get("description"), "parameters": _CUSTOM_INPUT})
        else:
            for position, inner in enumerate(member(tool, "tools", list, place) or ()):
                if not isinstance(inner, dict) or inner.get("type") != "function":
                    warnings.append(f"tool {_shown(name)} left out in part")
                    continue
                own = _text(inner, "name", f"{place}.tools[{position}]")
                tools[flat := f"{name}__{own}"] = ToolName(own, name)
                yield _function({**inner, "name": flat})


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: Any, tools: Mapping[str, ToolName], warnings: list[str]) -> Any:
    """The tool choice; None for the default."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        warnings.append("tool_choice allowed_tools taken for its mode")
        choice = choice.get("mode")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if choice in (None, "auto", "none") or (choice == "required" and tools):
        return choice if tools else None
    if kind in ("function", "custom"):
        name = f"{choice['namespace']}__{choice.get('name')}" if choice.get("namespace") else choice.get("name")
        if not isinstance(name, str):
            raise invalid("tool_choice.name", "must be a string", "invalid_value")
        found = [name] if name in tools else [flat for flat, tool in tools.items() if tool.name == name]
        if len(found) == 1:
            return {"type": "function", "function": {"name": found[0]}}
    elif kind is not None:
        warnings.append(f"tool_choice {_shown(kind)} left out")
        return None
    raise invalid("tool_choice", "must be auto, none, required, or name one of `tools`", "invalid_value")


def _format(form: Any) -> dict[str, Any] | None:
    """``text.format`` as a ``response_format``; None for plain text."""
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema" or not isinstance(form, dict):
        raise invalid("text.format", "must be an object of type text, json_object or json_schema")
    return {"type": kind, kind: {name: value for name, value in form.items() if name != "type"}}


_EXPECTED = {str: "a string", list: "a list", dict: "an object", bool: "a boolean"}


def member(fields: Mapping[str, Any], name: str, kind: type, place: str = "") -> Any:
    """A member of an object; None if it is missing.

    Raises:
        BadRequest: it is of another type.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise invalid(f"{place}.{name}" if place else name, f"must be {_EXPECTED[kind]}")
    return value


def _text(fields: Mapping[str, Any], name: str, place: str) -> str:
    if not isinstance(value := fields.get(name), str):
        raise invalid(f"{place}.{name}", "must be a string", "invalid_type" if name in fields else "missing_parameter")
    return value


def _shown(text: Any) -> str:
    """A client's word in a header or an error."""
    return text if isinstance(text, str) and _SHOWN.fullmatch(text) else "of another type"
