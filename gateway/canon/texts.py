"""The texts of a prompt that rules may change: where they stand, and who wrote them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.canon.rule import Fields
from gateway.core.json_edit import Path

LONGEST_TEXT = 1024 * 1024
"""Characters. Rules that change texts by themselves leave longer ones as they are: they go through a text in steps that
let no other thread run, and 250,000 tokens are a document, whose blanks are its own."""

LEADING_ROLES = frozenset({"system", "developer"})
"""Who writes the instructions in front of a conversation."""


BLOCK_ROLES = frozenset({"user", "tool"})
"""Behind whose messages a context block may stand."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text.

    Attributes:
        path: Where it stands in the request.
        role: Role of its message; empty for the prompt of a completion.
        message: Number of its message; 0 for the prompt of a completion.
        text: The text.
    """

    path: Path
    role: str
    message: int
    text: str = field(repr=False)


def texts(fields: Fields) -> Iterator[Text]:
    """Every text of the messages' contents, in the prompt's order; of a completion, its prompts that are texts.

    Of content parts only those of type ``text`` (or without a type, as a plain string) are texts; all others are left
    alone by everybody.
    """
    for number, message in enumerate(messages(fields)):
        role = message.get("role")
        if isinstance(role, str):
            yield from texts_of(message, number, role)
    prompt = fields.get("prompt")
    if "messages" not in fields and isinstance(prompt, str):
        yield Text(("prompt",), "", 0, prompt)
    elif "messages" not in fields and isinstance(prompt, list):
        yield from (Text(("prompt", n), "", 0, each) for n, each in enumerate(prompt) if isinstance(each, str))


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
    """The messages of a chat; none where there are none, as in a completion, of which nobody checked such a field."""
    found = fields.get("messages")
    return found if isinstance(found, list) and "prompt" not in fields else []


def leading_messages(fields: Fields) -> int:
    """How many messages of the system and the developer stand in front of all others."""
    found = messages(fields)
    return next((n for n, each in enumerate(found) if each.get("role") not in LEADING_ROLES), len(found))
