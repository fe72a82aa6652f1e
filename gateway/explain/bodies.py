"""Parses request bodies, as engines do: any body that an engine accepts can be read."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


def parsed(body: bytes) -> Mapping[str, Any] | None:
    """The fields of a body; None if it cannot be parsed."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            fields = json.loads(body)  # takes NaN and numbers beyond a double, as engines do
        except (ValueError, RecursionError):
            return None
    return fields if isinstance(fields, dict) else None


class Bodies:
    """Parses bodies. The last one is remembered: its request is explained, and then tried with observed rules."""

    def __init__(self) -> None:
        self._body = b""
        self._fields: Mapping[str, Any] | None = None

    def fields(self, body: bytes) -> Mapping[str, Any] | None:
        """As ``parsed``; read-only."""
        if body is not self._body:
            self._body, self._fields = body, parsed(body)
        return self._fields
