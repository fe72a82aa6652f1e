"""Requests, events and sinks for tests of streams that go on elsewhere."""

import json
from typing import Any

import orjson

from gateway.core.request import ChatRequest, Endpoint

HEAD = {"id": "chatcmpl-1", "created": 7, "model": "demo"}


def asking(endpoint: Endpoint = Endpoint.CHAT, *, body: bytes | None = None, **fields: Any) -> ChatRequest:
    """A request that streams."""
    if body is None:
        start = {"messages": [{"role": "user", "content": "Hi"}]} if endpoint is Endpoint.CHAT else {"prompt": "Hi"}
        body = json.dumps({"model": "demo", "stream": True, **start, **fields}).encode()
    parsed = json.loads(body)
    wanted = (parsed.get("stream_options") or {}).get("include_usage") is True
    return ChatRequest(endpoint, b"", body, parsed, (), "demo", bool(parsed.get("stream")), wanted, "r", None, 0.0)


def event(**chunk: Any) -> bytes:
    return b"data: " + orjson.dumps({**HEAD, **chunk}) + b"\n\n"


def opening() -> bytes:
    return event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])


def said(text: str, finish: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}])


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": details}


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """The events' JSON, without the end mark."""
    lines = [line[6:] for line in stream.splitlines() if line.startswith(b"data: ")]
    return [orjson.loads(line) for line in lines if line != b"[DONE]"]


class Letters:
    """A tokenizer with a token a letter.

    Args:
        prompt: Tokens of a request's prompt.
        before: What the chat template prints between the prompt and the beginning of an answer.
        strips: Whether it prints no white space at an answer's end.
    """

    def __init__(self, *, prompt: int = 5, before: str = "", strips: bool = False) -> None:
        self.before = "." * prompt + before
        self.strips = strips

    def encode(self, endpoint: Endpoint, fields: Any) -> tuple[bytes, ...]:
        del endpoint
        content = fields["messages"][-1]["content"]
        return (self.encode_text(self.before + (content.rstrip() if self.strips else content)),)

    def encode_text(self, text: str) -> bytes:
        return b"".join(ord(letter).to_bytes(4, "little") for letter in text)


class Client:
    """A sink that keeps what it gets."""

    gone = interrupted = congested = False

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.got = b""
        self.ended = False

    def start(self, status: int, headers: Any) -> None:
        del headers
        self.heads.append(status)

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:
        assert not self.ended
        self.got += data
        self.ended = not more
