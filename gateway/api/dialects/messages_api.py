"""Anthropic's Messages API.

Requests become chat requests as vLLM 0.32 makes them (``entrypoints/anthropic/serving.py``), so that a prompt has the
tokens of the engine's own conversion. System messages inside the conversation stay where they are.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from gateway.api.dialects.client_fields import SAME, invalid, member, text_at
from gateway.api.dialects.dialect import AnswerClient, DialectRequest, Translated
from gateway.api.dialects.messages_answer import MessageConverter, error_of
from gateway.api.dialects.translating_sink import TranslatingSink
from gateway.core.client_places import ClientPlaces
from gateway.core.errors import GatewayError
from gateway.core.portions import Portioned
from gateway.core.ports import Sink
from gateway.turns import Turns

_AT_ONCE = 1000
"""Messages, blocks and tools, or pieces of JSON, per portion: some milliseconds at most."""

_MAX_NAMES = 1000
"""Parts and calls of which the place in the client's body is kept where it differs; of others, their message's is."""

_BILLING = "x-anthropic-billing-header"
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
"""Roles, with the chat message's. Claude Code has sent ``ctx`` and ``msg``, which vLLM takes for the user's."""

_PARTS = ("text", "image", "document")
_LEFT_OUT = ("redacted_thinking", "tool_reference")
_KINDS = {"user": (*_PARTS, "tool_result", *_LEFT_OUT), "assistant": (*_PARTS, "thinking", "tool_use", *_LEFT_OUT)}
"""Types of blocks: those that become content parts, those that engines leave out, and all by role."""

_SAME = {
    *(*SAME, "metadata", "kv_transfer_params", "length_penalty", "bad_words", "allowed_token_ids"),
    *("thinking_token_budget", "vllm_xargs"),
}

_NAMES = {"stop": "stop_sequences", "reasoning_effort": "output_config.effort"}
_WARNED = {"cache_salt": "the gateway sets it", "mcp_servers": "engines call no servers"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_FLAT = (int, float, bool, type(None))
_SHORT_CHARACTERS = 64 * 1024

Object = dict[str, Any]


class MessagesChat:
    """A request as a chat request: ``fields``, ``places`` and ``names`` as of ``Translated``.

    Attributes:
        left_out: What no engine would take, for a warning.
        prewarm: Whether only the cache is to be filled, and nothing to be generated.
    """

    def __init__(self) -> None:
        self.fields: Object = {}
        self.places: list[str] = []
        self.names = dict(_NAMES)
        self.left_out: list[str] = []
        self.prewarm = False
        self._messages: list[Object] = []
        self._steps = 0

    def convert(self, body: Mapping[str, Any], *, counts: bool) -> Portioned[None]:
        """Fill it, in time in proportion to the blocks of ``body``. With ``counts`` that may lack ``max_tokens``.

        Raises:
            BadRequest: it violates the API; ``param`` is the place, such as ``messages[2].content[0].type``.
        """
        if body.get("system") is not None:
            yield from self._system(body["system"], "system", "system")
            self.names |= {"messages[0].content": "system"} if self.places else {}
        for number, message in enumerate(_list(body.get("messages"), "messages")):
            place = f"messages[{number}]"
            role = message.get("role") if isinstance(message, dict) else None
            role = _ROLES.get(role) if isinstance(role, str) else None
            if role is None:
                raise invalid(f"{place}.role", "must be user, assistant or system")
            if self._step():
                yield
            content = message.get("content")
            if role == "system":
                yield from self._system(content, f"{place}.content", place)
            elif isinstance(content, str):
                self._add({"role": role, "content": content}, place)
            else:
                yield from self._blocks(role, _list(content, f"{place}.content"), place)
        self.fields |= {name: value for name, value in body.items() if name in _SAME and value is not None}
        self.fields["messages"] = self._messages
        if body["messages"] and not self._messages:
            raise invalid("messages[0].content", "must not be empty")
        yield from self._tools(body)
        self._settings(body)
        limit = body.get("max_tokens")
        if limit is not None or not counts:
            if type(limit) is not int or limit < 0:
                raise invalid("max_tokens", "must be a number of tokens; 0 fills the cache and generates nothing")
            self.prewarm = limit == 0
            self.fields["max_tokens"] = limit or 1

    def _step(self) -> bool:
        """Whether a portion is over."""
        self._steps += 1
        return self._steps % _AT_ONCE == 0

    def _add(self, message: Object, place: str) -> None:
        self._messages.append(message)
        self.places.append(place)

    def _system(self, content: Any, where: str, place: str) -> Portioned[None]:
        """Add a system message: its blocks joined without a separator.

        The attribution line of Claude Code becomes a line of its own in front, as which it is recognized and stripped.
        """
        texts = [part["text"] for part in (yield from self._parts(content, where, ("text",)))]
        billing = [text.removesuffix("\n") + "\n" for text in texts if text.startswith(_BILLING)]
        if billing and isinstance(content, list):
            texts = billing + [text for text in texts if not text.startswith(_BILLING)]
        if joined := "".join(texts):
            self._add({"role": "system", "content": joined}, place)

    def _blocks(self, role: str, content: Sequence[Any], place: str) -> Portioned[None]:
        """Add a message of blocks: the results of tools first, in messages of their own."""
        parts: list[Object] = []
        calls: list[Object] = []
        thoughts: list[str] = []
        moved: dict[str, str] = {}
        for position, block in enumerate(content):
            where = f"{place}.content[{position}]"
            kind, is_named = _kind(block, where, _KINDS[role]), len(moved) < _MAX_NAMES
            if kind == "tool_use":
                if is_named:
                    moved[f"tool_calls[{len(calls)}].function.arguments"] = f"{where}.input"
                function = {"name": text_at(block, "name", where), "arguments": (yield from _json_of(block, where))}
                calls.append({"id": text_at(block, "id", where), "type": "function", "function": function})
            elif kind == "tool_result":
                yield from self._result(block, where)
            elif kind == "thinking":
                thoughts.append(text_at(block, "thinking", where))
            elif kind not in _LEFT_OUT:
                part = _part(block, kind, where)
                if part.get("text") != "":
                    if len(parts) != position and is_named:
                        moved[f"content[{len(parts)}]"] = where
                    parts.append(part)
            if self._step():
                yield
        own: Object = {"role": role}
        if parts:
            is_text = len(parts) == 1 and parts[0]["type"] == "text"
            own["content"] = parts[0]["text"] if is_text else parts
        elif role == "user":
            return
        if thoughts:
            own["reasoning_content"] = "".join(thoughts)
        if calls:
            own["tool_calls"] = calls
        if len(self.names) < _MAX_NAMES:
            self.names |= {f"messages[{len(self._messages)}].{name}": given for name, given in moved.items()}
        self._add(own, place)

    def _result(self, block: Object, where: str) -> Portioned[None]:
        """Add a tool's result: its text as a message of the tool, its images as one of the user."""
        call, content = text_at(block, "tool_use_id", where), block.get("content") or ""
        found = yield from self._parts(content, f"{where}.content", (*_PARTS, "tool_reference"))
        text = "\n".join([part["text"] for part in found if part["type"] == "text"])
        self._add({"role": "tool", "tool_call_id": call, "content": text}, where)
        if images := [part for part in found if part["type"] == "image_url"]:
            self._add({"role": "user", "content": images}, where)
        if references := [part for part in found if part["type"] == "tool_reference"]:
            self._add({"role": "tool", "tool_call_id": call, "content": references}, where)

    def _parts(self, content: Any, where: str, kinds: Sequence[str]) -> Portioned[list[Object]]:
        """The content parts of a text, or of a list of blocks of these types."""
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        parts: list[Object] = []
        for position, block in enumerate(_list(content, where)):
            place = f"{where}[{position}]"
            parts.append(_part(block, _kind(block, place, kinds), place))
            if self._step():
                yield
        return parts

    def _tools(self, body: Mapping[str, Any]) -> Portioned[None]:
        tools: list[Object] = []
        for number, tool in enumerate(_list(body.get("tools") or [], "tools")):
            where = f"tools[{number}]"
            kind, schema = (tool.get("type"), tool.get("input_schema")) if isinstance(tool, dict) else (None, None)
            if schema is None and isinstance(kind, str) and kind != "custom":
                self.left_out.append(f"{where} ({re.sub(r'[^A-Za-z0-9_.-]', '?', kind[:60])})")
            elif not isinstance(schema, dict):
                raise invalid(f"{where}.input_schema", 'must be a JSON schema, such as {"type": "object"}')
            else:
                function: Object = {"name": text_at(tool, "name", where), "description": tool.get("description")}
                function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
                function |= {name: tool.get(name) for name in ("strict", "defer_loading")}
                function = {name: value for name, value in function.items() if value is not None}
                tools.append({"type": "function", "function": function})
            if self._step():
                yield
        choice, fields = member(body, "tool_choice", dict) or {}, self.fields
        kind = choice.get("type", "auto")
        if kind == "tool":
            name = text_at(choice, "name", "tool_choice")
            if all(tool["function"]["name"] != name for tool in tools):
                raise invalid("tool_choice.name", "names none of the tools that engines can call")
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif not isinstance(kind, str) or kind not in _CHOICES:
            raise invalid("tool_choice.type", "must be auto, any, tool or none")
        elif tools:
            fields["tool_choice"] = _CHOICES[kind]
        if tools:
            fields["tools"] = tools
            if choice.get("disable_parallel_tool_use"):
                fields["parallel_tool_calls"] = False

    def _settings(self, body: Mapping[str, Any]) -> None:
        fields = self.fields
        output, thinking = (member(body, name, dict) or {} for name in ("output_config", "thinking"))
        form = output.get("format")
        if (effort := "none" if thinking.get("type") == "disabled" else output.get("effort")) is not None:
            fields["reasoning_effort"] = effort
        if isinstance(form, dict) and form.get("schema") is not None:
            named = {"name": "json_schema", "schema": form["schema"]}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        if body.get("stop_sequences"):
            fields["stop"] = body["stop_sequences"]
        if body.get("stream"):
            fields["stream_options"] = {"include_usage": True}
        self.left_out += [f"{name} ({why})" for name, why in _WARNED.items() if body.get(name) not in (None, [])]


def _json_of(block: Object, where: str) -> Portioned[str]:
    """The input of a call as Python's ``json.dumps`` writes it."""
    value = member(block, "input", dict, where) or {}
    members = value.values() if len(value) < _AT_ONCE else [value]
    if all(type(each) in _FLAT or (type(each) is str and len(each) < _SHORT_CHARACTERS) for each in members):
        return json.dumps(value)
    pieces = []
    for number, piece in enumerate(json.JSONEncoder().iterencode(value)):
        pieces.append(piece)
        if number % _AT_ONCE == 0 or len(piece) > _SHORT_CHARACTERS:
            yield
    return "".join(pieces)


def _kind(block: Any, where: str, kinds: Sequence[str]) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(kind, str) and kind in kinds:
        return kind
    found = f", not {json.dumps(kind[:60])}: leave the block out" if isinstance(kind, str) else ""
    raise invalid(f"{where}.type", f"must be one of {', '.join(kinds)}{found}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(
            where, "must be a list" if where in ("messages", "tools") else "must be a string or a list of blocks"
        )
    return value


def _part(block: Object, kind: str, where: str) -> Object:
    """The content part of a block. A document becomes a text, with its title in front."""
    if kind == "tool_reference":
        return {"type": kind, "name": text_at(block, "tool_name", where)}
    if kind == "text":
        return {"type": "text", "text": text_at(block, "text", where)}
    at, source = f"{where}.source", block.get("source")
    source = source if isinstance(source, dict) else {"type": None}
    form = source.get("type", "base64")
    if kind == "document":
        if form != "text":
            raise invalid(f"{at}.type", "must be text: engines read no files. Send the document's text")
        texts = [block.get("title"), block.get("context"), text_at(source, "data", at)]
        return {"type": "text", "text": "\n".join([text for text in texts if text and isinstance(text, str)])}
    if form not in ("base64", "url"):
        raise invalid(f"{at}.type", "must be base64 or url: no files are kept here")
    url = f"data:{source.get('media_type') or 'image/jpeg'};base64," if form == "base64" else ""
    return {"type": "image_url", "image_url": {"url": url + text_at(source, "data" if url else "url", at)}}


class MessagesDialect:
    """The API; with ``counts`` its requests that only ask for the number of their tokens."""

    name = "messages"
    refusal = staticmethod(error_of)

    def __init__(self, turns: Turns, *, counts: bool = False) -> None:
        self._turns = turns
        self._counts = counts

    async def translate(self, asked: DialectRequest) -> Translated:
        """See ``Dialect``."""
        chat = MessagesChat()
        await self._turns.run(chat.convert(asked.fields, counts=self._counts), asked.caller.tenant.id)
        headers = [(b"request-id", asked.request_id.encode())]
        if chat.left_out:
            listed = ", ".join(chat.left_out[:5]) + ", ..." * (len(chat.left_out) > 5)
            headers.append((b"x-gateway-warning", f"left out: {listed}".encode()))

        diagnostics = member(asked.fields, "diagnostics", dict) or {}
        compares = member(diagnostics, "previous_message_id", str, "diagnostics")

        # Neither function refers to the bodies: a stream of minutes would keep them in memory.
        request_id, places = asked.request_id, ClientPlaces(chat.places, chat.names)
        converter = MessageConverter(asked.fields.get("model"), request_id, prewarm=chat.prewarm, counts=self._counts)
        converter.compares = compares is not None

        def refused(error: GatewayError) -> tuple[int, bytes]:
            places.rename(error)
            return error_of(error, request_id)

        def answer(client: AnswerClient) -> AbstractAsyncContextManager[Sink]:
            return nullcontext(TranslatingSink(client, converter, refused, headers))

        return Translated(chat.fields, places, answer, self._counts, compares)
