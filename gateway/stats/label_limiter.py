"""Bounds of the statistics: how many requests, label sets and findings are kept.

``LabelLimiter`` bounds the label sets of totals, because clients choose their source, and proxies may name tenants.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.application import prompt_id

OTHER = "(other)"
"""Replaces every source, tenant, template version, application or model beyond the bound."""

_UNUSED_SECONDS = 3600.0
_REPLACED_SECONDS = 60.0
_CLEAN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StatsLimits:
    """Bounds of the journal.

    Attributes:
        requests: Maximum number of requests kept in detail.
        ttl_seconds: How long their details are kept.
        request_bytes: Maximum memory of these details, all together.
        keys: Maximum number of label sets (model, tenant, source, template version, application) with sums of their
            own; further ones are counted as ``(other)``.
        sources: Maximum number of sources per tenant, model, template version and application.
        findings: Maximum number of findings per time bucket.
        suggestions: Maximum number of suggestions per time bucket.
    """

    requests: int = 5000
    ttl_seconds: float = 3600.0
    request_bytes: int = 64 * 1024 * 1024
    keys: int = 200
    sources: int = 30
    findings: int = 200
    suggestions: int = 40


class StatsKey(NamedTuple):
    """The labels of totals: each as in ``RequestRecord``, or ``OTHER``; ``template`` is that of its space.
    ``prompt`` has a default, because histories of earlier releases do not have it."""

    model: str
    tenant: str
    source: str
    template: str
    prompt: str = ""


class LabelLimiter:
    """Gives every request the key it is counted under.

    A key stays while it is used at least once an hour, so a flood of new names does not evict existing keys. Beyond the
    bounds, sources are replaced by ``OTHER`` first, then tenants, then template versions and applications, then
    models: clients choose the first, while versions and models are the operator's, and few. A new version of a template
    or of an application would double the keys for an hour; so at the bound it evicts a key of an older version that was
    not used for a minute. Versions in use at the
    same time have keys of their own.

    Attributes:
        limits: The bounds. Including keys with ``OTHER`` there are at most twice as many.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self.limits = limits
        self._used: dict[StatsKey, float] = {}
        self._cleaned_at = 0.0

    def key(  # noqa: PLR0917 - the labels in their order
        self, model: str, tenant: str, source: str, template: str, prompt: str, at: float
    ) -> StatsKey:
        """The key of a request that ended at ``at``."""
        wanted = StatsKey(model, tenant, source, template, prompt)
        if wanted in self._used:
            self._used[wanted] = at
            return wanted
        if abs(at - self._cleaned_at) >= _CLEAN_SECONDS:
            self._cleaned_at = at
            self._used = {key: used for key, used in self._used.items() if abs(at - used) < _UNUSED_SECONDS}
        bound = self.limits.keys
        if len(self._used) >= bound:
            self._evict_predecessor(wanted, at)
        if len(self._used) < bound and self._sources(wanted) < self.limits.sources:
            chosen = wanted
        else:
            folded = (
                (StatsKey(model, tenant, OTHER, template, prompt), bound + bound // 2),
                (StatsKey(model, OTHER, OTHER, template, prompt), bound + bound * 3 // 4),
                (StatsKey(model, OTHER, OTHER, OTHER, OTHER), 2 * bound - 1),
            )
            chosen = next(
                (key for key, limit in folded if key in self._used or len(self._used) < limit),
                StatsKey(OTHER, OTHER, OTHER, OTHER, OTHER),
            )
        self._used[chosen] = at
        return chosen

    def _evict_predecessor(self, wanted: StatsKey, at: float) -> None:
        for key, used in self._used.items():
            is_other_version = key[:3] == wanted[:3] and prompt_id(key.prompt) == prompt_id(wanted.prompt)
            if is_other_version and at - used >= _REPLACED_SECONDS:
                del self._used[key]
                return

    def _sources(self, wanted: StatsKey) -> int:
        """Number of sources of the same tenant, model, template version and application."""
        return sum(key[:2] == wanted[:2] and key[3:] == wanted[3:] for key in self._used)
