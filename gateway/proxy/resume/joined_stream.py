"""Rewrites the events of a continuation to match the stream that the client has."""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.core.outcome import Usage
from gateway.engines import parse_usage, payloads
from gateway.proxy.resume.sent_text import HEAD, SentText, is_opening, text_of

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class JoinedStream:
    """Rewrites the events of one continuation.

    Args:
        sent: The part of the stream that the client has got.
        spent: Number of its tokens.
        prompt_tokens: Tokens of the client's prompt; None if unknown.
        dropped: Text that the continuation may begin with although the client has it: white space at the text's end,
            where the chat template strips it.

    Attributes:
        spoilt: Whether an event was not plain text; nothing from there on is passed on.
    """

    def __init__(self, sent: SentText, spent: int, prompt_tokens: int | None, dropped: str) -> None:
        self._sent = sent
        self._spent = spent
        self._prompt_tokens = prompt_tokens
        self._dropped = dropped
        self.spoilt = False

    def feed(self, events: bytes) -> bytes:
        """Rewrite complete events; returns the bytes to send to the client."""
        return b"".join(map(self._event, _divided(events)))

    def usage(self, usage: Usage) -> Usage:
        """The whole answer's usage, from the continuation's."""
        prompt = self._prompt_tokens
        if prompt is None:
            prompt = max(usage.prompt_tokens - self._spent, 0)
        cached = None if usage.cached_tokens is None else min(usage.cached_tokens, prompt)
        return Usage(prompt, self._spent + usage.completion_tokens, cached)

    def _event(self, event: bytes) -> bytes:
        if self.spoilt:
            return b""
        found = list(payloads(event))
        if len(found) != 1:
            return event
        try:
            chunk = orjson.loads(found[0])
        except orjson.JSONDecodeError:
            return event
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            return event
        if choices and not self._takes(choices[0]):
            return b""
        for name in HEAD:
            chunk.pop(name, None)
        chunk = {**self._sent.head, **chunk}
        chunk.pop("prompt_token_ids", None)
        if (usage := parse_usage(chunk.get("usage"))) is not None:
            chunk["usage"] = _written(chunk["usage"], self.usage(usage))
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _takes(self, choice: Any) -> bool:
        """Rewrite a choice of the continuation; False if it adds nothing."""
        text = text_of(choice)
        if text is None:
            self.spoilt = True
            return False
        if is_opening(choice):
            return False
        choice.pop("prompt_token_ids", None)
        if self._dropped and text:
            text = self._without_known(text)
        if "delta" not in choice:
            choice["text"] = text
        elif isinstance(delta := choice["delta"], dict):
            delta.pop("role", None)
            if "content" in delta:
                delta["content"] = text
        return True

    def _without_known(self, text: str) -> str:
        same = 0
        while same < min(len(text), len(self._dropped)) and text[same] == self._dropped[same]:
            same += 1
        self._dropped = self._dropped[same:] if same == len(text) else ""
        return text[same:]


def written_usage(usage: Usage) -> dict[str, Any]:
    """A chunk as an event, in the engines' format."""
    return _written({}, usage)


def _written(before: dict[str, Any], usage: Usage) -> dict[str, Any]:
    """An engine's usage with other counts and the same details."""
    after = before | {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        details = before.get("prompt_tokens_details") or {}
        after["prompt_tokens_details"] = details | {"cached_tokens": usage.cached_tokens}
    return after


def _divided(events: bytes) -> Iterator[bytes]:
    start = 0
    for end in _END.finditer(events):
        yield events[start : end.end()]
        start = end.end()
    if start < len(events):
        yield events[start:]
