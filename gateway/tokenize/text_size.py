"""Whether a prompt is small enough for the steps from its text to its tokens.

Some of these steps are single calls that hold the interpreter lock until they are done: rendering with minijinja,
writing tools as JSON, parsing a call's arguments, handing the text to the tokenizer. Within these bounds each of them
takes some 10 ms at most.
"""

import sys
from collections.abc import Mapping
from typing import Any

from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.tokenize.media_prompts import TEXT_PARTS

MOST_TEXT_BYTES = 4 * 1024 * 1024
"""Characters of a prompt's texts together, or bytes where they take more than one: about a million tokens."""

MOST_PIECES = 20_000
"""Messages, parts, tools and everything in them, and values in the arguments of tool calls."""

_STRUCTURE = "[{:,"


class PromptTooLarge(TokenizerUnavailable):
    """A prompt exceeds a bound. No engine is asked for its tokens: the answer would be as large."""


def check_size(endpoint: Endpoint, fields: Mapping[str, Any]) -> None:
    """Check a prompt. Token ids are not counted, nor are content parts that are no text, which only engines encode.

    Raises:
        PromptTooLarge: it exceeds a bound.
    """
    size = _Size()
    if endpoint is Endpoint.CHAT:
        for message in _list(fields.get("messages")):
            parts = message.get("content") if isinstance(message, dict) else None
            size.add([part for part in parts if _is_text(part)] if isinstance(parts, list) else parts)
            size.add({name: value for name, value in message.items() if name != "content"} if parts else message)
        for name in ("tools", "chat_template_kwargs", "documents"):
            size.add(fields.get(name))
        return
    prompt = fields.get("prompt")
    for text in prompt if isinstance(prompt, list) else (prompt,):
        if isinstance(text, str):
            size.add(text)


class _Size:
    """Of what was added."""

    def __init__(self) -> None:
        self._pieces = 0
        self._bytes = 0

    def add(self, value: Any) -> None:
        """Add a value and all that is in it."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            self._pieces += 1
            if isinstance(value, str):
                self._bytes += len(value) if value.isascii() else sys.getsizeof(value)
            elif isinstance(value, dict):
                if isinstance(arguments := value.get("arguments"), str):
                    self._pieces += sum(map(arguments.count, _STRUCTURE))
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
            if self._pieces + len(waiting) > MOST_PIECES:
                raise PromptTooLarge("the prompt has too many messages, parts or values")
            if self._bytes > MOST_TEXT_BYTES:
                raise PromptTooLarge("the text of the prompt is too long")


def _is_text(part: Any) -> bool:
    return not isinstance(part, dict) or part.get("type", "text") in TEXT_PARTS


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
