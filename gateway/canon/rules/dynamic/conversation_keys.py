"""Keys of conversations: by them the context blocks of earlier turns are found again."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

_KEY_BYTES = 16
_LENGTH_BYTES = 8
_CACHE_CONTROL = "cache_control"


def keys(
    messages: Sequence[Mapping[str, Any]], owner: str, lasting: Sequence[tuple[str, str]], upto: int
) -> Iterator[bytes]:
    """The key of the conversation up to each message, from the first to that of number ``upto``.

    Args:
        messages: As the client sends them, with pointers in the leading ones.
        owner: Whose the conversation is.
        lasting: Names and values of what is the same in all of its turns, and may be another one in the next.
        upto: Number of the last one.

    Raises:
        ValueError, RecursionError: A message is nothing that can be written as JSON.
    """
    running = hashlib.blake2b(digest_size=_KEY_BYTES)
    _feed(running, _written([owner, *lasting]))
    for message in messages[: upto + 1]:
        _feed(running, _written(_unmarked(message)))
        yield running.digest()


def _feed(running: "hashlib.blake2b", piece: bytes) -> None:
    running.update(len(piece).to_bytes(_LENGTH_BYTES, "little"))
    running.update(piece)


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):
        # Half surrogates, and numbers beyond 64 bits.
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _unmarked(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without ``cache_control``: the mark moves from turn to turn."""
    content = message.get("content")
    if isinstance(content, list) and any(isinstance(part, dict) and _CACHE_CONTROL in part for part in content):
        message = {**message, "content": [_without(part) if isinstance(part, dict) else part for part in content]}
    return _without(message) if _CACHE_CONTROL in message else message


def _without(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name != _CACHE_CONTROL}
