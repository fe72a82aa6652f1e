"""OpenAI's Responses API: a request as a chat request, in the way of vLLM's own conversion.

Where it differs: all parts of an assistant's message are kept (vLLM takes the first), and what only the client's vendor
can read or run (its encrypted reasoning, hosted tools, grammars of tools) is left out with a warning.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.core.errors import BadRequest
from gateway.core.portions import Portioned

_AT_ONCE = 1000
"""Items that are converted in one portion."""

_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed"),
    *("repetition_penalty", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "priority", "user"),
    *("cache_salt", "prompt_cache_key", "parallel_tool_calls", "chat_template_kwargs", "skip_special_tokens"),
    *("include_stop_str_in_output", "include_reasoning", "structured_outputs"),
)
"""Members that chat requests have under the same name."""

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
}
"""Members of the Responses API by the names that they have in the chat request."""

_ROLES = frozenset({"user", "system", "developer", "assistant"})
_TEXTS = frozenset({"input_text", "output_text", "text"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_OPEN = frozenset({"in_progress", "incomplete"})
_CHOICES = frozenset({"auto", "none", "required"})
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
    """A tool as its client calls it.

    Attributes:
        name: Its name.
        namespace: Its namespace; None for none.
        custom: Whether its input is a text instead of JSON.
    """

    name: str
    namespace: str | None = None
    custom: bool = False


class Chat(NamedTuple):
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


def items_of(fields: Mapping[str, Any]) -> list[Any]:
    """The items of ``input``.

    Raises:
        BadRequest: it is missing, or no text and no list.
    """
    given = fields.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if given is None:
        raise BadRequest("`input` is missing: give a text or a list of items.", param="input", code=_MISSING)
    if not isinstance(given, list):
        raise wrong("input", "a text or a list of items")
    return given


def chat_of(
    fields: Mapping[str, Any], items: Sequence[Any] | None = None, before: Sequence[Any] = ()
) -> Portioned[Chat]:
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
        raise BadRequest("`input` is empty: give at least one item.", param="input", code="invalid_value")
    made = _Messages()
    instructions = member(fields, "instructions", str, "a string")
    if instructions:
        made.append({"role": "system", "content": instructions}, "instructions")
    for number, item in enumerate(before):
        made.add(item, "previous_response_id")
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield
    for number, item in enumerate(items):
        made.add(item, f"input[{number}]")
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield
    warnings = made.warnings
    chat: dict[str, Any] = {name: fields[name] for name in _SAME if fields.get(name) is not None}
    chat["messages"] = made.messages
    last = (items or before)[-1]
    if last.get("type", "message") in ("message", "reasoning") and last.get("status") in _OPEN:
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    tools: dict[str, ToolName] = {}
    if shown := list(_functions(fields, tools, warnings)):
        chat["tools"] = shown
    if (choice := _tool_choice(fields.get("tool_choice"), tools, warnings)) is not None:
        chat["tool_choice"] = choice
    if (most := fields.get("max_output_tokens")) is not None:
        chat["max_tokens"] = most
    if (reasoning := member(fields, "reasoning", dict, "an object")) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if text := member(fields, "text", dict, "an object"):
        if text.get("verbosity") is not None:
            chat["verbosity"] = text["verbosity"]
        if (form := _format(text.get("format"))) is not None:
            chat["response_format"] = form
    if fields.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return Chat(chat, made.places, tools, warnings[:_MOST_WARNINGS])


class _Messages:
    """Chat messages, made of items one by one."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self.warnings: list[str] = []
        self._called: set[str] = set()

    def append(self, message: dict[str, Any], place: str) -> None:
        """Add a message."""
        self.messages.append(message)
        self.places.append(place)

    def add(self, item: Any, place: str) -> None:
        """Add an item: as a message, or to the assistant's message before it."""
        if not isinstance(item, dict):
            raise wrong(place, "an object")
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, place)
        elif kind in _CALLS:
            self._call(item, place)
        elif kind in _OUTPUTS:
            call = _text(item, "call_id", place)
            if call not in self._called:
                problem = f"`{place}.call_id` names no call before it: send the item of the call, too."
                raise BadRequest(problem, param=f"{place}.call_id", code="invalid_value")
            output = self._content(item.get("output"), f"{place}.output")
            self.append({"role": "tool", "content": output, "tool_call_id": call}, place)
        elif kind == "reasoning":
            if (thought := self._reasoning(item, place)) is not None:
                self._assistant("reasoning", thought, place)
        else:
            problem = f"`{place}` has the type {_shown(kind)}, which is not served here."
            raise BadRequest(problem, param=f"{place}.type", code="unsupported_item")

    def _message(self, item: Mapping[str, Any], place: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise wrong(f"{place}.role", "one of user, system, developer and assistant")
        content = self._content(item.get("content"), f"{place}.content")
        if role != "assistant":
            self.append({"role": role, "content": content}, place)
            return
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        self._assistant("content", content, place)

    def _assistant(self, name: str, value: Any, place: str) -> None:
        before = self.messages[-1] if self.messages else {}
        if before.get("role") == "assistant" and before.get(name) is None:
            before[name] = value
        else:
            self.append({"role": "assistant", name: value}, place)

    def _call(self, item: Mapping[str, Any], place: str) -> None:
        name, call = _text(item, "name", place), _text(item, "call_id", place)
        if item.get("namespace"):
            name = f"{_text(item, 'namespace', place)}__{name}"
        if item["type"] == "function_call":
            arguments = _text(item, "arguments", place)
        else:
            # With the spacing of Python's ``json``, as vLLM writes it.
            arguments = f'{{"input": {orjson.dumps(item.get("input") or "").decode()}}}'
        self._called.add(call)
        made = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        if not (self.messages and self.messages[-1]["role"] == "assistant"):
            self.append({"role": "assistant"}, place)
        self.messages[-1].setdefault("tool_calls", []).append(made)

    def _reasoning(self, item: Mapping[str, Any], place: str) -> str | None:
        for name in ("content", "summary"):
            parts = member(item, name, list, "a list", place)
            if parts and isinstance(parts[0], dict) and isinstance(parts[0].get("text"), str):
                text: str = parts[0]["text"]
                return text
        if not (given := member(item, "encrypted_content", str, "a string", place)):
            return ""
        if given.startswith(_SEALED):
            try:
                return base64.b64decode(given[len(_SEALED) :], validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                pass
        self.warnings.append("encrypted reasoning of another server left out")
        return None

    def _content(self, content: Any, place: str) -> Any:
        """A text, or content parts, as chat requests have them."""
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise wrong(place, "a text or a list of content parts")
        return [self._part(part, f"{place}[{number}]") for number, part in enumerate(content)]

    def _part(self, part: Any, place: str) -> dict[str, Any]:
        if not isinstance(part, dict):
            raise wrong(place, "an object")
        kind = part.get("type")
        if kind in _TEXTS:
            return {"type": "text", "text": _text(part, "text", place)}
        if kind == "refusal":
            return {"type": "text", "text": _text(part, "refusal", place)}
        if kind == "input_image" and part.get("file_id") is None:
            image = {"url": _text(part, "image_url", place)}
            if part.get("detail") is not None:
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        problem = f"`{place}` has the type {_shown(kind)}, which is not served here: files have no store."
        raise BadRequest(problem, param=place, code="unsupported_content")


def _functions(fields: Mapping[str, Any], tools: dict[str, ToolName], warnings: list[str]) -> Iterator[dict[str, Any]]:
    """The functions of all tools as chat requests have them; ``tools`` gets their names."""
    for number, tool in enumerate(member(fields, "tools", list, "a list") or ()):
        place = f"tools[{number}]"
        if not isinstance(tool, dict):
            raise wrong(place, "an object")
        kind = tool.get("type")
        if kind not in ("function", "custom", "namespace"):
            warnings.append(f"tool {_shown(kind)} left out")
            continue
        name = _text(tool, "name", place)
        if kind == "namespace":
            for position, inner in enumerate(member(tool, "tools", list, "a list", place) or ()):
                if isinstance(inner, dict) and inner.get("type") == "function":
                    own = _text(inner, "name", f"{place}.tools[{position}]")
                    tools[flat := f"{name}__{own}"] = ToolName(own, name)
                    yield _function({**inner, "name": flat})
                else:
                    warnings.append(f"tool {_shown(name)} left out in part")
        elif kind == "function":
            tools[name] = ToolName(name)
            yield _function(tool)
        else:
            tools[name] = ToolName(name, custom=True)
            form = tool.get("format")
            if isinstance(form, dict) and form.get("type") == "grammar":
                warnings.append(f"grammar of tool {_shown(name)} not enforced")
            yield _function({"name": name, "description": tool.get("description"), "parameters": _CUSTOM_INPUT})


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: Any, tools: Mapping[str, ToolName], warnings: list[str]) -> Any:
    """The tool choice; None for the default.

    Raises:
        BadRequest: no tool can be called that it asks for.
    """
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind == "allowed_tools":
        warnings.append("tool_choice allowed_tools taken for its mode")
        kind = choice = choice.get("mode")
    if kind in ("function", "custom"):
        name = choice.get("name")
        if choice.get("namespace"):
            name = f"{choice['namespace']}__{name}"
        found = [name] if name in tools else [flat for flat, tool in tools.items() if tool.name == name]
        if len(found) == 1:
            return {"type": "function", "function": {"name": found[0]}}
    elif kind in _CHOICES or kind is None:
        if kind != "required":
            return kind if tools else None
        if tools:
            return kind
    elif isinstance(choice, dict):
        warnings.append(f"tool_choice {_shown(kind)} left out")
        return None
    raise BadRequest(
        "`tool_choice` must be auto, none, required, or name one of `tools`.", param="tool_choice", code="invalid_value"
    )


def _format(form: Any) -> dict[str, Any] | None:
    """``text.format`` as a ``response_format``; None for plain text."""
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind == "json_schema":
        return {"type": kind, kind: {name: value for name, value in form.items() if name != "type"}}
    raise wrong("text.format", "an object of type text, json_object or json_schema")


_MISSING = "missing_required_parameter"


def member(fields: Mapping[str, Any], name: str, kind: type, expected: str, place: str = "") -> Any:
    """A member of an object; None if it is missing.

    Raises:
        BadRequest: it is of another type.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise wrong(f"{place}.{name}" if place else name, expected)
    return value


def _text(fields: Mapping[str, Any], name: str, place: str) -> str:
    value = fields.get(name)
    if isinstance(value, str):
        return value
    raise (
        wrong(f"{place}.{name}", "a string")
        if value is not None
        else BadRequest(f"`{place}.{name}` is missing.", param=f"{place}.{name}", code=_MISSING)
    )


def wrong(param: str, expected: str) -> BadRequest:
    """The error for a member of the wrong type."""
    return BadRequest(f"`{param}` must be {expected}.", param=param, code="invalid_type")


def _shown(text: Any) -> str:
    """A client's word in a header or an error."""
    return text if isinstance(text, str) and _SHOWN.fullmatch(text) else "of another type"
