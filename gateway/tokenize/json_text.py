"""Serializes parsed JSON, with integers of any size."""

import json
import math
from typing import Any

import orjson

_MAX_BITS = 425
"""Of an integer that is written with all its digits, 128 of them: the time for that grows with their square."""


def written(value: Any) -> bytes:
    """A value as JSON, also with integers beyond 64 bits, which orjson cannot write."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_bounded(value)).encode()


def _bounded(value: Any) -> Any:
    """A copy in which an integer beyond ``_MAX_BITS`` is infinity.

    Engines accept such integers, so the text differs from theirs there, and only the predicted hit is too short.
    """
    if isinstance(value, dict):
        return {name: _bounded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    if type(value) is int and value.bit_length() > _MAX_BITS:
        return math.inf if value > 0 else -math.inf
    return value
