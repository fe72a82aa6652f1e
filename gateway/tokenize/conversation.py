"""What does not depend on the engine: the digest of a prompt's media, for engines that do not report their place in the
tokens, and parsed JSON written again with integers of any size."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from xxhash import xxh3_64_hexdigest

from gateway.core.prompt import TEXT_PARTS

_MAX_BITS = 425
"""Of an integer that is written with all its digits, 128 of them: the time for that grows with their square."""


def written(value: Any) -> bytes:
    """A value as JSON, also with integers beyond 64 bits, which orjson cannot write."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_bounded(value)).encode()


def _bounded(value: Any) -> Any:
    """A copy in which an integer beyond ``_MAX_BITS`` is infinity.

    Engines accept such integers, so the text differs from theirs there, and only the predicted hit is too short.
    """
    if isinstance(value, dict):
        return {name: _bounded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    if type(value) is int and value.bit_length() > _MAX_BITS:
        return math.inf if value > 0 else -math.inf
    return value


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
