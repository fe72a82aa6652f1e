"""Bounds of what an engine may say about itself.

A replica must not be able to make the gateway compute or allocate without end.
"""

from typing import Any, TypeGuard

MAX_RANKS = 512
"""Data-parallel ranks of one replica. The largest deployments have about 320. Each is considered for every request."""

MAX_BLOCK_SIZE = 2**16
"""Tokens. Hybrid models have blocks of some thousand."""

MAX_DOCUMENT_BYTES = 2 * 2**20
"""Of ``/server_info`` and ``/kv_event_sources``. SGLang's has about 20 KiB for each data-parallel rank."""

_MAX_COUNT = 2**31
_MAX_DIGITS = 10


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number of tokens, blocks or requests that there can be."""
    return type(value) is int and 0 <= value <= _MAX_COUNT


def count_in(text: str) -> int | None:
    """The positive count that a text of digits stands for; None if it is none."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        return None
    value = int(text)
    return value if value and is_count(value) else None


def rank_number(text: str) -> int | None:
    """The rank that a text of ASCII digits stands for; None if there cannot be such a rank."""
    if len(text) > _MAX_DIGITS:
        return None
    rank = int(text)
    return rank if rank < MAX_RANKS else None
