"""The parts of a prompt: what is searched for personal data, and in which order a prompt begins with what."""

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
        path: Where it stands in the request.
        text: The text.
        searched: Whether personal data is looked for in it.
    """

    path: Path
    text: str = field(repr=False)
    searched: bool

    @property
    def name(self) -> str:
        """Its path in the API's dotted form, such as ``messages[0].content[1].text``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


_PART_TEXTS = ("text", "refusal", "thinking")
_MESSAGE_TEXTS = ("name", "reasoning", "reasoning_content", "refusal")
"""Where engines take text of a prompt from besides ``content``."""


Beginning = list[Passage | bytes]
"""A prompt from its first character through its first user message. Bytes stand for what is no text: roles, boundaries,
media."""


def beginnings(request: ChatRequest) -> list[Beginning]:
    """The beginning of every prompt of a request: one for a chat, and one for each prompt that is a text.

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


def has_more_pieces(request: ChatRequest, most: int, *, with_user: bool) -> bool:
    """Whether there are more messages and content parts than that in front of the first message of the user.

    Args:
        request: A chat.
        most: How many.
        with_user: Whether the first message of the user counts as well.
    """
    pieces = 0
    for message in request.fields["messages"]:
        asks = message["role"] == "user"
        if asks and not with_user:
            break
        content = message.get("content")
        pieces += 1 + (len(content) if isinstance(content, list) else 0)
        if pieces > most:
            return True
        if asks:
            break
    return False


def leading(request: ChatRequest) -> list[Passage]:
    """The searched texts of a chat, without the work ``beginnings`` has with what is no text."""
    found: list[Passage] = []
    for position, message in enumerate(request.fields["messages"]):
        if message["role"] == "user":
            break
        found += (part for part in _content(message, position, searched=True) if isinstance(part, Passage))
    return found


def _conversation(messages: list[dict[str, Any]]) -> Iterator[Passage | bytes]:
    for position, message in enumerate(messages):
        asks = message["role"] == "user"
        yield b"\0message\0" + _written({key: value for key, value in message.items() if key != "content"})
        for part in _content(message, position, searched=not asks):
            yield part if isinstance(part, Passage) else b"\0part\0" + _written(part)
            yield b"\0end\0"
        if asks:
            return


def _content(message: Mapping[str, Any], position: int, *, searched: bool) -> Iterator[Any]:
    """The texts of a message as passages, everything else of its content as it is."""
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


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # numbers beyond 64 bits
        return repr(value).encode()
