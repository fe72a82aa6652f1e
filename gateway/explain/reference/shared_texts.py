"""Holds once what many kept prompts contain: system messages, tools, and the history of a conversation."""

from collections.abc import Iterable
from sys import getsizeof
from typing import Generic, TypeVar

from gateway.explain.prompt_text import Message, PromptText, Tool

_PART_BYTES = 330
"""Memory of a part besides its strings: object, table entry, count."""

_CALL_BYTES = 120
_Part = TypeVar("_Part", bound=Message | Tool)


class SharedTexts:
    """Holds equal messages and tools of prompts once, with reference counts."""

    def __init__(self) -> None:
        self._messages: _CountedParts[Message] = _CountedParts()
        self._tools: _CountedParts[Tool] = _CountedParts()

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all parts."""
        return self._messages.held_bytes + self._tools.held_bytes

    def share(self, text: PromptText) -> tuple[PromptText, int]:
        """The same prompt built from shared parts, and their bytes. Each call needs one ``release``."""
        messages, size = self._messages.share(text.messages)
        tools, size_of_tools = self._tools.share(text.tools) if text.tools else ((), 0)
        return PromptText(messages, tools, text.arguments, text.has_ids), size + size_of_tools

    def release(self, text: PromptText) -> None:
        """Release the parts of a prompt."""
        self._messages.release(text.messages)
        self._tools.release(text.tools)

    def digests(self, messages: Iterable[Message]) -> list[int]:
        """Digests of messages, as in ``Thread``; those of the messages that are held are worked out once."""
        found: list[int] = []
        for message in messages:
            held = self._messages.held.get(message)
            if held is None:
                found.append(message_digest(message))
                continue
            if held.digest is None:
                held.digest = message_digest(message)
            found.append(held.digest)
        return found


class _CountedParts(Generic[_Part]):
    def __init__(self) -> None:
        self.held_bytes = 0
        self.held: dict[_Part, _HeldPart[_Part]] = {}

    def share(self, parts: Iterable[_Part]) -> tuple[tuple[_Part, ...], int]:
        """The same parts as they are held, and their bytes."""
        all_held = self.held
        shared: list[_Part] = []
        size = 0
        for part in parts:
            held = all_held.get(part)
            if held is None:
                held = all_held[part] = _HeldPart(part, part_bytes(part))
                self.held_bytes += held.size
            held.holders += 1
            shared.append(held.part)
            size += held.size
        return tuple(shared), size

    def release(self, parts: Iterable[_Part]) -> None:
        all_held = self.held
        for part in parts:
            held = all_held[part]
            held.holders -= 1
            if not held.holders:
                del all_held[part]
                self.held_bytes -= held.size


class _HeldPart(Generic[_Part]):
    __slots__ = ("digest", "holders", "part", "size")

    def __init__(self, part: _Part, size: int) -> None:
        self.part = part
        self.size = size
        self.holders = 0
        self.digest: int | None = None


def part_bytes(part: Message | Tool) -> int:
    """Approximate memory of a message or a tool."""
    if isinstance(part, Tool):
        return _PART_BYTES + getsizeof(part.raw) + getsizeof(part.canonical)
    size = _PART_BYTES + getsizeof(part.text) + getsizeof(part.reasoning)
    for call in part.calls:
        size += _CALL_BYTES + getsizeof(call.arguments) + getsizeof(call.canonical)
    return size


def text_bytes(text: PromptText) -> int:
    """Approximate memory of a prompt without shared parts."""
    return sum(map(part_bytes, text.messages)) + sum(map(part_bytes, text.tools))


def message_digest(message: Message) -> int:
    """Digest of a message; valid within one process."""
    calls = tuple([(call.name, call.canonical) for call in message.calls]) if message.calls else ()
    return hash((message.role, message.text.strip(), message.name, message.others, calls))
