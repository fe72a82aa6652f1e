"""Stand-in tokens for prompts that nothing can tokenize: four bytes of text each, about the length of a real token.

Two prompts that begin with the same text get the same stand-ins up to there, which is all that routing needs. They are
never counted as tokens of the model.
"""

from collections.abc import Mapping
from typing import Any

from gateway.encode.written import written
from gateway.values.prompt import TOKEN_BYTES
from gateway.values.request import Endpoint


def stand_in(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    """One stand-in prompt per prompt of the request."""
    if endpoint is Endpoint.CHAT:
        # Tools first: nearly every template renders them before the conversation.
        pieces: list[Any] = [fields.get("tools"), *_as_list(fields.get("messages"))]
        return (_padded(b"\n".join(written(piece) for piece in pieces)),)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt):
        return tuple(_padded(written(item)) for item in prompt)
    return (_padded(written(prompt)),)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % TOKEN_BYTES)
