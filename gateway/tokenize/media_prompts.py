"""Digests of the media in a prompt, for engines that do not report their place in the tokens."""

from collections.abc import Iterator, Mapping
from typing import Any

from xxhash import xxh3_64_hexdigest

from gateway.tokenize.json_text import written

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
"""Types of content parts that are text."""


def media_variant(fields: Mapping[str, Any]) -> str:
    """A digest of everything in a conversation that is not text; empty for text alone.

    Token ids hold placeholders there, so two prompts with different images would look alike. With this digest in the
    chain they match only when all their media are the same.
    """
    found = b"\0".join(written(part) for part in _media_parts(fields))
    return f"media:{xxh3_64_hexdigest(found)}" if found else ""


def _media_parts(fields: Mapping[str, Any]) -> Iterator[Any]:
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type", "text") not in TEXT_PARTS:
                yield part
