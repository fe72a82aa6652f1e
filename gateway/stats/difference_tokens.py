"""The token ids around a request's first difference; the gateway decodes and masks them."""

from collections.abc import Mapping

from gateway.core.prompt import TOKEN_BYTES
from gateway.stats.entries import RequestEntry


def tokens_shown(entry: RequestEntry | None) -> Mapping[str, object] | None:
    """The token ids around the first difference, JSON-ready, for the gateway to decode and mask; None without any."""
    if entry is None or entry.explanation.tokens is None or entry.explanation.reference is None:
        return None
    window = entry.explanation.tokens
    return {
        "model": entry.finished.model,
        "equal_tokens": entry.explanation.reference.equal_tokens,
        "before": _ids(window.before),
        "after": _ids(window.after),
        "first": window.first,
    }


def _ids(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + TOKEN_BYTES], "little") for at in range(0, len(packed), TOKEN_BYTES)]
