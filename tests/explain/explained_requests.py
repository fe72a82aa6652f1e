"""Requests that were answered, as tests hand them over."""

from typing import Any

import msgspec
from answered_requests import answered

from gateway.core.explanation import RequestRecord, SpaceKey

PLAIN = answered(
    request_id="req-1",
    at=1_790_000_000.0,
    tenant="shop",
    tenant_label="shop",
    where=SpaceKey("demo", "tok", "tpl", "tenant:shop"),
    predicted_tokens=32,
    cached_tokens=32,
    decision="warm",
)
"""A request without text and tokens: 100 prompt tokens, 32 of them hits."""


def request(text: str | None = "Hello.", **fields: Any) -> RequestRecord:
    """An answered request with this text; None leaves text and tokens out."""
    if text is None:
        return msgspec.structs.replace(PLAIN, **fields)
    body = b'{"messages":[{"role":"user","content":%b}]}' % msgspec.json.encode(text)
    tokens = fields.get("own_tokens", PLAIN.own_tokens)
    ids = b"".join((number % 50_000).to_bytes(4, "little") for number in range(tokens))
    return msgspec.structs.replace(
        PLAIN, **({"body": body, "parts": (ids,), "opening": hash(text), "turn": 1} | fields)
    )


def each_block(lost):
    """The reason of every block."""
    return [reason for reason, blocks in lost for _ in range(blocks)]
