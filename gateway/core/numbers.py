"""Numbers that a client writes into a request, as engines read them."""

import re
from collections.abc import Mapping
from typing import Any

MAX_SEQUENCES = 16_384
"""Sequences that a request may ask for, its choices times its prompts. It is vLLM's limit of ``n``
(``VLLM_MAX_N_SEQUENCES``)."""

CHOICES = ("n", "best_of")
"""Fields that say how many sequences are computed for each prompt; the larger one counts."""

_BEYOND = 2**64
"""Replaces every larger number: no engine accepts one."""

_WHOLE = re.compile(r"\s*([+-]?)([0-9][0-9_]*)(?:\.0*)?\s*")
_MAX_DIGITS = 19


def whole(value: object) -> int | None:
    """The whole number that an engine reads in a field, at most 2**64 in size; None for anything else.

    Both engines take ``True``, ``2.0`` and ``"2"`` for whole numbers, too (pydantic's lax mode).
    """
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    elif isinstance(value, str):
        value = _written(value)
    return max(-_BEYOND, min(int(value), _BEYOND)) if isinstance(value, int) else None


def _written(text: str) -> int | None:
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    digits = found[2].replace("_", "").lstrip("0")
    size = int(digits or "0") if len(digits) <= _MAX_DIGITS else _BEYOND
    return -size if found[1] == "-" else size


def choices(fields: Mapping[str, Any]) -> int:
    """How many sequences an engine computes for each prompt of a request, as far as its fields say."""
    found = 1
    for name in CHOICES:
        if (value := fields.get(name)) is not None:
            found = max(found, whole(value) or 1)
    return found


def batch_size(fields: Mapping[str, Any]) -> int:
    """Sequences that an engine computes for embeddings and the like: items of the longest list but of token ids."""
    lists = [value for value in fields.values() if isinstance(value, list) and value]
    return max([len(value) for value in lists if not isinstance(value[0], int)], default=1)
