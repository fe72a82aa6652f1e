"""The texts of a prompt that rules may change, with path and role."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

import msgspec

from gateway.canon.rule import Fields
from gateway.core.json_edit import Path

LONGEST_TEXT = 1024 * 1024
"""Maximum number of characters of a text that built-in rules change. They process a text in steps that hold the
interpreter lock, and a text of 250,000 tokens is a document rather than a prompt template."""

LEADING_ROLES = frozenset({"system", "developer"})
"""Roles of the instructions at the beginning of a conversation."""


BLOCK_ROLES = frozenset({"user", "tool"})
"""Roles of the messages to which a context block may be appended."""


class Text(msgspec.Struct, frozen=True):
    """A text.

    Attributes:
        path: Path in the request.
        role: Role of the message; empty for the prompt of a completion.
        message: Index of the message; 0 for the prompt of a completion.
        text: The text.
    """

    path: Path
    role: str
    message: int
    text: str

    def __repr__(self) -> str:
        return f"Text({self.path}, {self.role!r})"  # without the text


def texts(fields: Fields, roles: Container[str] | None = None) -> list[Text]:
    """All texts of the messages' contents, in the prompt's order; for a completion, its prompts that are texts.

    Of content parts only those of type ``text`` and plain strings are texts; no rule changes the others.

    Args:
        fields: The request's fields.
        roles: Roles of the messages; None: all.
    """
    if "messages" not in fields:
        prompt = fields.get("prompt")
        if isinstance(prompt, str):
            return [Text(("prompt",), "", 0, prompt)]
        prompts = prompt if isinstance(prompt, list) else ()
        return [Text(("prompt", n), "", 0, each) for n, each in enumerate(prompts) if isinstance(each, str)]
    found: list[Text] = []
    for number, message in enumerate(messages(fields)):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or (roles is not None and role not in roles):
            continue
        if isinstance(content, str):
            found.append(Text(("messages", number, "content"), role, number, content))
        else:
            found += texts_of(message, number, role)
    return found


def texts_of(message: Mapping[str, Any], number: int, role: str) -> Iterator[Text]:
    """The texts of one message's content."""
    content = message.get("content")
    path: Path = ("messages", number, "content")
    if isinstance(content, str):
        yield Text(path, role, number, content)
    elif isinstance(content, list):
        for position, part in enumerate(content):
            if isinstance(part, str):
                yield Text((*path, position), role, number, part)
            elif isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                yield Text((*path, position, "text"), role, number, part["text"])


def messages(fields: Fields) -> list[Mapping[str, Any]]:
    """The messages of a chat; empty for a completion, whose ``messages`` field is unchecked client input."""
    found = fields.get("messages")
    return found if isinstance(found, list) and "prompt" not in fields else []


def leading_messages(fields: Fields) -> int:
    """Number of system and developer messages in front of all others."""
    found = messages(fields)
    for number, message in enumerate(found):  # no generator: for most prompts it would cost more than the search
        if message.get("role") not in LEADING_ROLES:
            return number
    return len(found)
