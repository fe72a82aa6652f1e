"""Answers of the Responses API: the typed events of a stream, and the response object."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from gateway.api.diagnostics import diagnosis_of, openai_diagnostics
from gateway.api.dialects.dialect import ApiProblem
from gateway.api.dialects.responses import ToolName, sealed
from gateway.api.dialects.translating_sink import CallDelta, ChatChunk, ChunkChoice, Delta

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BROKEN = "broken"


class _ItemKind(NamedTuple):
    """A kind of item: its ids' prefix, its events, the member with its text in them, and where in the item they act."""

    prefix: str
    event: str
    text: str
    members: dict[str, Any]
    within: dict[str, Any]


_KINDS = {
    "message": _ItemKind("msg", "output_text", "text", {"role": "assistant"}, {"content_index": 0, "logprobs": []}),
    "reasoning": _ItemKind("rs", "reasoning_text", "text", {"summary": []}, {"content_index": 0}),
    "function_call": _ItemKind("fc", "function_call_arguments", "arguments", {}, {}),
    "custom_tool_call": _ItemKind("ctc", "custom_tool_call_input", "input", {}, {}),
}


class _Item(msgspec.Struct):
    """An item that is still growing, and where it stands in the output."""

    fields: dict[str, Any]
    at: int
    pieces: list[str] = []


class ResponseAnswer:
    """An ``AnswerConverter`` for one response.

    Args:
        head: The response's members that are known from the request.
        digits: Hex digits that the ids of its items contain.
        tools: Its tools by their names in the chat request.
        seals: Whether the client wants reasoning as ``encrypted_content``.

    Attributes:
        output: The items.
        state: The members that are not known from the request, ``status`` among them.
        compares: Whether the client names an earlier response that the prompt is compared with.
    """

    def __init__(self, head: Mapping[str, Any], digits: str, tools: Mapping[str, ToolName], *, seals: bool) -> None:
        self.output: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {"status": "in_progress"}
        self.compares = False
        self._head = head
        self._digits = digits
        self._tools = tools
        self._seals = seals
        self._events: list[bytes] = []
        self._number = 0
        self._text: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._finish: str | None = None

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """See ``AnswerConverter``."""
        if self.compares:
            self.state["prompt_cache_diagnostics"] = openai_diagnostics(diagnosis_of(headers))

    def chunk(self, chunk: ChatChunk) -> bytes:
        """See ``AnswerConverter``."""
        if not self._number:
            self._event("created", response=self.response())
            self._event("in_progress", response=self.response())
        if chunk.usage is not None:
            self.state["usage"] = usage_of(chunk.usage)
        for choice in chunk.choices[:1]:
            delta, self._finish = choice.delta, choice.finish_reason or self._finish
            if thought := delta.reasoning or delta.reasoning_content:
                self._more_text("reasoning", thought)
            if text := delta.content or delta.refusal:
                self._more_text("message", text)
            for call in delta.tool_calls or ():
                self._more_of_call(call)
        events, self._events = b"".join(self._events), []
        return events

    def end(self) -> bytes:
        """See ``AnswerConverter``. ``final`` follows."""
        begun = self.chunk(ChatChunk())
        self._close_text()
        for item in self._calls.values():
            self._close(item)
        reason = _INCOMPLETE.get(self._finish or "")
        self.state["status"] = "incomplete" if reason else "completed"
        self.state["incomplete_details"] = {"reason": reason} if reason else None
        return begun + self.chunk(ChatChunk())

    def broken(self, problem: ApiProblem) -> bytes:
        """See ``AnswerConverter``. ``final`` follows."""
        self._finish = _BROKEN
        events = self.end()
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        self.state |= {"status": "failed", "error": {"code": code, "message": problem.message}}
        return events

    def final(self, **more: Any) -> bytes:
        """The last event of a stream, with further members of the response."""
        self._event(self.state["status"], response=self.response() | more)
        return self.chunk(ChatChunk())

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """See ``AnswerConverter``."""
        try:
            choice = answer["choices"][0]
            calls = [{**call, "index": at} for at, call in enumerate(choice["message"].get("tool_calls") or ())]
            delta = msgspec.convert({**choice["message"], "tool_calls": calls}, Delta)
            self.chunk(ChatChunk(choices=[ChunkChoice(delta, choice.get("finish_reason"))], usage=answer.get("usage")))
            self.end()
        except (LookupError, TypeError, AttributeError, msgspec.ValidationError):
            self.broken(ApiProblem(502, "upstream_error", "The engine's answer is no chat completion."))
        return orjson.dumps(self.response())

    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        return {**self._head, **self.state, "output": self.output}

    def _event(self, kind: str, **members: Any) -> None:
        kind = f"response.{kind}"
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **members})
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._number += 1

    def _on(self, item: _Item, event: str, **members: Any) -> None:
        self._event(event, item_id=item.fields["id"], output_index=item.at, **members)

    def _begin(self, kind: str, **members: Any) -> _Item:
        at, id_ = len(self.output), f"{_KINDS[kind].prefix}_{self._digits}{len(self.output):04x}"
        fields = {"id": id_, "type": kind, "status": "in_progress", **_KINDS[kind].members, **members}
        self.output.append(fields)
        self._event("output_item.added", output_index=at, item=fields)
        return _Item(fields, at)

    def _more_text(self, kind: str, text: str) -> None:
        item = self._text
        if item is None or item.fields["type"] != kind:
            self._close_text()
            self._text = item = self._begin(kind, content=[])
            self._on(item, "content_part.added", content_index=0, part=_part(kind, ""))
        item.pieces.append(text)
        self._on(item, f"{_KINDS[kind].event}.delta", delta=text, **_KINDS[kind].within)

    def _more_of_call(self, call: CallDelta) -> None:
        function, item = call.function, self._calls.get(call.index)
        name, arguments = (function.name or "", function.arguments or "") if function is not None else ("", "")
        if item is None:
            self._close_text()
            tool = self._tools.get(name, ToolName(name))
            kind, text = ("custom_tool_call", "input") if tool.custom else ("function_call", "arguments")
            space = {} if tool.namespace is None else {"namespace": tool.namespace}
            id_ = call.id or f"call_{self._digits}{call.index:04x}"
            item = self._begin(kind, call_id=id_, name=tool.name, **space, **{text: ""})
            self._calls[call.index] = item
        if arguments:
            item.pieces.append(arguments)
            if item.fields["type"] == "function_call":
                self._on(item, "function_call_arguments.delta", delta=arguments)

    def _close_text(self) -> None:
        item, self._text = self._text, None
        if item is not None:
            self._close(item)

    def _close(self, item: _Item) -> None:
        kind, text = item.fields["type"], "".join(item.pieces)
        own = _KINDS[kind]
        if kind == "custom_tool_call":  # its text is known when the JSON around it is whole
            self._on(item, f"{own.event}.delta", delta=(text := _custom_input(text)))
        self._on(item, f"{own.event}.done", **{own.text: text}, **own.within)
        if own.text == "text":
            item.fields["content"] = [_part(kind, text)]
            self._on(item, "content_part.done", content_index=0, part=item.fields["content"][0])
        else:
            item.fields[own.text] = text
        if kind == "reasoning" and self._seals:
            item.fields["encrypted_content"] = sealed(text)
        cut = self._finish == _BROKEN or self._finish in _INCOMPLETE
        item.fields["status"] = "incomplete" if cut else "completed"
        self._event("output_item.done", output_index=item.at, item=item.fields)


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": _KINDS[kind].event, "text": text}
    return part | {"annotations": [], "logprobs": []} if kind == "message" else part


def _custom_input(arguments: str) -> str:
    """The text of a custom tool's call; all of what is not the JSON that was asked for."""
    try:
        text = orjson.loads(arguments)["input"]
    except (ValueError, LookupError, TypeError):
        return arguments
    return text if isinstance(text, str) else arguments


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The usage of a chat completion in the form of this API. What was not cached was computed and written."""
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    thought = _count(usage.get("completion_tokens_details"), "reasoning_tokens") or _count(usage, "reasoning_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": max(prompt - cached, 0)},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + completion,
    }


def _count(fields: Any, name: str) -> int:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, int) else 0
