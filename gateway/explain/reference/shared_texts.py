"""Deduplicates parts of prompts that many requests contain: system messages, tools, the history of a conversation."""

from dataclasses import replace
from sys import getsizeof
from typing import Generic, TypeVar

from gateway.explain.prompt_text import Message, PromptText, Tool

_PART_BYTES = 330
"""Memory of a part besides its strings: object, table entry, count."""

_CALL_BYTES = 120

_Part = TypeVar("_Part", Message, Tool)


class SharedTexts:
    """Holds equal messages and tools of prompts once, with reference counts."""

    def __init__(self) -> None:
        self._messages: _CountedParts[Message] = _CountedParts()
        self._tools: _CountedParts[Tool] = _CountedParts()

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all parts."""
        return self._messages.held_bytes + self._tools.held_bytes

    def share(self, text: PromptText) -> PromptText:
        """The same prompt built from shared parts. Each call needs one ``release``."""
        return replace(
            text,
            messages=tuple(map(self._messages.share, text.messages)),
            tools=tuple(map(self._tools.share, text.tools)),
        )

    def release(self, text: PromptText) -> None:
        """Release the parts of a prompt."""
        for message in text.messages:
            self._messages.release(message)
        for tool in text.tools:
            self._tools.release(tool)


class _CountedParts(Generic[_Part]):
    def __init__(self) -> None:
        self.held_bytes = 0
        self._parts: dict[_Part, tuple[_Part, int]] = {}

    def share(self, part: _Part) -> _Part:
        held, holders = self._parts.get(part, (part, 0))
        if not holders:
            self.held_bytes += part_bytes(part)
        self._parts[held] = (held, holders + 1)
        return held

    def release(self, part: _Part) -> None:
        held, holders = self._parts[part]
        if holders > 1:
            self._parts[held] = (held, holders - 1)
        else:
            del self._parts[held]
            self.held_bytes -= part_bytes(held)


def part_bytes(part: Message | Tool) -> int:
    """Approximate memory of a message or a tool."""
    if isinstance(part, Tool):
        return _PART_BYTES + getsizeof(part.raw) + getsizeof(part.canonical)
    calls = sum(_CALL_BYTES + getsizeof(each.arguments) + getsizeof(each.canonical) for each in part.calls)
    return _PART_BYTES + getsizeof(part.text) + getsizeof(part.reasoning) + calls


def text_bytes(text: PromptText) -> int:
    """Approximate memory of a prompt without shared parts."""
    return sum(map(part_bytes, text.messages)) + sum(map(part_bytes, text.tools))
