"""A client of the gateway, and what it sees of one answer."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.engine.replica import MODEL

TIMEOUT = httpx.Timeout(300.0)


@dataclass
class Seen:
    """One answer.

    Attributes:
        status: HTTP status.
        headers: Its headers.
        usage: The engine's ``usage`` object; empty if there is none.
        text: The generated text.
        error: The body of an answer that is not 200.
        ttft_seconds: From sending to the first text of a stream.
        arrivals: Seconds from sending at which each piece of a stream came.
    """

    status: int
    headers: httpx.Headers
    usage: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    error: Any = None
    ttft_seconds: float = 0.0
    arrivals: list[float] = field(default_factory=list)

    @property
    def replica(self) -> str:
        return self.headers.get("x-gateway-replica", "")

    @property
    def decision(self) -> str:
        return self.headers.get("x-gateway-decision", "")

    @property
    def counted(self) -> int:
        """Prompt tokens as the gateway counts them."""
        return int(self.headers.get("x-gateway-prompt-tokens", -1))

    @property
    def predicted(self) -> int:
        """Cached tokens as the gateway predicts them."""
        return int(self.headers.get("x-gateway-prefix-tokens", -1))

    @property
    def confirmed(self) -> int:
        """Cached tokens as the engine reports them."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> Seen:
    """Send a request and read the whole answer."""
    answer = await client.post(path, json={"model": MODEL, **body}, headers=headers)
    if answer.status_code != 200:
        return Seen(answer.status_code, answer.headers, error=answer.json())
    found = answer.json()
    return Seen(200, answer.headers, found["usage"], _text(found["choices"], "message"))


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Seen:
    """Send a request for a stream and read it to its end."""
    request = {"model": MODEL, **body, "stream": True, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    async with client.stream("POST", path, json=request) as answer:
        seen = Seen(answer.status_code, answer.headers)
        if answer.status_code != 200:
            seen.error = json.loads(await answer.aread())
            return seen
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            seen.usage = chunk.get("usage") or seen.usage
            if piece := _text(chunk["choices"], "delta"):
                seen.arrivals.append(time.perf_counter() - sent)
                seen.text += piece
    seen.ttft_seconds = seen.arrivals[0] if seen.arrivals else 0.0
    return seen


def _text(choices: list[dict[str, Any]], key: str) -> str:
    if not choices:
        return ""
    return str(choices[0].get("text") or (choices[0].get(key) or {}).get("content") or "")
