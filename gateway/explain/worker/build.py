"""Builds the parts of the explain worker from its options: explainer, observer of rules, journal."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.core.explanation import CacheEvent, Explanation, RequestRecord
from gateway.explain.diff import find_difference
from gateway.explain.explainer import Explainer
from gateway.explain.reference import Families, Frames, References
from gateway.explain.seen import SeenPublisher
from gateway.explain.worker.explain_messages import CanonOptions, Notice, PeerPrompts, SkippedTotals, WorkerOptions
from gateway.stats import ComputePrice, Stats, StatsLimits
from gateway.tokenize.block_hashes import ChainHasher

if TYPE_CHECKING:
    from gateway.explain.whatif.whatif import WhatIf

_FRAMES_BYTES = 16 * 1024 * 1024
"""Cache of frames and their segments."""

_NAME_BYTES = 8

_REQUEST_BYTES = 12 * 1024
"""Maximum memory of a journal entry, with many candidates; most take a quarter of it."""


class ExplainParts:
    """A ``WorkerParts``.

    Args:
        terms: Its options.
        now: Unix seconds.
    """

    def __init__(self, terms: WorkerOptions, now: float) -> None:
        self._terms = terms
        self._chains = ChainHasher()
        self._shadow: WhatIf | None = None
        self._notices: list[Notice] = []
        name = os.urandom(_NAME_BYTES)
        self._publisher = SeenPublisher(name)
        self._frames = Frames(_FRAMES_BYTES)
        self._families = Families(find_difference, self._frames)
        self._begin(terms)
        self._journal = Stats(now, _limits(terms), _price(terms), self._families.shown, name)

    def configure(self, terms: WorkerOptions, now: float) -> None:
        """See ``WorkerParts``. Other bounds of references or seen blocks start with empty ones."""
        before, self._terms = self._terms, terms
        if _bounds(terms) != _bounds(before):
            self._begin(terms)
        elif terms.canon != before.canon:
            self._observe_by(terms)
        self._journal.configure(_limits(terms), _price(terms), now)

    def explain(self, finished: RequestRecord) -> Explanation:
        """See ``WorkerParts``."""
        return self._explainer.explain(finished)

    def observe(self, finished: RequestRecord, explanation: Explanation) -> Explanation:
        """See ``WorkerParts``."""
        if self._shadow is not None:
            return self._shadow.observed(finished, explanation)
        return explanation if explanation.slot is None else msgspec.structs.replace(explanation, slot=None)

    def notices(self) -> Sequence[Notice]:
        """See ``WorkerParts``."""
        notices, self._notices = self._notices, []
        return [*notices, *(self._shadow.notices() if self._shadow is not None else ())]

    def expire(self, now: float) -> None:
        """See ``WorkerParts``."""
        self._explainer.expire(now)

    def happened(self, event: CacheEvent) -> None:
        """See ``WorkerParts``."""
        self._explainer.happened(event)

    def add_peer_prompts(self, prompts: PeerPrompts) -> None:
        """See ``WorkerParts``."""
        for message in prompts.messages:
            self._explainer.add_peer_prompts(message, prompts.at)

    def take_seen(self) -> bytes:
        """See ``WorkerParts``."""
        return self._publisher.take()

    def write_down(self, finished: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """See ``WorkerParts``."""
        self._journal.add(finished, explanation, gpus)

    def write_down_left_out(self, left_out: SkippedTotals, gpus: float) -> None:
        """See ``WorkerParts``."""
        self._journal.add_skipped(
            at=left_out.at,
            model=left_out.model,
            tenant=left_out.tenant,
            source=left_out.source,
            template=left_out.template,
            requests=left_out.requests,
            prompt_tokens=left_out.prompt_tokens,
            hits=left_out.hits,
            hits_confirmed=left_out.hits_confirmed,
            prefill_seconds=left_out.prefill_seconds,
            gpus=gpus,
        )

    def answer(self, question: str, arguments: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> bytes:
        """See ``WorkerParts``."""
        return self._journal.answer(question, arguments, now, others)

    def _begin(self, terms: WorkerOptions) -> None:
        references = References(terms.reference_bytes, terms.reference_ttl_seconds, self._frames)
        publisher = self._publisher if terms.tells else None
        self._explainer = Explainer(self._chains, references, self._families, terms.seen_blocks, publisher)
        self._shadow = None
        self._observe_by(terms)

    def _observe_by(self, terms: WorkerOptions) -> None:
        """Apply other rules. Invalid rules only turn off their observation; explanations continue."""
        try:
            self._shadow = None if terms.canon is None else self._observer(terms, terms.canon)
        except Exception as error:  # noqa: BLE001 - explanations continue without rules
            self._shadow = None
            fields = {"problem": type(error).__name__, "instead": "what rules would save is not worked out"}
            self._notices.append(Notice("canon_not_observed", fields))

    def _observer(self, terms: WorkerOptions, canon: CanonOptions) -> "WhatIf":
        if self._shadow is not None:
            # Keeps the blocks recorded so far.
            self._shadow.configure(canon)
            return self._shadow
        # Imported lazily, because loading takes a moment.
        from gateway.explain.whatif.whatif import WhatIf

        return WhatIf(canon, self._chains, seen_blocks=terms.seen_blocks, ttl_seconds=terms.reference_ttl_seconds)


def _bounds(terms: WorkerOptions) -> tuple[float, ...]:
    return terms.reference_bytes, terms.reference_ttl_seconds, terms.seen_blocks


def _limits(terms: WorkerOptions) -> StatsLimits:
    return StatsLimits(
        requests=terms.journal_requests,
        ttl_seconds=terms.journal_ttl_seconds,
        request_bytes=terms.journal_requests * _REQUEST_BYTES,
    )


def _price(terms: WorkerOptions) -> ComputePrice:
    return ComputePrice(terms.gpu_hour_price, terms.currency)
