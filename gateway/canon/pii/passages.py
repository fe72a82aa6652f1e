"""Splits the beginning of a prompt into texts, some of which are searched for personal data, and other parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.core.json_edit import Path
from gateway.core.request import ChatRequest, Endpoint


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of a prompt.

    Attributes:
        path: Path in the request.
        text: The text.
        searched: Whether it is searched for personal data.
    """

    path: Path
    text: str = field(repr=False)
    searched: bool

    @property
    def name(self) -> str:
        """The path in the API's dotted form, such as ``messages[0].content[1].text``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


_PART_TEXTS = ("text", "refusal", "thinking")
_MESSAGE_TEXTS = ("name", "reasoning", "reasoning_content", "refusal")
"""Members besides ``content`` whose text engines put into the prompt."""


Beginning = list[Passage | bytes]
"""A prompt up to and including its first user message. Bytes represent the other parts: roles, boundaries, media."""


def beginnings(request: ChatRequest) -> list[Beginning]:
    """The beginning of every prompt of a request: one for a chat, one for each text prompt of a completion.

    In a chat, the messages before the first one with the role ``user`` are searched; without such a message, all are.
    """
    if request.endpoint is Endpoint.CHAT:
        return [list(_conversation(request.fields["messages"]))]
    prompt = request.fields.get("prompt")
    if isinstance(prompt, str):
        return [[Passage(("prompt",), prompt, searched=True)]]
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else []
    return [
        [Passage(("prompt", position), text, searched=True)]
        for position, text in enumerate(prompts)
        if isinstance(text, str)
    ]


def has_more_pieces(request: ChatRequest, limit: int, *, with_user: bool) -> bool:
    """Whether more than ``limit`` messages and content parts precede the first user message.

    Args:
        request: A chat.
        limit: Maximum number of messages and parts.
        with_user: Whether to count the first user message as well.
    """
    pieces = 0
    for message in request.fields["messages"]:
        is_user = message["role"] == "user"
        if is_user and not with_user:
            break
        content = message.get("content")
        pieces += 1 + (len(content) if isinstance(content, list) else 0)
        if pieces > limit:
            return True
        if is_user:
            break
    return False


def leading(request: ChatRequest) -> list[Passage]:
    """The searched texts of a chat; faster than ``beginnings``, because it does not encode the other parts."""
    found: list[Passage] = []
    for position, message in enumerate(request.fields["messages"]):
        if message["role"] == "user":
            break
        found += (part for part in _content(message, position, searched=True) if isinstance(part, Passage))
    return found


def _conversation(messages: list[dict[str, Any]]) -> Iterator[Passage | bytes]:
    for position, message in enumerate(messages):
        is_user = message["role"] == "user"
        yield b"\0message\0" + _encoded({key: value for key, value in message.items() if key != "content"})
        for part in _content(message, position, searched=not is_user):
            yield part if isinstance(part, Passage) else b"\0part\0" + _encoded(part)
            yield b"\0end\0"
        if is_user:
            return


def _content(message: Mapping[str, Any], position: int, *, searched: bool) -> Iterator[Any]:
    """The texts of a message as passages, and the other parts of its content unchanged."""
    for key in _MESSAGE_TEXTS:
        if isinstance(message.get(key), str):
            yield Passage(("messages", position, key), message[key], searched)
    path: Path = ("messages", position, "content")
    content = message.get("content")
    if isinstance(content, str):
        yield Passage(path, content, searched)
        return
    for number, part in enumerate(content or ()):
        if isinstance(part, str):
            yield Passage((*path, number), part, searched)
        elif isinstance(part, dict) and (texts := [key for key in _PART_TEXTS if isinstance(part.get(key), str)]):
            for key in texts:
                yield Passage((*path, number, key), part[key], searched)
        else:
            yield part


def _encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # numbers beyond 64 bits
        return repr(value).encode()
