"""One request as an application sends it: streamed, with usage asked for."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from gateway.demo.applications import Fields, Message
from gateway.demo.demo_plan import MODEL
from gateway.engines import payloads

_TIMEOUT = httpx.Timeout(60.0)


class RequestFailed(Exception):
    """A request got no complete answer. The message says what came instead."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A complete answer.

    Attributes:
        message: What the assistant said, ready to be put into the history.
        replica: Which replica computed it.
        ttft_seconds: From sending to the first token.
        prompt_tokens: Length of the prompt, as the engine reports it.
        cached_tokens: How much of it the engine found in its cache, as it reports it.
    """

    message: Message
    replica: str
    ttft_seconds: float
    prompt_tokens: int
    cached_tokens: int


class Client:
    """Connections to one gateway.

    Args:
        url: Its public URL.
    """

    def __init__(self, url: str) -> None:
        # The environment's proxies do not apply to loopback.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(self, fields: Fields, source: str) -> StreamedAnswer:
        """Send a chat request.

        Args:
            fields: The fields of the body except the model.
            source: The application's name, sent as ``x-client``.

        Raises:
            RequestFailed: no complete answer came.
        """
        body = orjson.dumps({"model": MODEL, **fields, "stream": True, "stream_options": {"include_usage": True}})
        headers = {"content-type": "application/json", "x-client": source}
        stream = _Stream()
        try:
            async with self._http.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise RequestFailed(f"status {response.status_code}: {text[:300]}")
                async for chunk in response.aiter_raw():
                    stream.feed(chunk)
                return stream.answer(response.headers.get("x-gateway-replica", "?"))
        except httpx.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise RequestFailed(f"an answer that cannot be read: {type(error).__name__}: {error}") from error


class _Stream:
    """Assembles an answer from the stream's events. Times are measured from its construction."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._rest = b""
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Mapping[str, Any] | None = None
        self._ttft: float | None = None

    def feed(self, chunk: bytes) -> None:
        events, separator, rest = (self._rest + chunk).rpartition(b"\n\n")
        self._rest = rest
        for payload in payloads(events) if separator else ():
            self._take(orjson.loads(payload))

    def answer(self, replica: str) -> StreamedAnswer:
        if self._usage is None or self._ttft is None:
            raise RequestFailed("the stream ended before the answer did")
        calls = list(self._calls.values())
        message: Message = {"role": "assistant", "content": "".join(self._text) or None}
        if calls:
            message["tool_calls"] = calls
        details = self._usage.get("prompt_tokens_details") or {}
        return StreamedAnswer(
            message, replica, self._ttft, self._usage["prompt_tokens"], details.get("cached_tokens") or 0
        )

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise RequestFailed(f"the stream broke: {event['error']}")
        self._usage = event.get("usage") or self._usage
        for choice in event["choices"]:
            delta = choice["delta"]
            if self._ttft is None and (delta.get("content") or delta.get("tool_calls")):
                self._ttft = time.perf_counter() - self._began
            self._text.append(delta.get("content") or "")
            for part in delta.get("tool_calls") or ():
                self._add_call(part)

    def _add_call(self, part: Mapping[str, Any]) -> None:
        function = part["function"]
        call = self._calls.get(part["index"])
        if call is None:
            self._calls[part["index"]] = {
                "id": part["id"],
                "type": "function",
                "function": {"name": function["name"], "arguments": function.get("arguments") or ""},
            }
        else:
            call["function"]["arguments"] += function.get("arguments") or ""
