"""Stand-in tokens for prompts that nothing can tokenize: four bytes of text each, about the length of a real token.

Two prompts that begin with the same text get the same stand-ins up to there, which is all that routing needs. They are
never counted as tokens of the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.tokenize.json_text import written

MOST_BYTES = 4 * 1024 * 1024
"""Of a stand-in prompt: a million tokens. What is longer is cut; prompts that long seldom differ only behind that."""


def stand_in(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    """One stand-in prompt per prompt of the request."""
    if endpoint is Endpoint.CHAT:
        # Tools first: nearly every template renders them before the conversation.
        return (_padded(_joined([fields.get("tools"), *_as_list(fields.get("messages"))])),)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return tuple(_padded(_written(item)) for item in prompt)
    return (_padded(_written(prompt)),)


def _joined(pieces: Sequence[Any]) -> bytes:
    """As many of the pieces as fit."""
    texts: list[bytes] = []
    size = 0
    for piece in pieces:
        texts.append(_written(piece))
        size += len(texts[-1]) + 1
        if size > MOST_BYTES:
            break
    return b"\n".join(texts)[:MOST_BYTES]


def _written(value: Any) -> bytes:
    return written(_shortened(value))[:MOST_BYTES]


def _shortened(value: Any) -> Any:
    """A prompt, or a message with its content, without what would be cut off in any case."""
    if isinstance(value, str):
        # Other characters than ASCII take up to four bytes.
        return value[: MOST_BYTES if value.isascii() else MOST_BYTES // 4]
    if isinstance(value, dict) and isinstance(content := value.get("content"), str):
        return value | {"content": _shortened(content)}
    return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % TOKEN_BYTES)
