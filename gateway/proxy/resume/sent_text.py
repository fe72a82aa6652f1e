"""What a client has got of a stream, read out of the events that it was sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.outcome import Usage
from gateway.engines import parse_usage, payloads

HEAD = ("id", "created", "model", "system_fingerprint")
"""What all chunks of a stream have in common."""

MORE_THAN_TEXT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal", "audio")
"""Parts of a message, and of a piece of it, that are no plain text."""

_SERVER_ERROR = 500
_MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class SentText:
    """The part of a stream that a client has got.

    Attributes:
        head: What its chunks have in common, as far as they have it.
        text: The text.
        chunks: How many chunks said something of the answer, the first one of a chat left out: engines send one a
            token.
        token_ids: The ids of the text's tokens; None if the stream does not tell them.
        usage: The last usage that was told; None if none was.
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


def read_told(events: bytes) -> SentText | None:
    """What so many whole events say; None where there is more in them than one plain text."""
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
        told_ids = choice.get("token_ids")
        if not isinstance(told_ids, list) or not all(map(_is_token_id, told_ids)):
            ids = None
        elif ids is not None:
            ids.extend(told_ids)
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
    """Whether an engine says that it failed: it can do so although the process that answers still lives."""
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


def text_of(choice: Any) -> str | None:
    """What a chunk's choice adds to the text; None if it says anything else."""
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
    """Whether a chat's choice only says whose message it is."""
    delta = choice.get("delta") or {}
    return "role" in delta and not delta.get("content") and choice.get("finish_reason") is None
