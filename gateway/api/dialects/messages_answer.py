"""Answers of Anthropic's Messages API, made of chat completions."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import orjson

from gateway.api.dialects.dialect import Problem
from gateway.api.dialects.translating_sink import ChatChunk, Delta
from gateway.core.errors import BadRequest
from gateway.core.outcome import Usage
from gateway.engines import parse_usage

_OVERLOADED = 529
_DIGITS = 4
_LATEST = 2**32
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    _OVERLOADED: "overloaded_error",
}
_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    "refusal": "refusal",
}
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
)
_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_MEMBERS = {"text": (b"text_delta", b"text"), "thinking": (b"thinking_delta", b"thinking")}


def error_of(problem: Problem, request_id: str) -> tuple[int, bytes]:
    """Status and body of an error. Overload, of the gateway or an engine, is 529, and 429 a limit of the tenant's."""
    status = problem.status
    if status == HTTPStatus.SERVICE_UNAVAILABLE or problem.code == "overloaded":
        status = _OVERLOADED
    kind = _TYPES.get(status) or (
        "api_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    )
    error = {"type": kind, "message": problem.message}
    return status, orjson.dumps({"type": "error", "error": error, "request_id": request_id})


class MessageConverter:
    """An ``AnswerConverter``.

    Args:
        model: The model that the client named.
        request_id: The request's id.
        prewarm: Whether the client wants no output: what was generated is left out.
    """

    def __init__(self, model: Any, request_id: str, *, prewarm: bool = False) -> None:
        self._model = model
        self._request_id = request_id
        self._prewarm = prewarm
        self._expected = Usage(0, 0, 0)
        self._usage: Usage | None = None
        self._begun = False
        self._blocks = 0  # that were begun
        self._open = ""  # type of the last one, if it is a text or thoughts that go on
        self._calls: dict[int, int] = {}  # number of the block, by the call's in the stream
        self._finish: str | None = None
        self._stop: Any = None
        self._is_refusal = False

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """See ``AnswerConverter``."""
        if b"x-gateway-tokens" not in headers:  # which says that the others are estimates
            tokens, prefix = (
                headers.get(b"x-gateway-prompt-tokens", b"0"),
                headers.get(b"x-gateway-prefix-tokens", b"0"),
            )
            self._expected = Usage(int(tokens), 0, int(prefix))

    def chunk(self, chunk: ChatChunk) -> bytes:
        """See ``AnswerConverter``."""
        out: list[bytes] = []
        if chunk.usage is not None:
            self._usage = parse_usage(chunk.usage) or self._usage
        if not self._begun:
            self._begun = True
            if chunk.model:
                self._model = chunk.model
            message = self._message([], None, self._usage or self._expected)
            out.append(_event("message_start", {"message": message}))
        for choice in chunk.choices[:1]:
            if choice.finish_reason is not None:
                self._finish = choice.finish_reason
                self._stop = choice.stop_reason if choice.stop_reason is not None else choice.matched_stop
            if not self._prewarm:
                self._add(choice.delta, out)
        return b"".join(out)

    def end(self) -> bytes:
        """See ``AnswerConverter``."""
        out: list[bytes] = []
        if not self._begun:
            out.append(self.chunk(ChatChunk()))
        self._close(out)
        reason, sequence = self._reason(called=bool(self._calls))
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        out.append(_event("message_delta", {"delta": delta, "usage": self._counts(self._usage or self._expected)}))
        out.append(_event("message_stop", {}))
        return b"".join(out)

    def broken(self, problem: Problem) -> bytes:
        """See ``AnswerConverter``."""
        return b"event: error\ndata: %b\n\n" % error_of(problem, self._request_id)[1]

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """See ``AnswerConverter``."""
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        content: list[dict[str, Any]] = []
        thoughts = message.get("reasoning") or message.get("reasoning_content")
        if thoughts and isinstance(thoughts, str):
            content.append({"type": "thinking", "thinking": thoughts, "signature": self._request_id})
        content += [{"type": "text", "text": text} for text in (message.get("content"), message.get("refusal")) if text]
        calls = message.get("tool_calls")
        calls = [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        self._is_refusal = bool(message.get("refusal"))
        self._finish, self._stop = choice.get("finish_reason"), choice.get("stop_reason", choice.get("matched_stop"))
        if isinstance(answer.get("model"), str):
            self._model = answer["model"]
        usage = parse_usage(answer.get("usage")) or self._expected
        return orjson.dumps(self._message([] if self._prewarm else content + calls, self._reason(bool(calls)), usage))

    def _message(self, content: list[Any], ended: tuple[str, str | None] | None, usage: Usage) -> dict[str, Any]:
        reason, sequence = ended or (None, None)
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": self._counts(usage),
        }

    def _counts(self, usage: Usage) -> dict[str, int]:
        """Usage as the API has it. Engines keep every block without being asked: nothing is counted as written."""
        read = usage.cached_tokens or 0
        return {
            "input_tokens": usage.prompt_tokens - read,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": read,
            "output_tokens": 0 if self._prewarm else usage.completion_tokens,
        }

    def _reason(self, called: bool) -> tuple[str, str | None]:
        """Why the answer ended, and the stop sequence at which it did."""
        if self._prewarm:
            return "max_tokens", None
        if self._is_refusal:
            return "refusal", None
        if self._finish in _REASONS:
            return _REASONS[self._finish], None
        if called:  # a call that the client demanded ends with ``stop``
            return "tool_use", None
        return ("stop_sequence", self._stop) if isinstance(self._stop, str) else ("end_turn", None)

    def _add(self, delta: Delta, out: list[bytes]) -> None:
        """The events of a delta."""
        if thoughts := delta.reasoning or delta.reasoning_content:
            self._text("thinking", thoughts, out)
        if delta.content:
            self._text("text", delta.content, out)
        if delta.refusal:
            self._is_refusal = True
            self._text("text", delta.refusal, out)
        for call in delta.tool_calls or ():
            function = call.function
            at = self._calls.get(call.index)
            if at is None:
                name = (function and function.name) or ""
                block = {"type": "tool_use", "id": call.id or f"toolu_{self._request_id}_{call.index}", "name": name}
                at = self._calls[call.index] = self._start("tool_use", block | {"input": {}}, out)
            if function is not None and function.arguments:
                out.append(_DELTA % (at, b"input_json_delta", b"partial_json", orjson.dumps(function.arguments)))

    def _text(self, kind: str, text: str, out: list[bytes]) -> None:
        if self._open != kind:
            self._start(kind, _BLOCKS[kind], out)
        out.append(_DELTA % (self._blocks - 1, *_MEMBERS[kind], orjson.dumps(text)))

    def _start(self, kind: str, block: Mapping[str, Any], out: list[bytes]) -> int:
        """Begin a block; returns its number."""
        self._close(out)
        number, self._open = self._blocks, kind
        self._blocks += 1
        out.append(_event("content_block_start", {"index": number, "content_block": block}))
        return number

    def _close(self, out: list[bytes]) -> None:
        if not self._open:
            return
        number = self._blocks - 1
        if self._open == "thinking":  # clients send it back with the thoughts; nothing here checks it
            out.append(_DELTA % (number, b"signature_delta", b"signature", orjson.dumps(self._request_id)))
        out.append(_event("content_block_stop", {"index": number}))
        self._open = ""


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        arguments = None  # the model wrote no JSON, or was cut off: engines read that as no arguments
    given = arguments if isinstance(arguments, dict) else {}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given}


def model_entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """A model as the API lists it, made of the engine's entry."""
    created, longest = card.get("created"), card.get("max_model_len")
    at = datetime.fromtimestamp(created if type(created) is int and 0 < created < _LATEST else 0, UTC)
    entry = {"type": "model", "id": card["id"], "display_name": card["id"], "lifecycle": "active"}
    return entry | {"created_at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "max_input_tokens": longest, "max_tokens": longest}


def model_page(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the models, as ``limit``, ``after_id`` and ``before_id`` ask for it.

    Raises:
        BadRequest: one of them has no such value.
    """
    limit = query.get("limit", "20")
    if not limit.isdecimal() or len(limit) > _DIGITS or not int(limit):
        raise BadRequest("`limit` must be a number from 1 to 1000.", param="limit", code="invalid_value")
    ids = [entry["id"] for entry in entries]
    at = {"after_id": -1, "before_id": len(ids)}
    for name in at.keys() & query.keys():
        if query[name] not in ids:
            raise BadRequest(f"`{name}` is the id of no model here.", param=name, code="invalid_value")
        at[name] = ids.index(query[name])
    asked = entries[at["after_id"] + 1 : at["before_id"]]
    page = asked[-int(limit) :] if "before_id" in query else asked[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": len(page) < len(asked), "first_id": first, "last_id": last}


def _event(kind: str, members: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members}))
