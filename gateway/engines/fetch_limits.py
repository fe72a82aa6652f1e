"""Limits of numbers and documents reported by engines, so that a replica cannot exhaust the gateway."""

from typing import Any, TypeGuard

MAX_RANKS = 512
"""Data-parallel ranks of one replica. The largest deployments have about 320. Each is considered for every request."""

MAX_BLOCK_SIZE = 2**16
"""Tokens. Hybrid models have blocks of some thousand."""

MAX_DOCUMENT_BYTES = 2 * 2**20
"""Limit of ``/server_info`` and ``/kv_event_sources``. SGLang's has about 20 KiB for each data-parallel rank."""

_MAX_COUNT = 2**31
_MAX_DIGITS = 10


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a plausible number of tokens, blocks or requests."""
    return type(value) is int and 0 <= value <= _MAX_COUNT


def count_in(text: str) -> int | None:
    """Parse a positive count; None if it is malformed or too large."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        return None
    value = int(text)
    return value if value and is_count(value) else None


def rank_number(text: str) -> int | None:
    """Parse a rank from ASCII digits; None if it is too large."""
    if len(text) > _MAX_DIGITS:
        return None
    rank = int(text)
    return rank if rank < MAX_RANKS else None
