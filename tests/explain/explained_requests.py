"""Requests that were answered, as tests hand them over."""

from typing import Any

import msgspec

from gateway.values.explain import Finished, Holder, Where

PLAIN = Finished(
    request_id="req-1",
    at=1_790_000_000.0,
    model="demo",
    endpoint="/v1/chat/completions",
    tenant="shop",
    tenant_label="shop",
    source="web",
    session="",
    where=Where("demo", "tok", "tpl", "tenant:shop"),
    life="a1b2",
    body=b"",
    parts=(),
    replies=(),
    token_source="local",
    block_size=16,
    prompt_tokens=100,
    own_tokens=100,
    predicted_tokens=32,
    cached_tokens=32,
    completion_tokens=8,
    replica="r0",
    rank=0,
    decision="warm",
    policy="cost",
    holders=(Holder("r0", 0, 32, 0.0, 0.1, 0.1),),
    bypasses_cache=False,
    is_blind=False,
    template_tells_time=False,
    tools_first=False,
    status=200,
    ending="complete",
    streamed=False,
    ttft_seconds=None,
    seconds=0.2,
    failed_attempts=0,
    prefill_seconds_per_token=0.0001,
    warming=False,
)
"""A request without text and tokens: 100 prompt tokens, 32 of them hits."""


def request(text: str | None = "Hello.", **fields: Any) -> Finished:
    """An answered request with this text; None leaves text and tokens out."""
    if text is None:
        return msgspec.structs.replace(PLAIN, **fields)
    body = b'{"messages":[{"role":"user","content":%b}]}' % msgspec.json.encode(text)
    tokens = fields.get("own_tokens", PLAIN.own_tokens)
    ids = b"".join((number % 50_000).to_bytes(4, "little") for number in range(tokens))
    return msgspec.structs.replace(PLAIN, **({"body": body, "parts": (ids,)} | fields))
