"""Builds from the worker's options what handles its messages: explainer, observer of rules, journal."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from gateway.canon.document_places import DocumentPlace
from gateway.core.bounded_cache import BoundedCache
from gateway.core.client_places import ClientPlaces
from gateway.core.errors import NotFound
from gateway.core.experiment_group import ExperimentSample
from gateway.core.explanation import CacheEvent, CacheHistory, Explanation, RequestRecord, SkippedTotals
from gateway.core.ids import requests_named
from gateway.explain.bodies import Bodies
from gateway.explain.diff import find_difference
from gateway.explain.explainer import Explainer
from gateway.explain.reference import Families, Frames, References
from gateway.explain.seen import PromptHashes, SeenPublisher
from gateway.explain.worker.explain_messages import CanonOptions, Notice, PeerPrompts, WorkerOptions
from gateway.stats import ComputePrice, Stats, StatsLimits
from gateway.stats.experiment_results import ExperimentResults
from gateway.stats.markers import Marker, MarkerKind
from gateway.tokenize.block_hashes import ChainHasher

if TYPE_CHECKING:
    from gateway.explain.whatif.whatif import WhatIf

_FRAMES_BYTES = 16 * 1024 * 1024
"""Cache of frames and their segments."""

_NAME_BYTES = 8

_DIAGNOSES = 1000
"""Comparisons kept to be read later, of less than a KiB each."""

_MARKED = {
    "template_changed": (MarkerKind.TEMPLATE_CHANGED, "another chat template or tokenizer"),
    "model_update": (MarkerKind.MODEL_CHANGED, "another model, context limit or engine release"),
    "manual": (MarkerKind.RESET, "prefix spaces reset by an operator"),
}
"""Causes of the end of a prefix space that are shown in the trend."""

_REQUEST_BYTES = 12 * 1024
"""Maximum memory of a journal entry, with many candidates; most take a quarter of it."""


class ExplainParts:
    """Explainer, observer of rules, and journal, as the handler uses them.

    Args:
        options: Its options.
        now: Unix seconds.
    """

    def __init__(self, options: WorkerOptions, now: float) -> None:
        self._options = options
        self._bodies = Bodies()
        self._hashes = PromptHashes(ChainHasher())
        self._whatif: WhatIf | None = None
        self._notices: list[Notice] = []
        self._diagnoses: BoundedCache[tuple[str, str], bytes] = BoundedCache(_DIAGNOSES)
        name = os.urandom(_NAME_BYTES)
        self._publisher = SeenPublisher(name)
        self._frames = Frames(_FRAMES_BYTES)
        self._families = Families(find_difference, self._frames)
        self._begin(options)
        self._journal = Stats(now, _limits(options), _price(options), self._families_shown, name)
        self._experiment = ExperimentResults(options.experiment or {})

    def configure(self, options: WorkerOptions, now: float) -> None:
        """Apply other options, and keep all state within the new bounds.

        With other bounds of references or seen blocks, these start empty.
        """
        before, self._options = self._options, options
        if _bounds(options) != _bounds(before):
            self._begin(options)
        elif (options.canon, options.observed_share) != (before.canon, before.observed_share):
            self._observe_by(options)
        self._journal.configure(_limits(options), _price(options), now)
        self._experiment.configure(options.experiment or {})

    @property
    def is_loading(self) -> bool:
        """Whether a tokenizer is being loaded."""
        return self._whatif is not None and self._whatif.is_loading

    def load_tokenizers(self) -> None:
        """Load the tokenizers of observed rules now: a live worker loads each in a thread when it is needed first."""
        if self._whatif is not None:
            self._whatif.load_tokenizers()

    def explain(self, record: RequestRecord) -> Explanation:
        """Explain a request, and remember it."""
        return self._explainer.explain(record)

    def diagnose(self, record: RequestRecord, named: str, client: ClientPlaces) -> bytes:
        """A ``PromptDiagnosis`` as JSON; it is kept for ``explanation`` as well."""
        document = msgspec.json.encode(self._explainer.diagnose(record, named, client))
        self._diagnoses.put((record.tenant, record.request_id), document)
        return document

    def repeat(self, record: RequestRecord, earlier: RequestRecord) -> None:
        """Take note of a request with the prompt of an explained one."""
        self._explainer.repeat(record, earlier)

    def observe(self, record: RequestRecord, explanation: Explanation) -> Explanation:
        """Add the effects of rules to an explanation."""
        if self._whatif is not None:
            return self._whatif.observed(record, explanation)
        return explanation if explanation.slot is None else msgspec.structs.replace(explanation, slot=None)

    def notices(self) -> Sequence[Notice]:
        """Takes the notices added since the last call."""
        notices, self._notices = self._notices, []
        return [*notices, *(self._whatif.notices() if self._whatif is not None else ())]

    def expire(self, now: float) -> None:
        """Drop expired state."""
        self._explainer.expire(now)

    def record_event(self, event: CacheEvent) -> None:
        """Record a cache event."""
        self._explainer.record_event(event)
        if event.what is CacheHistory.LIFE_ENDED and event.cause in _MARKED:
            kind, text = _MARKED[event.cause]
            self._journal.add_marker(Marker(event.at, kind, text))

    def add_peer_prompts(self, prompts: PeerPrompts) -> None:
        """Record prompts computed for another gateway."""
        for message in prompts.messages:
            self._explainer.add_peer_prompts(message, prompts.at)

    def take_seen(self) -> bytes:
        """Encodes the prompts computed since the last call for other gateways; empty for none."""
        return self._publisher.take()

    def add_request(self, record: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Add an explained request to the journal."""
        self._journal.add(record, explanation, gpus)

    def add_sample(self, sample: ExperimentSample, gpus: float) -> None:
        """Add a request of the experiment."""
        self._experiment.add(sample, gpus)

    def add_marker(self, marker: Marker) -> None:
        """Add a marker to the trend."""
        self._journal.add_marker(marker)

    def restore(self, data: bytes) -> None:
        """As ``Stats.restore``."""
        self._journal.restore(data)

    def add_skipped(self, skipped: SkippedTotals, gpus: float) -> None:
        """Add the sums of requests without an explanation to the journal."""
        self._journal.add_skipped(skipped, gpus)

    def answer(self, question: str, arguments: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> bytes:
        """As ``Stats.answer``; ``experiment``: the comparison of the experiment's groups; and ``explanation``: of a
        request of a ``tenant``, by its ``id`` or that of its answer."""
        if question == "experiment":
            return orjson.dumps(self._experiment.answer(arguments, _price(self._options)))
        if question == "explanation":
            return self._explanation(arguments["tenant"], arguments["id"], now)
        answer = self._journal.answer(question, arguments, now, others)
        if question == "end_session":
            ended = orjson.loads(answer)
            self._explainer.forget_session(ended["tenant"], ended["id"])
        return answer

    def _explanation(self, tenant: str, given: str, now: float) -> bytes:
        """A tenant's request as its client may see it: the comparison that it asked for, and where its tokens went."""
        for each in requests_named(given):
            compared = self._diagnoses.peek((tenant, each))
            explained = self._journal.explanation(each, tenant, now)
            if compared is not None or explained is not None:
                comparison = None if compared is None else orjson.Fragment(compared)
                return orjson.dumps({"id": each, "comparison": comparison, "explanation": explained})
        raise NotFound(
            f"There is no explanation of {given[:200]!r}: only the last requests of the tenant have one, a moment "
            "after their answer.",
            code="unknown_request",
        )

    def _families_shown(self, now: float, model: str | None, tenant: str | None) -> list[dict[str, Any]]:
        return self._explainer.families_shown(now, model, tenant)

    def _begin(self, options: WorkerOptions) -> None:
        references = References(options.reference_bytes, options.reference_ttl_seconds, self._frames)
        publisher = self._publisher if options.publishes_seen else None
        self._explainer = Explainer(
            self._hashes, references, self._families, options.seen_blocks, publisher, bodies=self._bodies
        )
        self._whatif = None
        self._observe_by(options)

    def _observe_by(self, options: WorkerOptions) -> None:
        """Apply other rules. Invalid rules only turn off their observation; explanations continue."""
        try:
            self._explainer.declare_documents(() if options.canon is None else _document_places(options.canon))
            self._whatif = None if options.canon is None else self._observer(options, options.canon)
        except Exception as error:  # noqa: BLE001 - explanations continue without rules
            self._whatif = None
            fields = {"problem": type(error).__name__, "instead": "what rules would save is not worked out"}
            self._notices.append(Notice("canon_not_observed", fields))

    def _observer(self, options: WorkerOptions, canon: CanonOptions) -> "WhatIf":
        if self._whatif is not None:
            # Keeps the blocks recorded so far.
            self._whatif.configure(canon, options.observed_share)
            return self._whatif
        # Imported lazily, because loading takes a moment.
        from gateway.explain.whatif.whatif import WhatIf

        return WhatIf(
            canon,
            self._hashes,
            seen_blocks=options.seen_blocks,
            ttl_seconds=options.reference_ttl_seconds,
            share=options.observed_share,
            untried=self._explainer.take_untried,
            bodies=self._bodies,
        )


def _document_places(canon: CanonOptions) -> Sequence[DocumentPlace]:
    """How the operator declares documents."""
    # Imported lazily, because loading takes a moment.
    from gateway.config.canon_settings import CanonSettings

    declared = CanonSettings.model_validate_json(canon.settings).document_order.documents
    return [DocumentPlace(each) for each in declared]


def _bounds(options: WorkerOptions) -> tuple[float, ...]:
    return options.reference_bytes, options.reference_ttl_seconds, options.seen_blocks


def _limits(options: WorkerOptions) -> StatsLimits:
    return StatsLimits(
        requests=options.journal_requests,
        ttl_seconds=options.journal_ttl_seconds,
        request_bytes=options.journal_requests * _REQUEST_BYTES,
    )


def _price(options: WorkerOptions) -> ComputePrice:
    return ComputePrice(options.gpu_hour_price, options.currency, options.token_prices)
