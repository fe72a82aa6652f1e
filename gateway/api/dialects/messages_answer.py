"""Answers of Anthropic's Messages API, made of chat completions, and its errors and models."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from gateway.api.body_json import body_of
from gateway.api.diagnostics import anthropic_diagnostics, diagnosis_of
from gateway.api.dialects.dialect import ApiProblem
from gateway.api.dialects.translating_sink import ChatChunk, ChunkChoice, Delta, FunctionDelta
from gateway.core.errors import BadRequest
from gateway.core.ids import RequestId, answer_id
from gateway.core.outcome import Usage
from gateway.engines import parse_usage

OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use", "content_filter": "refusal"}
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
)
_MEMBERS = {"text": (b"text_delta", b"text"), "thinking": (b"thinking_delta", b"thinking")}
_LATEST = 2**32


def error_of(problem: ApiProblem, request_id: str, *, of_engine: bool = False) -> tuple[int, bytes]:
    """Status and body of an error. Overload, of the gateway or an engine, is 529, 429 a limit of the tenant's, and 404
    never an engine's."""
    is_busy = problem.status == 503 or problem.code == "overloaded" or (of_engine and problem.status == 429)
    status = OVERLOADED if is_busy else 502 if of_engine and problem.status == 404 else problem.status
    kind = _TYPES.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")
    error = {"type": kind, "message": problem.message}
    return status, orjson.dumps({"type": "error", "error": error, "request_id": request_id})


class MessageConverter:
    """An ``AnswerConverter``.

    Args:
        model: The model that the client named.
        request_id: The request's id.
        prewarm: Whether the client wants no output: what was generated is left out.
        counts: Whether it only wants the number of its prompt's tokens.

    Attributes:
        compares: Whether the client names an earlier message that the prompt is compared with.
    """

    def __init__(self, model: Any, request_id: RequestId, *, prewarm: bool = False, counts: bool = False) -> None:
        self._model = model
        self._request_id = request_id
        self._prewarm = prewarm
        self._counts = counts
        self.compares = False
        self._diagnostics: Mapping[str, Any] | None = None
        self._usage = Usage(0, 0, 0)
        self._begun = self._refused = False
        self._blocks = 0  # that were begun
        self._open = ""  # type of the last one, unless it has ended
        self._calls: dict[int, int] = {}  # numbers of blocks, by the numbers that calls have in the stream
        self._finish: Any = None
        self._stop: Any = None

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """See ``AnswerConverter``."""
        if b"x-gateway-tokens" not in headers:  # it says that the others are estimates
            tokens = int(headers.get(b"x-gateway-prompt-tokens", b"0"))
            self._usage = Usage(tokens, 0, int(headers.get(b"x-gateway-prefix-tokens", b"0")))
        if self.compares:
            self._diagnostics = anthropic_diagnostics(diagnosis_of(headers))

    def chunk(self, chunk: ChatChunk) -> bytes:
        """See ``AnswerConverter``."""
        out: list[bytes] = []
        if chunk.usage is not None:
            self._usage = parse_usage(chunk.usage) or self._usage
        if not self._begun:
            self._begun = True
            self._model = chunk.model or self._model
            out.append(_event("message_start", {"message": self._message([], None, None)}))
        for choice in chunk.choices[:1]:
            self._note(choice)
            if not self._prewarm:
                self._add(choice.delta, out)
        return b"".join(out)

    def end(self) -> bytes:
        """See ``AnswerConverter``."""
        out = [] if self._begun else [self.chunk(ChatChunk())]
        self._close(out)
        delta = dict(zip(("stop_reason", "stop_sequence"), self._reason(called=bool(self._calls)), strict=True))
        out.append(_event("message_delta", {"delta": delta, "usage": self._used()}))
        out.append(_event("message_stop", {}))
        return b"".join(out)

    def broken(self, problem: ApiProblem) -> bytes:
        """See ``AnswerConverter``."""
        return b"event: error\ndata: %b\n\n" % error_of(problem, self._request_id, of_engine=True)[1]

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """See ``AnswerConverter``."""
        self._usage = parse_usage(answer.get("usage")) or self._usage
        if self._counts:
            return orjson.dumps({"input_tokens": self._usage.prompt_tokens})
        chosen = answer["choices"][0]
        choice = msgspec.convert({**chosen, "delta": chosen["message"]}, ChunkChoice)
        delta = choice.delta
        content: list[dict[str, Any]] = []
        if thoughts := delta.reasoning or delta.reasoning_content:
            content.append({"type": "thinking", "thinking": thoughts, "signature": self._request_id})
        content += [{"type": "text", "text": text} for text in (delta.content, delta.refusal) if text]
        for call in delta.tool_calls or ():
            function = call.function or FunctionDelta()
            try:
                given = msgspec.json.decode(function.arguments or "{}", type=dict)
            except msgspec.DecodeError:
                given = {}  # the model wrote no object, or was cut off: engines read that as no arguments
            content.append({"type": "tool_use", "id": call.id, "name": function.name or "", "input": given})
        self._note(choice)
        self._model = answer.get("model") or self._model
        ended = self._reason(called=bool(delta.tool_calls))
        return body_of(self._message([] if self._prewarm else content, *ended))

    def _note(self, choice: ChunkChoice) -> None:
        self._refused = self._refused or bool(choice.delta.refusal)
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason
            self._stop = choice.stop_reason if choice.stop_reason is not None else choice.matched_stop

    def _message(self, content: list[Any], reason: str | None, sequence: str | None) -> dict[str, Any]:
        head = {"id": answer_id("msg", self._request_id), "type": "message", "role": "assistant", "model": self._model}
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return {**head, "content": content, **ended, "usage": self._used(), "diagnostics": self._diagnostics}

    def _used(self) -> dict[str, int]:
        """Usage as the API has it. Engines keep every block without being asked: nothing is counted as written."""
        usage, read = self._usage, self._usage.cached_tokens or 0
        inputs = {"input_tokens": usage.prompt_tokens - read, "cache_read_input_tokens": read}
        output = 0 if self._prewarm else usage.completion_tokens
        return inputs | {"cache_creation_input_tokens": 0, "output_tokens": output}

    def _reason(self, *, called: bool) -> tuple[str, str | None]:
        """Why the answer ended, and the stop sequence at which it did."""
        if self._prewarm:
            return "max_tokens", None
        if self._refused or self._finish in _REASONS:
            return "refusal" if self._refused else _REASONS[self._finish], None
        if called:  # a call that the client demanded ends with ``stop``
            return "tool_use", None
        return ("stop_sequence", self._stop) if isinstance(self._stop, str) else ("end_turn", None)

    def _add(self, delta: Delta, out: list[bytes]) -> None:
        thoughts = delta.reasoning or delta.reasoning_content
        for kind, text in (("thinking", thoughts), ("text", delta.content), ("text", delta.refusal)):
            if text:
                if self._open != kind:
                    block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
                    self._start(block, out)
                out.append(_DELTA % (self._blocks - 1, *_MEMBERS[kind], orjson.dumps(text)))
        for call in delta.tool_calls or ():
            function = call.function
            if call.index not in self._calls:
                self._calls[call.index] = self._blocks
                named = {"id": call.id or f"toolu_{self._blocks}", "name": (function and function.name) or ""}
                self._start({"type": "tool_use", **named, "input": {}}, out)
            if function is not None and function.arguments:
                json = orjson.dumps(function.arguments)
                out.append(_DELTA % (self._calls[call.index], b"input_json_delta", b"partial_json", json))

    def _start(self, block: Mapping[str, Any], out: list[bytes]) -> None:
        self._close(out)
        out.append(_event("content_block_start", {"index": self._blocks, "content_block": block}))
        self._open = block["type"]
        self._blocks += 1

    def _close(self, out: list[bytes]) -> None:
        if self._open == "thinking":  # clients send it back with the thoughts; nothing here checks it
            signature = orjson.dumps(self._request_id)
            out.append(_DELTA % (self._blocks - 1, b"signature_delta", b"signature", signature))
        if self._open:
            out.append(_event("content_block_stop", {"index": self._blocks - 1}))
        self._open = ""


def _event(kind: str, members: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members}))


def model_entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """A model as the API lists it, made of the engine's entry."""
    created, longest = card.get("created"), card.get("max_model_len")
    at = datetime.fromtimestamp(created if type(created) is int and 0 < created < _LATEST else 0, UTC)
    entry = {"type": "model", "id": card["id"], "display_name": card["id"], "lifecycle": "active"}
    return entry | {"created_at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "max_input_tokens": longest, "max_tokens": longest}


def model_page(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of all models, as ``limit``, ``after_id`` and ``before_id`` ask for it; raises ``BadRequest``."""
    ids, limit = [entry["id"] for entry in entries], query.get("limit", "20")
    bad = [name for name in ("after_id", "before_id") if name in query and query[name] not in ids]
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= 1000:
        bad.append("limit")
    if bad:
        raise BadRequest(
            f"`{bad[0]}` is no model's id, or no number from 1 to 1000.", param=bad[0], code="invalid_value"
        )
    first, last = query.get("after_id"), query.get("before_id")
    asked = entries[0 if first is None else ids.index(first) + 1 : None if last is None else ids.index(last)]
    page = asked[: int(limit)] if last is None else asked[-int(limit) :]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"data": page, "has_more": len(page) < len(asked), **ends}
