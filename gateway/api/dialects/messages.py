"""Anthropic's Messages API.

Requests become chat requests as vLLM 0.32 makes them (``entrypoints/anthropic/serving.py``), so that the prompt has the
tokens of the engine's own conversion. System messages inside the conversation stay where they are.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from gateway.api.dialects.dialect import Asked, Problem, Translated, problem_in
from gateway.api.dialects.messages_answer import MessageConverter, error_of
from gateway.api.dialects.translating_sink import TranslatingSink
from gateway.core.errors import BadRequest
from gateway.core.portions import Portioned
from gateway.core.ports import Sink
from gateway.turns import Turns

_AT_ONCE = 1000
"""Messages, blocks and tools per portion: a millisecond or two."""

_MAX_NAMES = 10_000
"""Parts and calls whose place in the client's body is kept, where it differs; of further ones the message is."""

_MAX_LISTED = 5
_BILLING = "x-anthropic-billing-header"
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
"""Roles of the chat message. Claude Code has sent ``ctx`` and ``msg``, which vLLM takes for the user's."""

_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "metadata", "chat_template_kwargs", "kv_transfer_params"),
    *("min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "min_tokens"),
    *("stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "logit_bias", "bad_words"),
    *("spaces_between_special_tokens", "allowed_token_ids", "priority", "thinking_token_budget", "vllm_xargs"),
    *("structured_outputs", "response_format", "documents"),
)
"""Members that chat requests have under the same name: Anthropic's, and vLLM's own."""

_NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "tool_choice.function.name": "tool_choice.name",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "max_completion_tokens": "max_tokens",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TEXTS = ("text", "image", "document", "search_result")
_KINDS = {"user": (*_TEXTS, "tool_result"), "assistant": (*_TEXTS, "thinking", "redacted_thinking", "tool_use")}
_IN_RESULT = (*_TEXTS, "tool_reference")
_LEFT_OUT = ("redacted_thinking", "tool_reference")
"""Types of blocks: those that become content parts, all by role, all of results, and those that engines leave out."""

_FLAT = (str, int, float, bool, type(None))
_SHORT_CHARACTERS = 64 * 1024
_encode = json.JSONEncoder()


@dataclass(slots=True)
class Chat:
    """A request as a chat request.

    Attributes:
        fields: The chat request.
        places: See ``Translated``.
        names: See ``Translated``.
        left_out: What no engine would take, for a warning.
        prewarm: Whether only the cache is to be filled, and nothing to be generated.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=_NAMES.copy)
    left_out: list[str] = field(default_factory=list)
    prewarm: bool = False
    _messages: list[dict[str, Any]] = field(default_factory=list)
    _steps: int = 0

    def convert(self, body: Mapping[str, Any], *, counts: bool) -> Portioned[None]:
        """See ``chat_of``."""
        if body.get("system") is not None:
            yield from self._add_system(body["system"], "system", "system")
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise _bad("messages", "must be a list of messages")
        for number, message in enumerate(messages):
            yield from self._message(message, f"messages[{number}]")
        fields = self.fields
        fields |= {name: body[name] for name in _SAME if body.get(name) is not None}
        fields["messages"] = self._messages
        yield from self._add_tools(body)
        self._add_settings(body)
        if body.get("stream"):
            fields["stream_options"] = {"include_usage": True}
        if body.get("cache_salt") is not None:
            self.left_out.append("cache_salt (the gateway sets it)")
        if not counts:
            limit = body.get("max_tokens")
            if type(limit) is not int or limit < 0:
                raise _bad("max_tokens", "must be a number of tokens; 0 fills the cache and generates nothing")
            self.prewarm = limit == 0
            fields["max_tokens"] = limit or 1

    def _step(self) -> bool:
        """Whether a portion is over."""
        self._steps += 1
        return self._steps % _AT_ONCE == 0

    def _add(self, message: dict[str, Any], place: str) -> None:
        self._messages.append(message)
        self.places.append(place)

    def _name(self, chat: str, own: str) -> None:
        """Keep the place of a part of the next message."""
        if len(self.names) < _MAX_NAMES:
            self.names[f"messages[{len(self._messages)}].{chat}"] = own

    # Messages

    def _message(self, message: Any, place: str) -> Portioned[None]:
        role = message.get("role") if isinstance(message, dict) else None
        role = _ROLES.get(role) if isinstance(role, str) else None
        if role is None:
            raise _bad(f"{place}.role", "must be user, assistant or system")
        content = message.get("content")
        if self._step():
            yield
        if role == "system":
            yield from self._add_system(content, f"{place}.content", place)
        elif isinstance(content, str):
            self._add({"role": role, "content": content}, place)
        elif isinstance(content, list):
            yield from self._blocks(role, content, place)
        else:
            raise _bad(f"{place}.content", "must be a string or a list of content blocks")

    def _add_system(self, content: Any, where: str, place: str) -> Portioned[None]:
        """Add a system message: its blocks joined without a separator.

        The attribution line of Claude Code becomes a line of its own in front, as which it is recognized and stripped.
        """
        billing: list[str] = []
        texts: list[str] = []
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            for position, block in enumerate(content):
                text = _text(block, f"{where}[{position}]", ("text",))
                if text.startswith(_BILLING):
                    billing.append(text if text.endswith("\n") else text + "\n")
                else:
                    texts.append(text)
                if self._step():
                    yield
        else:
            raise _bad(where, "must be a string or a list of text blocks")
        if joined := "".join(billing + texts):
            self._name("content", where)
            self._add({"role": "system", "content": joined}, place)

    def _blocks(self, role: str, content: Sequence[Any], place: str) -> Portioned[None]:
        """Add a message of blocks: the results of tools first, in messages of their own."""
        parts: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        moved: list[tuple[str, str]] = []
        for position, block in enumerate(content):
            kind, before = block.get("type") if isinstance(block, dict) else None, len(parts)
            if kind == "text" and type(text := block.get("text")) is str:
                if text:
                    parts.append({"type": "text", "text": text})
            elif kind == "tool_use" and role == "assistant":
                where = f"{place}.content[{position}]"
                moved.append((f"tool_calls[{len(calls)}].function.arguments", f"{where}.input"))
                calls.append((yield from self._call(block, where)))
            elif kind == "tool_result" and role == "user":
                yield from self._result(block, f"{place}.content[{position}]")
            elif kind == "thinking" and role == "assistant":
                thoughts.append(_string(block, "thinking", f"{place}.content[{position}]"))
            elif kind not in _LEFT_OUT:
                parts += yield from self._parts(block, f"{place}.content[{position}]", _KINDS[role])
            if len(parts) > before and before != position and len(moved) < _MAX_NAMES:
                moved.append((f"content[{before}]", f"{place}.content[{position}]"))
            if self._step():
                yield
        own: dict[str, Any] = {"role": role}
        if len(parts) == 1 and parts[0]["type"] == "text":
            own["content"] = parts[0]["text"]
        elif parts:
            own["content"] = parts
        elif role == "user":
            return
        if thoughts:
            own["reasoning"] = "".join(thoughts)
        if calls:
            own["tool_calls"] = calls
        for chat, client in moved:
            self._name(chat, client)
        self._add(own, place)

    def _call(self, block: Mapping[str, Any], where: str) -> Portioned[dict[str, Any]]:
        given = block.get("input")
        if given is not None and not isinstance(given, dict):
            raise _bad(f"{where}.input", "must be an object")
        function = {"name": _string(block, "name", where), "arguments": (yield from _json_of(given or {}))}
        return {"id": _string(block, "id", where), "type": "function", "function": function}

    def _result(self, block: Mapping[str, Any], where: str) -> Portioned[None]:
        """Add a result: its text as a message of the tool, its images as one of the user."""
        content, call = block.get("content"), _string(block, "tool_use_id", where)
        texts: list[str] = []
        images: list[dict[str, Any]] = []
        references: list[dict[str, Any]] = []
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            for position, item in enumerate(content):
                if isinstance(item, dict) and item.get("type") == "tool_reference":
                    references.append(
                        {"type": "tool_reference", "name": _string(item, "tool_name", f"{where}.content[{position}]")}
                    )
                elif isinstance(item, dict) and item.get("type") == "text":
                    texts.append(_string(item, "text", f"{where}.content[{position}]"))
                else:
                    for part in (yield from self._parts(item, f"{where}.content[{position}]", _IN_RESULT)):
                        if part["type"] == "text":
                            texts.append(part["text"])
                        else:
                            images.append(part)
                if self._step():
                    yield
        elif content is not None:
            raise _bad(f"{where}.content", "must be a string or a list of content blocks")
        self._add({"role": "tool", "tool_call_id": call, "content": "\n".join(texts)}, where)
        if images:
            self._add({"role": "user", "content": images}, where)
        if references:
            self._add({"role": "tool", "tool_call_id": call, "content": references}, where)

    def _parts(self, block: Any, where: str, kinds: Sequence[str]) -> Portioned[list[dict[str, Any]]]:
        """The content parts of a text, an image, or a document or search result, which become text."""
        kind = _kind(block, where, kinds)
        if kind == "text":
            text = _string(block, "text", where)
            return [{"type": "text", "text": text}] if text else []
        source = block.get("source")
        if kind == "image":
            return [{"type": "image_url", "image_url": {"url": _url(source, f"{where}.source")}}]
        content, at = block.get("content"), f"{where}.content"
        if kind == "document":
            form = source.get("type") if isinstance(source, dict) else None
            if form not in ("text", "content"):
                raise _bad(f"{where}.source.type", "must be text or content: engines read no PDF; send its text")
            at = f"{where}.source.{'data' if form == 'text' else 'content'}"
            content = source.get("data" if form == "text" else "content")
            source = None
        heads = [text for text in (block.get("title"), source, block.get("context")) if text and isinstance(text, str)]
        parts: list[dict[str, Any]] = [{"type": "text", "text": head} for head in heads]
        if isinstance(content, str):
            return [{"type": "text", "text": "\n".join([*heads, content])}]
        if not isinstance(content, list):
            raise _bad(at, "must be a text or a list of text and image blocks")
        for position, item in enumerate(content):
            parts += yield from self._parts(item, f"{at}[{position}]", ("text", "image"))
            if self._step():
                yield
        return parts

    # Everything else

    def _add_tools(self, body: Mapping[str, Any]) -> Portioned[None]:
        given, choice = body.get("tools"), body.get("tool_choice")
        if given is not None and not isinstance(given, list):
            raise _bad("tools", "must be a list of tools")
        tools: list[Any] = []
        for number, tool in enumerate(given or ()):
            where = f"tools[{number}]"
            kind, schema = (tool.get("type"), tool.get("input_schema")) if isinstance(tool, dict) else (None, None)
            if schema is None and isinstance(kind, str) and kind != "custom":
                self.left_out.append(f"{where} ({re.sub(r'[^A-Za-z0-9_.-]', '?', kind[:60])})")
            elif not isinstance(schema, dict):
                raise _bad(f"{where}.input_schema", 'must be a JSON schema, such as {"type": "object"}')
            else:
                function = {"name": _string(tool, "name", where), "description": tool.get("description")}
                function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
                function |= {name: tool.get(name) for name in ("strict", "defer_loading")}
                given_members = {name: value for name, value in function.items() if value is not None}
                tools.append({"type": "function", "function": given_members})
            if self._step():
                yield
        if tools:
            self.fields["tools"] = tools
        if choice is None:
            return
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind == "tool":
            name = _string(choice, "name", "tool_choice")
            if all(tool["function"]["name"] != name for tool in tools):
                raise _bad("tool_choice.name", "names none of the tools that engines can call")
            self.fields["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif not isinstance(kind, str) or kind not in _CHOICES:
            raise _bad("tool_choice.type", "must be auto, any, tool or none")
        elif tools:
            self.fields["tool_choice"] = _CHOICES[kind]
        if tools and choice.get("disable_parallel_tool_use"):
            self.fields["parallel_tool_calls"] = False

    def _add_settings(self, body: Mapping[str, Any]) -> None:
        fields, given = self.fields, {}
        for name in ("output_config", "thinking"):
            given[name] = body.get(name) or {}
            if not isinstance(given[name], dict):
                raise _bad(name, "must be an object")
        if body.get("stop_sequences"):
            fields["stop"] = body["stop_sequences"]
        if given["thinking"].get("type") == "disabled":
            fields["reasoning_effort"] = "none"
        elif (effort := given["output_config"].get("effort")) is not None:
            fields["reasoning_effort"] = effort
        form = given["output_config"].get("format")
        if isinstance(form, dict) and form.get("schema") is not None:
            schema = {"name": "json_schema", "schema": form["schema"]}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}


def chat_of(body: Mapping[str, Any], *, counts: bool = False) -> Portioned[Chat]:
    """A request as a chat request. Takes time in proportion to its blocks.

    Args:
        body: The request; only read. Its texts become parts of the chat request.
        counts: Whether it only asks for the number of its tokens, and so needs no ``max_tokens``.

    Raises:
        BadRequest: it violates the API; ``param`` is the place in the body, such as ``messages[2].content[0].type``.
    """
    chat = Chat()
    yield from chat.convert(body, counts=counts)
    return chat


def _json_of(value: Mapping[str, Any]) -> Portioned[str]:
    """JSON as Python's ``json.dumps`` writes it."""
    if len(value) < _AT_ONCE and all(
        type(each) in _FLAT and (type(each) is not str or len(each) < _SHORT_CHARACTERS) for each in value.values()
    ):
        return json.dumps(value)
    pieces = []
    for number, piece in enumerate(_encode.iterencode(value)):
        pieces.append(piece)
        if number % _AT_ONCE == 0 or len(piece) > _SHORT_CHARACTERS:
            yield
    return "".join(pieces)


def _kind(block: Any, where: str, kinds: Sequence[str]) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        found = "" if not isinstance(kind, str) else f", not {json.dumps(kind[:60])}"
        raise _bad(f"{where}.type", f"must be one of {', '.join(kinds)} here{found}: leave the block out")
    return kind


def _text(block: Any, where: str, kinds: Sequence[str]) -> str:
    _kind(block, where, kinds)
    return _string(block, "text", where)


def _string(holder: Mapping[str, Any], name: str, where: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str):
        raise _bad(f"{where}.{name}", "must be a string")
    return value


def _url(source: Any, where: str) -> str:
    """The URL of an image."""
    kind = source.get("type", "base64") if isinstance(source, dict) else None
    if kind == "url":
        return _string(source, "url", where)
    if kind != "base64":
        raise _bad(f"{where}.type", "must be base64 or url: files are not kept here")
    return f"data:{source.get('media_type') or 'image/jpeg'};base64,{_string(source, 'data', where)}"


def _bad(param: str, problem: str) -> BadRequest:
    return BadRequest(f"`{param}` {problem}.", param=param, code="invalid_value")


class MessagesDialect:
    """The API; see ``Dialect``.

    Args:
        turns: Runs the conversion of large bodies.
        counts: Whether requests only ask for the number of their tokens.
    """

    name = "messages"

    def __init__(self, turns: Turns, *, counts: bool = False) -> None:
        self._turns = turns
        self._counts = counts

    async def translate(self, asked: Asked) -> Translated:
        """See ``Dialect``."""
        chat = await self._turns.run(chat_of(asked.fields, counts=self._counts), asked.caller.tenant.id)
        headers = [(b"request-id", asked.request_id.encode())]
        if left_out := chat.left_out:
            listed = [
                *left_out[:_MAX_LISTED],
                *([f"{len(left_out) - _MAX_LISTED} more"] * (len(left_out) > _MAX_LISTED)),
            ]
            headers.append((b"x-gateway-warning", f"left out: {', '.join(listed)}".encode()))

        def refused(problem: Problem) -> tuple[int, bytes]:
            own = problem_in(translated, problem)
            # An engine has no tenants' limits: what it refuses so is an overload.
            is_busy = problem.status == 429
            return self.refusal(msgspec.structs.replace(own, status=529) if is_busy else own, asked.request_id)

        def answer(sink: Sink) -> Sink:
            converter = MessageConverter(asked.fields.get("model"), asked.request_id, prewarm=chat.prewarm)
            return TranslatingSink(sink, converter, refused, headers)

        counted = (lambda tokens: orjson.dumps({"input_tokens": tokens})) if self._counts else None
        translated = Translated(chat.fields, chat.places, chat.names, answer, headers, counted)
        return translated

    def refusal(self, problem: Problem, request_id: str) -> tuple[int, bytes]:
        """See ``Dialect``."""
        return error_of(problem, request_id)
