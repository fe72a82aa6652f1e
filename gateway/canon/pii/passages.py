"""The texts of a prompt that are searched for personal data, and the other parts between them.

Searched are the leading messages of a chat (those before the first one of the user), or all of them, with the arguments
of tool calls.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import orjson

from gateway.core.json_edit import Path
from gateway.core.request import ChatRequest, Endpoint


class Passage(msgspec.Struct, frozen=True, gc=False):
    """A text of a prompt.

    Attributes:
        path: Path in the request.
        text: The text.
        searched: Whether it is searched for personal data.
    """

    path: Path
    text: str
    searched: bool

    def __repr__(self) -> str:
        return f"Passage({self.name!r}, {len(self.text)} characters)"  # without the text, which may be personal

    @property
    def name(self) -> str:
        """The path in the API's dotted form, such as ``messages[0].content[1].text``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    @property
    def is_json(self) -> bool:
        """Whether the text is JSON that has to stay JSON: the arguments of a tool call."""
        return self.path[-1] == "arguments"


_PART_TEXTS = ("text", "refusal", "thinking")
_MESSAGE_TEXTS = ("name", "reasoning", "reasoning_content", "refusal")
"""Members besides ``content`` whose text engines put into the prompt."""


Beginning = list[Passage | bytes]
"""A prompt, or its part up to and including its first user message. Bytes represent the other parts: roles,
boundaries, media."""


def beginnings(request: ChatRequest, *, everywhere: bool = False) -> list[Beginning]:
    """The beginning of every prompt of a request: one for a chat, one for each text prompt of a completion.

    Args:
        request: The request.
        everywhere: Whether all messages of a chat are searched. Otherwise its beginning ends with the first message
            with the role ``user``, and the messages before that one are searched; without such a message, all are.
    """
    if request.endpoint is Endpoint.CHAT:
        return [list(_conversation(request.fields["messages"], everywhere=everywhere))]
    return [[passage] for passage in _prompts(request)]


def has_more_pieces(request: ChatRequest, limit: int, *, with_user: bool, everywhere: bool = False) -> bool:
    """Whether more than ``limit`` messages, content parts and tool calls have to be gone through.

    Args:
        request: A chat.
        limit: Maximum number of messages, parts and calls.
        with_user: Whether to count the first user message as well.
        everywhere: Whether to count all messages.
    """
    pieces = 0
    for message in request.fields["messages"]:
        is_user = message["role"] == "user"
        if is_user and not with_user and not everywhere:
            break
        content, calls = message.get("content"), message.get("tool_calls")
        pieces += 1 + (len(content) if isinstance(content, list) else 0)
        if everywhere and isinstance(calls, list):
            pieces += len(calls)
        if pieces > limit:
            return True
        if is_user and not everywhere:
            break
    return False


def searched(request: ChatRequest, *, everywhere: bool = False) -> list[Passage]:
    """The searched texts of a request; faster than ``beginnings``, because it does not encode the other parts.

    Args:
        request: The request.
        everywhere: As of ``beginnings``.
    """
    if request.endpoint is not Endpoint.CHAT:
        return _prompts(request)
    found: list[Passage] = []
    for position, message in enumerate(request.fields["messages"]):
        if not everywhere and message["role"] == "user":
            break
        content = message.get("content")
        if type(content) is str and len(message) == 2:  # a role and a text, as in nearly all messages
            found.append(Passage(("messages", position, "content"), content, True))
            continue
        found += [part for part in _content(message, position, searched=True) if isinstance(part, Passage)]
        if everywhere:
            found += _arguments(message, position)
    return found


def _prompts(request: ChatRequest) -> list[Passage]:
    prompt = request.fields.get("prompt")
    if isinstance(prompt, str):
        return [Passage(("prompt",), prompt, searched=True)]
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else []
    return [
        Passage(("prompt", position), text, searched=True)
        for position, text in enumerate(prompts)
        if isinstance(text, str)
    ]


def _conversation(messages: list[dict[str, Any]], *, everywhere: bool) -> Iterator[Passage | bytes]:
    for position, message in enumerate(messages):
        is_user = message["role"] == "user"
        yield b"\0message\0" + _encoded({key: value for key, value in message.items() if key != "content"})
        for part in _content(message, position, searched=everywhere or not is_user):
            yield part if isinstance(part, Passage) else b"\0part\0" + _encoded(part)
            yield b"\0end\0"
        if everywhere:
            yield from _arguments(message, position)
        elif is_user:
            return


def _arguments(message: Mapping[str, Any], position: int) -> list[Passage]:
    """The arguments of a message's tool calls: JSON in a text."""
    calls = message.get("tool_calls")
    found: list[Passage] = []
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
            found.append(Passage(("messages", position, "tool_calls", number, "function", "arguments"), text, True))
    return found


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
