"""Who does the work in the process that explains: the explainer and the journal, built from the terms."""

from collections.abc import Mapping

from gateway.explain.link import LeftOut, Terms
from gateway.hashing import ChainHasher
from gateway.settle.difference import find_difference
from gateway.settle.explainer import Explainer
from gateway.settle.journal import Journal, JournalLimits, Price
from gateway.settle.reference import Families, Frames, References
from gateway.values.explain import Explanation, Finished, Happened

_FRAMES_BYTES = 16 * 1024 * 1024
"""Leading messages remembered in pieces."""

_REQUEST_BYTES = 12 * 1024
"""In the journal, of a request with many candidates; most take a quarter of it."""


class ExplainStaff:
    """A ``Staff``.

    Args:
        terms: What it goes by.
        now: Unix seconds.
    """

    def __init__(self, terms: Terms, now: float) -> None:
        self._terms = terms
        self._frames = Frames(_FRAMES_BYTES)
        self._families = Families(find_difference, self._frames)
        self._begin(terms)
        self._journal = Journal(now, _limits(terms), _price(terms), self._families.shown)

    def configure(self, terms: Terms, now: float) -> None:
        """See ``Staff``. Other bounds for what prompts are compared with begin with nothing."""
        before, self._terms = self._terms, terms
        if _bounds(terms) != _bounds(before):
            self._begin(terms)
        self._journal.configure(_limits(terms), _price(terms), now)

    def explain(self, finished: Finished) -> Explanation:
        """See ``Staff``."""
        return self._explainer.explain(finished)

    def expire(self, now: float) -> None:
        """See ``Staff``."""
        self._explainer.expire(now)

    def happened(self, event: Happened) -> None:
        """See ``Staff``."""
        self._explainer.happened(event)

    def write_down(self, finished: Finished, explanation: Explanation, gpus: float) -> None:
        """See ``Staff``."""
        self._journal.add(finished, explanation, gpus)

    def write_down_left_out(self, left_out: LeftOut, gpus: float) -> None:
        """See ``Staff``."""
        self._journal.add_left_out(
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

    def answer(self, question: str, arguments: Mapping[str, str], now: float) -> bytes:
        """See ``Staff``."""
        return self._journal.answer(question, arguments, now)

    def _begin(self, terms: Terms) -> None:
        references = References(terms.reference_bytes, terms.reference_ttl_seconds, self._frames)
        self._explainer = Explainer(ChainHasher(), references, self._families, terms.seen_blocks)


def _bounds(terms: Terms) -> tuple[float, ...]:
    return terms.reference_bytes, terms.reference_ttl_seconds, terms.seen_blocks


def _limits(terms: Terms) -> JournalLimits:
    return JournalLimits(
        requests=terms.journal_requests,
        ttl_seconds=terms.journal_ttl_seconds,
        request_bytes=terms.journal_requests * _REQUEST_BYTES,
    )


def _price(terms: Terms) -> Price:
    return Price(terms.gpu_hour_price, terms.currency)
