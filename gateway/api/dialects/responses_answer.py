"""Answers of the Responses API: the typed events of a stream, and the response object."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from gateway.api.dialects.dialect import Problem
from gateway.api.dialects.responses import ToolName, sealed
from gateway.api.dialects.translating_sink import CallDelta, ChatChunk, ChunkChoice, Delta

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PART = {"message": "output_text", "reasoning": "reasoning_text"}
_CUSTOM_BEGINS = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*+"
)
"""Characters in a JSON string, escaped or not, but none that a later part completes."""


class _Item(msgspec.Struct):
    """An item of the output that is still growing.

    Attributes:
        fields: The item.
        at: Its position in the output.
        kind: ``message``, ``reasoning``, ``function_call`` or ``custom_tool_call``.
        pieces: Its text or arguments.
        rest: Of a custom tool's arguments, what is not passed on as its input yet; None until the input begins.
    """

    fields: dict[str, Any]
    at: int
    kind: str
    pieces: list[str]
    rest: str | None = None


class ResponseAnswer:
    """An ``AnswerConverter`` for one response.

    Args:
        head: The response's members that are known from the request.
        digits: Hex digits that the ids of its items contain.
        tools: Its tools by their names in the chat request.
        seals: Whether the client wants reasoning as ``encrypted_content``.

    Attributes:
        head: The same.
        output: The items.
        state: The members that are known once it is over, ``status`` among them.
    """

    def __init__(
        self, head: dict[str, Any], digits: str, tools: Mapping[str, ToolName], *, seals: bool = False
    ) -> None:
        self.head = head
        self.output: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {"status": "in_progress"}
        self._digits = digits
        self._tools = tools
        self._seals = seals
        self._events: list[bytes] = []
        self._number = 0
        self._open: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._finish: str | None = None

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """See ``AnswerConverter``."""

    def chunk(self, chunk: ChatChunk) -> bytes:
        """See ``AnswerConverter``."""
        if not self._number:
            self._lifecycle("created")
            self._lifecycle("in_progress")
        if chunk.usage is not None:
            self.state["usage"] = usage_of(chunk.usage)
        for choice in chunk.choices[:1]:
            delta = choice.delta
            if thought := delta.reasoning or delta.reasoning_content:
                self._text("reasoning", thought)
            if text := delta.content or delta.refusal:
                self._text("message", text)
            for call in delta.tool_calls or ():
                self._call(call)
            self._finish = choice.finish_reason or self._finish
        return self._taken()

    def end(self) -> bytes:
        """See ``AnswerConverter``. The last event is ``final``."""
        begun = self.chunk(ChatChunk())
        self._close()
        reason = _INCOMPLETE.get(self._finish or "")
        self.state |= (
            {"status": "completed"}
            if reason is None
            else {"status": "incomplete", "incomplete_details": {"reason": reason}}
        )
        return begun + self._taken()

    def final(self, **more: Any) -> bytes:
        """The last event of a stream, with further members of the response."""
        self._lifecycle(self.state["status"], **more)
        return self._taken()

    def broken(self, problem: Problem) -> bytes:
        """See ``AnswerConverter``."""
        begun = self.chunk(ChatChunk())
        self._finish = "broken"
        self._close()
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        self.state |= {"status": "failed", "error": {"code": code, "message": problem.message}}
        return begun + self._taken()

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """See ``AnswerConverter``."""
        try:
            choice = answer["choices"][0]
            said = choice["message"]
            calls = [{**call, "index": at} for at, call in enumerate(said.get("tool_calls") or ())]
            delta = msgspec.convert({**said, "tool_calls": calls}, Delta)
            usage = answer.get("usage")
            self.chunk(ChatChunk(choices=[ChunkChoice(delta, choice.get("finish_reason"))], usage=usage))
            self.end()
        except (LookupError, TypeError, AttributeError, msgspec.ValidationError):
            self.broken(Problem(502, "upstream_error", "The engine's answer is no chat completion."))
        return orjson.dumps(self.response())

    def response(self, **more: Any) -> dict[str, Any]:
        """The response as it is now, with further members."""
        return {**self.head, **self.state, "output": self.output, **more}

    def _taken(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events

    def _event(self, kind: str, members: dict[str, Any]) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **members})
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._number += 1

    def _lifecycle(self, kind: str, **more: Any) -> None:
        self._event(f"response.{kind}", {"response": self.response(**more)})

    def _added(self, kind: str, prefix: str, members: dict[str, Any]) -> _Item:
        at = len(self.output)
        fields = {"id": f"{prefix}_{self._digits}{at:04x}", "type": kind, "status": "in_progress", **members}
        self.output.append(fields)
        self._event("response.output_item.added", {"output_index": at, "item": fields})
        return _Item(fields, at, kind, [])

    def _on(self, item: _Item, kind: str, **members: Any) -> None:
        """An event of a growing item."""
        self._event(f"response.{kind}", {"item_id": item.fields["id"], "output_index": item.at, **members})

    def _text(self, kind: str, text: str) -> None:
        item = self._open
        if item is None or item.kind != kind:
            self._close_text()
            if kind == "message":
                item = self._added(kind, "msg", {"role": "assistant", "content": []})
            else:
                item = self._added(kind, "rs", {"summary": [], "content": []})
            self._open = item
            self._on(item, "content_part.added", content_index=0, part=_part(kind, ""))
        item.pieces.append(text)
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        self._on(item, f"{_PART[kind]}.delta", content_index=0, delta=text, **more)

    def _call(self, call: CallDelta) -> None:
        function, item = call.function, self._calls.get(call.index)
        arguments = (function and function.arguments) or ""
        if item is None:
            self._close_text()
            name = (function and function.name) or ""
            tool = self._tools.get(name, ToolName(name))
            members = {"call_id": call.id or f"call_{self._digits}{call.index:04x}", "name": tool.name}
            if tool.namespace is not None:
                members["namespace"] = tool.namespace
            kind, prefix, own = (
                ("custom_tool_call", "ctc", "input") if tool.custom else ("function_call", "fc", "arguments")
            )
            self._calls[call.index] = item = self._added(kind, prefix, members | {own: ""})
        if arguments:
            item.pieces.append(arguments)
            if item.kind == "custom_tool_call":
                self._custom(item, arguments)
            else:
                self._on(item, "function_call_arguments.delta", delta=arguments)

    def _custom(self, item: _Item, arguments: str) -> None:
        """Pass on what is known of a custom tool's input: the text in ``{"input": "…"}``."""
        if item.rest is None:
            begun = _CUSTOM_BEGINS.match("".join(item.pieces))
            if begun is None:
                return
            item.rest, arguments = "", begun.string[begun.end() :]
        whole = _WHOLE_CHARACTERS.match(raw := item.rest + arguments)
        end = whole.end() if whole is not None else 0
        item.rest = raw[end:]
        if end:
            delta = json.loads(f'"{raw[:end]}"', strict=False)
            item.fields["input"] += delta
            self._on(item, "custom_tool_call_input.delta", delta=delta)

    def _close(self) -> None:
        """Complete all items."""
        self._close_text()
        for item in self._calls.values():
            text = "".join(item.pieces)
            if item.kind == "function_call":
                item.fields["arguments"] = text
                self._on(item, "function_call_arguments.done", name=item.fields["name"], arguments=text)
            else:
                rest = text if item.rest is None else item.rest
                if rest and (item.rest is None or rest[0] != '"'):  # not the JSON that was asked for
                    item.fields["input"] += rest
                    self._on(item, "custom_tool_call_input.delta", delta=rest)
                self._on(item, "custom_tool_call_input.done", input=item.fields["input"])
            self._done(item)
        self._calls = {}

    def _close_text(self) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        text = "".join(item.pieces)
        part = _part(item.kind, text)
        more: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        self._on(item, f"{_PART[item.kind]}.done", content_index=0, text=text, **more)
        self._on(item, "content_part.done", content_index=0, part=part)
        item.fields["content"] = [part]
        if item.kind == "reasoning" and self._seals:
            item.fields["encrypted_content"] = sealed(text)
        self._done(item)

    def _done(self, item: _Item) -> None:
        cut = self._finish in _INCOMPLETE or self._finish == "broken"
        item.fields["status"] = "incomplete" if cut else "completed"
        self._event("response.output_item.done", {"output_index": item.at, "item": item.fields})


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": _PART[kind], "text": text}
    return part | {"annotations": [], "logprobs": []} if kind == "message" else part


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The usage of a chat completion in the form of this API. What was not cached was computed and written."""
    prompt, completion = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    thought = _detail(usage, "completion_tokens_details", "reasoning_tokens") or _count(usage.get("reasoning_tokens"))
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": max(prompt - cached, 0)},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + completion,
    }


def _detail(usage: Mapping[str, Any], name: str, member: str) -> int:
    details = usage.get(name)
    return _count(details.get(member)) if isinstance(details, dict) else 0


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
