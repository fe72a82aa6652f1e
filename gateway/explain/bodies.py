"""Parses request bodies, as engines do: any body that an engine accepts can be read.

The texts of the latest bodies are remembered.
"""

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import orjson
from xxhash import xxh3_128_digest

from gateway.core.bounded_cache import BoundedCache
from gateway.explain.prompt_text import PromptText, prompt_text

_MEMO_BYTES = 8 * 1024 * 1024
_ENTRY_BYTES = 500
_PART_BYTES = 300
_TEXT = attrgetter("text")
_RAW = attrgetter("raw")


def parsed(body: bytes) -> Mapping[str, Any] | None:
    """The fields of a body; None if it cannot be parsed."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            fields = json.loads(body)  # takes NaN and numbers beyond a double, as engines do
        except (ValueError, RecursionError):
            fields = None
    return fields if isinstance(fields, dict) else None


def weight_of(text: PromptText) -> int:
    """Memory of a text in a cache, in about as many bytes, as if nothing else held its parts."""
    parts = len(text.messages) + len(text.tools)
    characters = sum(map(len, map(_TEXT, text.messages))) + 2 * sum(map(len, map(_RAW, text.tools)))
    return _ENTRY_BYTES + _PART_BYTES * parts + characters


class Bodies:
    """Parses bodies. The last one is remembered: its request is explained, and then tried with observed rules.

    The texts of the latest ones are remembered as well, because the same requests are compared again and again.
    """

    def __init__(self) -> None:
        self._body = b""
        self._fields: Mapping[str, Any] | None = None
        self._keyed = b""
        self._key = b""
        self._texts: BoundedCache[tuple[str, bytes], PromptText] = BoundedCache(max_weight=_MEMO_BYTES)

    def fields(self, body: bytes) -> Mapping[str, Any] | None:
        """As ``parsed``; read-only."""
        if body is not self._body:
            self._body = body
            self._fields = parsed(body)
        return self._fields

    def key(self, body: bytes) -> bytes:
        """A digest of a body."""
        if body is not self._keyed:
            self._keyed, self._key = body, xxh3_128_digest(body)
        return self._key

    def text(self, endpoint: str, body: bytes) -> PromptText | None:
        """The parts of a body: the same object for a body that is known; None if it cannot be parsed."""
        key = endpoint, self.key(body)
        text = self._texts.get(key)
        if text is None:
            fields = self.fields(body)
            if fields is None:
                return None
            text = prompt_text(endpoint, fields)
            self._texts.put(key, text, weight=weight_of(text))
        return text

    def forget(self) -> None:
        """Forget all texts."""
        self._texts.clear()
        self._body, self._fields = b"", None
        self._keyed = self._key = b""
