"""Answers of the Responses API: the typed events of a stream, and the response object."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from gateway.api.diagnostics import diagnosis_of, openai_diagnostics
from gateway.api.dialects.responses import ToolName, sealed
from gateway.api.dialects.translating_sink import AnswerConverter, AnswerPart, ChatChunk, no_chat
from gateway.core.errors import GatewayError

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BROKEN = "broken"
_EVENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "message": ("msg", "output_text", {"content_index": 0, "logprobs": []}),
    "reasoning": ("rs", "reasoning_text", {"content_index": 0}),
    "function_call": ("fc", "function_call_arguments", {}),
    "custom_tool_call": ("ctc", "custom_tool_call_input", {}),
}
"""Of each type of items: what its ids begin with, the name of its events, and further members of them."""

_DELTA = b'event: %b\ndata: %b,"sequence_number":%%d,"delta":%%b}\n\n'


class ResponseAnswer(AnswerConverter):
    """An ``AnswerConverter`` for one response.

    Args:
        head: The response's members that are known from the request.
        digits: Hex digits that the ids of its items contain.
        tools: Its tools by their names in the chat request.
        seals: Whether the client wants reasoning as ``encrypted_content``.

    Attributes:
        head: The same.
        output: The items that are over.
        state: The members that are not known from the request, ``status`` among them.
    """

    def __init__(self, head: dict[str, Any], digits: str, tools: Mapping[str, ToolName], *, seals: bool) -> None:
        super().__init__()
        self.output: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {"status": "in_progress", "error": None, "incomplete_details": None, "usage": None}
        self.head = head
        self._digits = digits
        self._tools = tools
        self._seals = seals
        self._number = 0
        self._thought = 0

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """See ``AnswerConverter``."""
        super().begin(headers)
        if self.compares:
            self.state["prompt_cache_diagnostics"] = openai_diagnostics(diagnosis_of(headers))

    def broken(self, error: GatewayError) -> bytes:
        """See ``AnswerConverter``. ``final`` follows."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        return self.cut_off("failed", error={"code": code, "message": error.message})

    def cut_off(self, status: str, **members: Any) -> bytes:
        """End the answer as it is, with a status and further members. ``final`` follows.

        Nothing announces that an item is done: a client may run a call then.
        """
        events, number = self.chunk(ChatChunk()), self._number
        self.finish = _BROKEN
        self.end()
        self._number = number
        self.state |= {"status": status, **members}
        return events

    def final(self) -> bytes:
        """The last event of a stream. The API has none for ``cancelled``."""
        status = self.state["status"]
        self._event("incomplete" if status == "cancelled" else status, response=self.response())
        return self._written()

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """See ``AnswerConverter``."""
        try:
            self._read(answer)
            self.end()
        except (LookupError, TypeError, AttributeError, msgspec.ValidationError):
            self.broken(no_chat())
        return orjson.dumps(self.response())

    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        return {**self.head, **self.state, "output": self.output}

    def _note_usage(self, usage: Any) -> None:
        super()._note_usage(usage)
        details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
        for counts in (usage, details):
            thought = counts.get("reasoning_tokens") if isinstance(counts, dict) else None
            self._thought = thought if isinstance(thought, int) else self._thought

    def _stream_begins(self, chunk: ChatChunk) -> None:  # noqa: ARG002
        self._event("created", response=self.response())
        self._event("in_progress", response=self.response())

    def _part_begins(self, part: AnswerPart) -> None:
        kind = part.kind
        members: dict[str, Any] = {"content": []}
        if kind == "call":
            tool = self._tools.get(part.name, ToolName(part.name))
            kind, text = ("custom_tool_call", "input") if tool.custom else ("function_call", "arguments")
            members = {"call_id": part.id or f"call_{self._digits}{part.number:04x}", "name": tool.name, text: ""}
            members |= {} if tool.namespace is None else {"namespace": tool.namespace}
        elif kind == "message":
            members["role"] = "assistant"
        else:
            members["summary"] = []
        prefix, event, further = _EVENTS[kind]
        id_, event = f"{prefix}_{self._digits}{part.number:04x}", f"response.{event}.delta"
        same = orjson.dumps({"type": event, "item_id": id_, "output_index": part.number, **further})[:-1]
        part.delta = _DELTA % (event.encode(), same)
        part.item = {"id": id_, "type": kind, "status": "in_progress", **members}
        self._event("output_item.added", output_index=part.number, item=part.item)
        if "content" in part.item:
            self._on(part, "content_part.added", content_index=0, part=_content(kind, ""))

    def _part_grows(self, part: AnswerPart, piece: str) -> None:
        if part.item["type"] != "custom_tool_call":  # whose text is known when the JSON around it is whole
            self._delta(part, piece)

    def _part_ends(self, part: AnswerPart) -> None:
        item, text = part.item, part.text
        kind = item["type"]
        _, event, members = _EVENTS[kind]
        if kind == "custom_tool_call":
            text = _custom_input(text)
            self._delta(part, text)
        name = next((name for name in ("arguments", "input") if name in item), "text")
        self._on(part, f"{event}.done", **{name: text}, **members)
        if name == "text":
            item["content"] = [_content(kind, text)]
            self._on(part, "content_part.done", content_index=0, part=item["content"][0])
        else:
            item[name] = text
        if kind == "reasoning" and self._seals:
            item["encrypted_content"] = sealed(text)
        item["status"] = "incomplete" if self.finish == _BROKEN or self.finish in _INCOMPLETE else "completed"
        self.output.append(item)
        self._event("output_item.done", output_index=part.number, item=item)

    def _stream_ends(self) -> None:
        reason = _INCOMPLETE.get(self.finish or "")
        self.state["status"] = "incomplete" if reason else "completed"
        self.state["incomplete_details"] = {"reason": reason} if reason else None
        self.state["usage"] = self._used()

    def _event(self, kind: str, **members: Any) -> None:
        self._write(f"response.{kind}", {"sequence_number": self._number, **members})
        self._number += 1

    def _delta(self, part: AnswerPart, text: str) -> None:
        self._events.append(part.delta % (self._number, orjson.dumps(text)))
        self._number += 1

    def _on(self, part: AnswerPart, event: str, /, **members: Any) -> None:
        self._event(event, item_id=part.item["id"], output_index=part.number, **members)

    def _used(self) -> dict[str, Any] | None:
        """Usage in the form of this API; None if nothing was counted. What was not cached was computed and written."""
        usage = self.usage
        if self.reported is None and not (usage.prompt_tokens and usage.completion_tokens):
            return None
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": max(prompt - cached, 0)},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": self._thought},
            "total_tokens": prompt + completion,
        }


def _content(kind: str, text: str) -> dict[str, Any]:
    content = {"type": _EVENTS[kind][1], "text": text}
    return content | {"annotations": [], "logprobs": []} if kind == "message" else content


def _custom_input(arguments: str) -> str:
    """The text of a custom tool's call; all of what is not the JSON that was asked for."""
    try:
        text = orjson.loads(arguments)["input"]
    except (ValueError, LookupError, TypeError):
        return arguments
    return text if isinstance(text, str) else arguments
