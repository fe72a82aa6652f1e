"""Rewrites the events of a continuation to match the stream that the client has."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.core.outcome import Usage
from gateway.engines import parse_usage, payloads
from gateway.proxy.resume.sent_text import HEAD, SentText, has_content, is_opening, text_of

END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
"""The end of an event: two line ends of any kind."""


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
        kept = [choice for choice in choices if self._takes(choice)]
        if choices and not kept:
            return b""
        chunk["choices"] = kept
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


class ReopenedStream(JoinedStream):
    """Rewrites the whole stream of another replica for a client that has the beginning of one, without content.

    Args:
        head: The members that all chunks of the first stream share.
        roles: The choices whose role the client has.
    """

    def __init__(self, head: Mapping[str, Any], roles: set[Any]) -> None:
        super().__init__(SentText(head, "", 0, None, None, False, None, False), 0, None, "")
        self._roles = roles

    def _takes(self, choice: Any) -> bool:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or "role" not in delta:
            return True
        if (index := choice.get("index")) in self._roles:
            del delta["role"]
            return has_content({"choices": [choice]})
        self._roles.add(index)
        return True


def reopened(events: bytes) -> ReopenedStream | None:
    """What makes another replica's stream go on behind these events, which have no content; None: nothing is needed."""
    seam: ReopenedStream | None = None
    whole = max((end.end() for end in END.finditer(events)), default=0)  # the client got no event that broke off
    for payload in payloads(events[:whole]):
        try:
            chunk = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        if isinstance(chunk, dict) and isinstance(choices := chunk.get("choices"), list):
            seam = seam or ReopenedStream({name: chunk[name] for name in HEAD if name in chunk}, set())
            for choice in choices:
                seam._takes(choice)  # notes the role
    return seam


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
    for end in END.finditer(events):
        yield events[start : end.end()]
        start = end.end()
    if start < len(events):
        yield events[start:]
