"""Holds once what many kept prompts contain: system messages, tools, the history of a conversation, and the ids of a
common beginning."""

from collections.abc import Iterable
from sys import getsizeof
from typing import Generic, TypeVar

from gateway.explain.prompt_text import Message, PromptText, Tool
from gateway.explain.reference.packed_ids import PackedIds

_PART_BYTES = 330
"""Memory of a part besides its strings: object, table entry, count."""

_CALL_BYTES = 120
_PIECE_BYTES = 200
"""Memory of a piece of ids besides its bytes."""

_Part = TypeVar("_Part", bound=Message | Tool | bytes)


class SharedTexts:
    """Holds equal messages, tools and pieces of ids of prompts once, with reference counts."""

    def __init__(self) -> None:
        self._messages: _CountedParts[Message] = _CountedParts()
        self._tools: _CountedParts[Tool] = _CountedParts()
        self._pieces: _CountedParts[bytes] = _CountedParts()

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all parts."""
        return self._messages.held_bytes + self._tools.held_bytes + self._pieces.held_bytes

    def share(self, text: PromptText, ids: PackedIds) -> tuple[PromptText, PackedIds, int]:
        """The same prompt and its ids built from shared parts, and their bytes. Each call needs one ``release``."""
        messages, size = self._messages.share(text.messages)
        tools, size_of_tools = self._tools.share(text.tools) if text.tools else ((), 0)
        pieces, size_of_ids = self._pieces.share(ids.pieces)
        shared = PromptText(messages, tools, text.arguments, text.has_ids)
        return shared, PackedIds(ids.tokens, pieces), size + size_of_tools + size_of_ids

    def release(self, text: PromptText, ids: PackedIds) -> None:
        """Release the parts of a prompt."""
        self._messages.release(text.messages)
        self._tools.release(text.tools)
        self._pieces.release(ids.pieces)

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


def part_bytes(part: Message | Tool | bytes) -> int:
    """Approximate memory of a message, a tool or a piece of ids."""
    if isinstance(part, bytes):
        return _PIECE_BYTES + len(part)
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
