"""Sums of requests that could not be explained, so that their tokens are included in all totals."""

import msgspec

from gateway.core.explanation import RequestRecord
from gateway.explain.worker.explain_messages import SkippedTotals

_MAX_SUMS = 1000
_OTHER = "(other)"

_Key = tuple[str, str, str, str, str, bool]


def share_of(finished: RequestRecord) -> SkippedTotals:
    """A request as a sum of one, with the same hits as in its explanation."""
    hits = finished.cached_tokens
    if hits is None:
        scale = finished.prompt_tokens / finished.own_tokens if finished.own_tokens else 1.0
        hits = 0 if finished.bypasses_cache else round(finished.predicted_tokens * scale)
    prompt_tokens = max(finished.prompt_tokens, 0)
    return SkippedTotals(
        finished.model,
        finished.tenant,
        finished.tenant_label,
        finished.source,
        finished.where.template,
        finished.cached_tokens is not None,
        finished.at,
        1,
        prompt_tokens,
        min(max(hits, 0), prompt_tokens),
        prompt_tokens * finished.prefill_seconds_per_token,
    )


class SkippedSums:
    """Sums per model, tenant, client family and template version.

    Client families and tenants are unbounded. Beyond the bound, new ones are added to ``(other)``; models, their
    template versions and tenant labels are bounded by the configuration.

    Args:
        most: Number of sums from which on ``(other)`` is used.
    """

    def __init__(self, most: int = _MAX_SUMS) -> None:
        self._most = most
        self._sums: dict[_Key, SkippedTotals] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, more: SkippedTotals) -> None:
        """Add one more sum."""
        key = _key(more)
        if key not in self._sums and len(self._sums) >= self._most:
            more = msgspec.structs.replace(more, tenant=_OTHER, source=_OTHER)
            key = _key(more)
        before = self._sums.get(key)
        self._sums[key] = more if before is None else _together(before, more)

    def take(self) -> list[SkippedTotals]:
        """Returns all sums and removes them."""
        taken, self._sums = list(self._sums.values()), {}
        return taken


def _key(share: SkippedTotals) -> _Key:
    return share.model, share.tenant, share.tenant_label, share.source, share.template, share.hits_confirmed


def _together(one: SkippedTotals, other: SkippedTotals) -> SkippedTotals:
    return msgspec.structs.replace(
        one,
        at=max(one.at, other.at),
        requests=one.requests + other.requests,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        hits=one.hits + other.hits,
        prefill_seconds=one.prefill_seconds + other.prefill_seconds,
    )
