"""Parses the events that were sent to a client into the text that it has got."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.outcome import Usage
from gateway.engines import parse_usage, payloads

HEAD = ("id", "created", "model", "system_fingerprint")
"""Members that all chunks of a stream share."""

MORE_THAN_TEXT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal", "audio")
"""Members of a message or delta that are not plain text."""

_SERVER_ERROR = 500
_MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class SentText:
    """The part of a stream that a client has got.

    Attributes:
        head: The members that all its chunks share.
        text: The text.
        chunks: Chunks with a part of the answer, without the first one of a chat: engines send one per token.
        token_ids: The text's token ids; None if the stream does not include them.
        usage: The last usage that was sent; None without one.
        usage_ends: Whether that was the last chunk's, with which a stream ends.
        finish_reason: Why the answer ended; None if it has not.
        stop_text: Whether it ended at one of the request's stop texts or tokens.
    """

    head: Mapping[str, Any]
    text: str
    chunks: int
    token_ids: tuple[int, ...] | None
    usage: Usage | None
    usage_ends: bool
    finish_reason: str | None
    stop_text: bool


def read_sent_text(events: bytes) -> SentText | None:
    """Parse complete events; None if they hold more than one plain text."""
    head: dict[str, Any] | None = None
    texts: list[str] = []
    ids: list[int] | None = []
    chunks = 0
    usage: Usage | None = None
    usage_ends = stop_text = False
    finish_reason: str | None = None
    for payload in payloads(events):
        try:
            chunk = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return None
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list) or len(choices) > 1:
            return None
        if head is None:
            head = {name: chunk[name] for name in HEAD if name in chunk}
        if (found := parse_usage(chunk.get("usage"))) is not None:
            usage, usage_ends = found, not choices
        if not choices:
            continue
        choice = choices[0]
        text = text_of(choice)
        if text is None:
            return None
        texts.append(text)
        finish_reason = choice.get("finish_reason") or finish_reason
        stop_text = stop_text or choice.get("stop_reason") is not None
        if is_opening(choice):
            continue
        chunks += 1
        reported_ids = choice.get("token_ids")
        if not isinstance(reported_ids, list) or not all(map(_is_token_id, reported_ids)):
            ids = None
        elif ids is not None:
            ids.extend(reported_ids)
    if head is None:
        return None
    return SentText(
        head,
        "".join(texts),
        chunks,
        None if ids is None else tuple(ids),
        usage,
        usage_ends,
        finish_reason,
        stop_text,
    )


def _is_token_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_TOKEN_ID


def is_failure(events: bytes) -> bool:
    """Whether an event is an engine's error report: the engine may fail while its API process lives on."""
    if b'"error"' not in events:
        return False
    for payload in payloads(events):
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        error = event.get("error") if isinstance(event, dict) else None
        if isinstance(error, dict) and type(code := error.get("code")) is int and code >= _SERVER_ERROR:
            return True
    return False


_CONTENT = ("text", "finish_reason", "logprobs", "token_ids")
"""Members of a choice that are a part of the answer, beside those of its message."""


def has_content(chunk: object) -> bool:
    """Whether the JSON of an event holds a part of the answer, or an error.

    An event without choices does not, nor does one that only names the role: engines and proxies may send these before
    the prompt is computed, and the same event comes from any other replica.
    """
    if not isinstance(chunk, dict):
        return bool(chunk)
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return "error" in chunk or chunk.get("object") == "error"
    return any(map(_is_content, choices))


def adds_content(events: bytes) -> bool:
    """Whether one of these complete events ``has_content``."""
    for payload in payloads(events):
        try:
            if payload and has_content(orjson.loads(payload)):
                return True
        except orjson.JSONDecodeError:
            return True  # such as NaN: it cannot be judged
    return False


def _is_content(choice: object) -> bool:
    if not isinstance(choice, dict):
        return True
    delta = choice.get("delta")
    more = any(value for name, value in delta.items() if name != "role") if isinstance(delta, dict) else bool(delta)
    return more or any(choice.get(name) for name in _CONTENT)


def text_of(choice: Any) -> str | None:
    """The text that a chunk's choice adds; None if it holds anything else."""
    if not isinstance(choice, dict) or choice.get("index", 0) != 0 or choice.get("logprobs"):
        return None
    if "delta" not in choice:
        text = choice.get("text")
    elif isinstance(delta := choice["delta"], dict) and not any(delta.get(name) for name in MORE_THAN_TEXT):
        text = delta.get("content")
    else:
        return None
    return "" if text is None else text if isinstance(text, str) else None


def is_opening(choice: Mapping[str, Any]) -> bool:
    """Whether a chat's choice holds only the role."""
    delta = choice.get("delta") or {}
    return "role" in delta and not delta.get("content") and choice.get("finish_reason") is None
