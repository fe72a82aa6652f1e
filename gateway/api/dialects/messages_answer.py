"""Answers of Anthropic's Messages API, made of chat completions, and its errors and models."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from gateway.api.body_json import body_of
from gateway.api.diagnostics import anthropic_diagnostics, diagnosis_of
from gateway.api.dialects.translating_sink import AnswerConverter, AnswerPart, ChatChunk, ChunkChoice, Delta
from gateway.core.errors import BadRequest, EngineProblem, GatewayError
from gateway.core.ids import RequestId, answer_id

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
_DELTAS = {
    "message": (b"text_delta", b"text"),
    "reasoning": (b"thinking_delta", b"thinking"),
    "call": (b"input_json_delta", b"partial_json"),
}
_LATEST = 2**32


def error_of(error: GatewayError, request_id: str) -> tuple[int, bytes]:
    """Status and body of an error. Overload, of the gateway or an engine, is 529, 429 a limit of the tenant's, and 404
    never an engine's."""
    of_engine = isinstance(error, EngineProblem)
    is_busy = error.status == 503 or error.code == "overloaded" or (of_engine and error.status == 429)
    status = OVERLOADED if is_busy else 502 if of_engine and error.status == 404 else error.status
    kind = _TYPES.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")
    shown = {"type": kind, "message": error.message}
    return status, orjson.dumps({"type": "error", "error": shown, "request_id": request_id})


class MessageConverter(AnswerConverter):
    """An ``AnswerConverter``.

    Args:
        model: The model that the client named.
        request_id: The request's id.
        prewarm: Whether the client wants no output: what was generated is left out.
        counts: Whether it only wants the number of its prompt's tokens.
    """

    def __init__(self, model: Any, request_id: RequestId, *, prewarm: bool = False, counts: bool = False) -> None:
        super().__init__()
        self._model = model
        self._request_id = request_id
        self._prewarm = prewarm
        self._counts = counts
        self._diagnostics: Mapping[str, Any] | None = None
        self._refused = False
        self._stop: Any = None

    def begin(self, headers: Mapping[bytes, bytes]) -> None:
        """See ``AnswerConverter``."""
        super().begin(headers)
        if self.compares:
            self._diagnostics = anthropic_diagnostics(diagnosis_of(headers))

    def broken(self, error: GatewayError) -> bytes:
        """See ``AnswerConverter``."""
        return b"event: error\ndata: %b\n\n" % error_of(error, self._request_id)[1]

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        """See ``AnswerConverter``."""
        if self._counts:
            self._note_usage(answer.get("usage"))
            return orjson.dumps({"input_tokens": self.usage.prompt_tokens})
        self._read(answer)
        self._model = answer.get("model") or self._model
        return body_of(self._message([self._block(part, part.text) for part in self.parts], *self._reason()))

    def _note_choice(self, choice: ChunkChoice) -> None:
        super()._note_choice(choice)
        self._refused = self._refused or bool(choice.delta.refusal)
        if choice.finish_reason is not None:
            self._stop = choice.stop_reason if choice.stop_reason is not None else choice.matched_stop
        if self._prewarm:
            choice.delta = Delta()

    def _stream_begins(self, chunk: ChatChunk) -> None:
        self._model = chunk.model or self._model
        self._write("message_start", {"message": self._message([], None, None)})

    def _part_begins(self, part: AnswerPart) -> None:
        part.item = self._block(part, "")
        self._write("content_block_start", {"index": part.number, "content_block": part.item})

    def _part_grows(self, part: AnswerPart, piece: str) -> None:
        self._delta(part, *_DELTAS[part.kind], piece)
        if part.kind != "call":
            part.pieces.clear()  # nothing needs a long text as a whole

    def _part_ends(self, part: AnswerPart) -> None:
        if part.kind == "reasoning":  # clients send it back with the thoughts; nothing here checks it
            self._delta(part, b"signature_delta", b"signature", self._request_id)
        self._write("content_block_stop", {"index": part.number})

    def _stream_ends(self) -> None:
        delta = dict(zip(("stop_reason", "stop_sequence"), self._reason(), strict=True))
        self._write("message_delta", {"delta": delta, "usage": self._used()})
        self._write("message_stop", {})

    def _delta(self, part: AnswerPart, kind: bytes, member: bytes, text: str) -> None:
        self._events.append(_DELTA % (part.number, kind, member, orjson.dumps(text)))

    def _block(self, part: AnswerPart, text: str) -> dict[str, Any]:
        """A part with a text, which is the whole one or empty."""
        if part.kind == "message":
            return {"type": "text", "text": text}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": text and self._request_id}
        try:
            given = msgspec.json.decode(text or "{}", type=dict)
        except msgspec.DecodeError:
            given = {}  # the model wrote no object, or was cut off: engines read that as no arguments
        return {"type": "tool_use", "id": part.id or f"toolu_{part.number}", "name": part.name, "input": given}

    def _message(self, content: list[Any], reason: str | None, sequence: str | None) -> dict[str, Any]:
        head = {"id": answer_id("msg", self._request_id), "type": "message", "role": "assistant", "model": self._model}
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return {**head, "content": content, **ended, "usage": self._used(), "diagnostics": self._diagnostics}

    def _used(self) -> dict[str, int]:
        """Usage as the API has it. Engines keep every block without being asked: nothing is counted as written."""
        usage, read = self.usage, self.usage.cached_tokens or 0
        inputs = {"input_tokens": usage.prompt_tokens - read, "cache_read_input_tokens": read}
        output = 0 if self._prewarm else usage.completion_tokens
        return inputs | {"cache_creation_input_tokens": 0, "output_tokens": output}

    def _reason(self) -> tuple[str, str | None]:
        """Why the answer ended, and the stop sequence at which it did."""
        if self._prewarm:
            return "max_tokens", None
        if self._refused or self.finish in _REASONS:
            return "refusal" if self._refused else _REASONS[self.finish or ""], None
        if any(part.kind == "call" for part in self.parts):  # a call that the client demanded ends with ``stop``
            return "tool_use", None
        return ("stop_sequence", self._stop) if isinstance(self._stop, str) else ("end_turn", None)


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
