"""The engines' event streams."""

from collections.abc import Iterator


def payloads(stream: bytes) -> Iterator[bytes]:
    """The data of every event of a stream, without the end mark."""
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            payload = line[5:].strip()
            if payload != b"[DONE]":
                yield payload
