"""Parts of prompts that many requests hold: system messages, tools, the history of a conversation."""

from dataclasses import replace
from sys import getsizeof
from typing import Generic, TypeVar

from gateway.explain.prompt_text import Message, PromptText, Tool

_PART_BYTES = 330
"""Of a part besides its strings: the object, its place in the table, the count."""

_CALL_BYTES = 120

_Part = TypeVar("_Part", Message, Tool)


class SharedTexts:
    """Prompts whose equal messages and tools are held once."""

    def __init__(self) -> None:
        self._messages: _Shared[Message] = _Shared()
        self._tools: _Shared[Tool] = _Shared()

    @property
    def held_bytes(self) -> int:
        """What all parts take, about."""
        return self._messages.held_bytes + self._tools.held_bytes

    def share(self, text: PromptText) -> PromptText:
        """The same prompt, made of the parts that are held already where they are. To be released once."""
        return replace(
            text,
            messages=tuple(map(self._messages.share, text.messages)),
            tools=tuple(map(self._tools.share, text.tools)),
        )

    def release(self, text: PromptText) -> None:
        """One prompt less that is made of these parts."""
        for message in text.messages:
            self._messages.release(message)
        for tool in text.tools:
            self._tools.release(tool)


class _Shared(Generic[_Part]):
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
    """What a message or a tool takes in memory, about."""
    if isinstance(part, Tool):
        return _PART_BYTES + getsizeof(part.raw) + getsizeof(part.canonical)
    calls = sum(_CALL_BYTES + getsizeof(each.arguments) + getsizeof(each.canonical) for each in part.calls)
    return _PART_BYTES + getsizeof(part.text) + getsizeof(part.reasoning) + calls


def text_bytes(text: PromptText) -> int:
    """What a prompt takes in memory that shares nothing with another, about."""
    return sum(map(part_bytes, text.messages)) + sum(map(part_bytes, text.tools))
