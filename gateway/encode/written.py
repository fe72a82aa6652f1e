"""Parsed JSON as bytes again."""

import json
from typing import Any

import orjson


def written(value: Any) -> bytes:
    """A value as JSON, also where it holds what orjson cannot write: integers beyond 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()
