"""The message handler of the explain worker: takes messages, returns replies. Does no I/O.

No message can end it: a request that cannot be explained counts as unclassified. Errors are logged with the type and
place of the exception only, because its message may quote a prompt.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.core.canonical import RuleMode
from gateway.core.errors import GatewayError
from gateway.core.explanation import Attribution, CacheEvent, Explanation, RequestRecord
from gateway.core.reasons import Reason, Rung
from gateway.explain.worker.explain_messages import (
    Counted,
    FromChild,
    Notice,
    PeerPrompts,
    Question,
    QuestionAnswer,
    Ready,
    SkippedTotals,
    ToChild,
    Work,
    WorkerOptions,
)
from gateway.explain.worker.skipped_totals import share_of

_NOTICE_SECONDS = 60.0


class WorkerParts(Protocol):
    """Explainer, observer and journal, as the handler uses them."""

    def configure(self, terms: WorkerOptions, now: float) -> None:
        """Apply other options, and keep all state within the new bounds."""
        ...

    def explain(self, finished: RequestRecord) -> Explanation:
        """Explain a request, and remember it."""
        ...

    def observe(self, finished: RequestRecord, explanation: Explanation) -> Explanation:
        """Add the effects of rules to an explanation."""
        ...

    def notices(self) -> Sequence[Notice]:
        """Takes the notices added since the last call."""
        ...

    def expire(self, now: float) -> None:
        """Drop expired state."""
        ...

    def happened(self, event: CacheEvent) -> None:
        """Record a cache event."""
        ...

    def add_peer_prompts(self, prompts: PeerPrompts) -> None:
        """Record prompts computed for another gateway."""
        ...

    def take_seen(self) -> bytes:
        """Encodes the prompts computed since the last call for other gateways; empty for none."""
        ...

    def write_down(self, finished: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Add an explained request to the journal."""
        ...

    def write_down_left_out(self, left_out: SkippedTotals, gpus: float) -> None:
        """Add the sums of requests without an explanation to the journal."""
        ...

    def answer(self, question: str, arguments: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> bytes:
        """As ``Stats.answer``."""
        ...


class ExplainWorker:
    """Handles messages one by one.

    Args:
        build: Builds the parts; called with the first options and the Unix time.
        clock: Unix seconds.

    Attributes:
        is_behind: Whether so much is waiting that rules are not observed.
    """

    def __init__(
        self, build: Callable[[WorkerOptions, float], WorkerParts], clock: Callable[[], float] = time.time
    ) -> None:
        self._build = build
        self._clock = clock
        self._parts: WorkerParts | None = None
        self._gpus: Mapping[str, float] = {}
        self._tells = False
        self._handled = 0
        self._unread: list[int] = []
        self._missed: dict[tuple[str, str, Reason], int] = {}
        self._canonical: dict[tuple[str, RuleMode], tuple[int, int, int]] = {}
        self.is_behind = False
        self._noticed: dict[tuple[str, str], tuple[float, int]] = {}

    def handle(self, message: ToChild) -> Sequence[FromChild]:
        """Handle a message; returns the replies to send at once."""
        match message:
            case RequestRecord() | CacheEvent() | SkippedTotals() | PeerPrompts():
                return self._work(message)
            case Question():
                return self._answer(message)
            case WorkerOptions():
                return self._take_terms(message)

    def expire(self) -> Sequence[FromChild]:
        """Drop expired state, also without requests; returns the messages to send."""
        parts = self._parts
        if parts is None:
            return ()
        return [*self._attempt("forgetting", lambda: parts.expire(self._clock())), *parts.notices()]

    def unreadable(self) -> None:
        """Count a work message that cannot be decoded."""
        self._unread.append(self._handled)
        self._handled += 1

    def counted(self) -> Counted | None:
        """The results since the last call; None if no message was handled."""
        if not self._handled:
            return None
        missed = tuple((*key, tokens) for key, tokens in self._missed.items())
        canonical = tuple((*key, *figures) for key, figures in self._canonical.items())
        seen = self._parts.take_seen() if self._tells and self._parts is not None else b""
        counted = Counted(self._handled, tuple(self._unread), missed, canonical, seen)
        self._handled = 0
        self._unread = []
        self._missed = {}
        self._canonical = {}
        return counted

    def _take_terms(self, terms: WorkerOptions) -> Sequence[FromChild]:
        self._gpus, self._tells = terms.gpus, terms.tells
        if self._parts is None:
            self._parts = self._build(terms, self._clock())
            return [Ready()]
        self._parts.configure(terms, self._clock())
        return []

    def _work(self, message: Work) -> Sequence[FromChild]:
        self._handled += 1
        assert self._parts is not None
        parts = self._parts
        match message:
            case RequestRecord():
                return self._explain(parts, message)
            case SkippedTotals():
                gpus = self._gpus.get(message.model, 1)
                return self._attempt("writing down", lambda: parts.write_down_left_out(message, gpus))
            case CacheEvent():
                return self._attempt("taking an event", lambda: parts.happened(message))
            case PeerPrompts():
                return self._attempt("recording peer prompts", lambda: parts.add_peer_prompts(message))

    def _explain(self, parts: WorkerParts, finished: RequestRecord) -> Sequence[FromChild]:
        notices: Sequence[FromChild] = ()
        try:
            explanation = parts.explain(finished)
        except Exception as error:  # noqa: BLE001 - one odd prompt must not cost all others their reasons
            notices = self._notice("explaining", error)
            explanation = _unclassified(finished)
        # Without observation it is unknown whether a rule already finds the slot.
        untried = msgspec.structs.replace(explanation, slot=None)
        try:
            explanation = untried if self.is_behind else parts.observe(finished, explanation)
        except Exception as error:  # noqa: BLE001 - likewise
            notices, explanation = [*notices, *self._notice("observing", error)], untried
        notices = [*notices, *parts.notices()]
        if finished.warming:
            return notices
        self._count(finished, explanation)
        gpus = self._gpus.get(finished.model, 1)
        return [*notices, *self._attempt("writing down", lambda: parts.write_down(finished, explanation, gpus))]

    def _count(self, finished: RequestRecord, explanation: Explanation) -> None:
        for each in explanation.missed:
            key = (finished.model, finished.tenant_label, each.reason)
            self._missed[key] = self._missed.get(key, 0) + each.tokens
        for outcome in explanation.canonical:
            edits, saved, lost = self._canonical.get((outcome.rule, outcome.mode), (0, 0, 0))
            self._canonical[outcome.rule, outcome.mode] = (
                edits + outcome.edits,
                saved + outcome.saved_tokens,
                lost + outcome.lost_tokens,
            )

    def _attempt(self, step: str, call: Callable[[], None]) -> Sequence[FromChild]:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as for explaining
            return self._notice(step, error)
        return ()

    def _answer(self, asked: Question) -> Sequence[FromChild]:
        assert self._parts is not None
        try:
            document = self._parts.answer(asked.question, asked.arguments, self._clock(), asked.others)
        except GatewayError as error:
            return [QuestionAnswer(asked.number, error.status, b"", error.message, error.param, error.code)]
        except Exception as error:  # noqa: BLE001 - the others want answers as well
            refused = "The question could not be answered; the log says more (explain_failed)."
            return [
                QuestionAnswer(asked.number, 500, b"", refused, None, "explain_failed"),
                *self._notice("answering", error),
            ]
        return [QuestionAnswer(asked.number, 200, document)]

    def _notice(self, step: str, error: Exception) -> Sequence[Notice]:
        """A notice for the log, at most once a minute per kind of failure."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key, now = (step, type(error).__name__ + place), self._clock()
        last, times = self._noticed.get(key, (-_NOTICE_SECONDS, 0))
        if now - last < _NOTICE_SECONDS:
            self._noticed[key] = last, times + 1
            return []
        self._noticed[key] = now, 0
        fields = {"step": step, "error": type(error).__name__, "place": place}
        return [Notice("explain_failed", fields | ({"times_since": str(times)} if times else {}))]


def _unclassified(finished: RequestRecord) -> Explanation:
    """The explanation of a request that cannot be explained."""
    share = share_of(finished)
    missed = share.prompt_tokens - share.hits
    rungs = tuple(share.hits if rung not in {Rung.REUSABLE, Rung.PROMPT} else share.prompt_tokens for rung in Rung)
    return Explanation(
        prompt_tokens=share.prompt_tokens,
        hits=share.hits,
        hits_confirmed=share.hits_confirmed,
        rungs=rungs,
        missed=(Attribution(Reason.UNCLASSIFIED, missed, share.hits_confirmed),) if missed else (),
    )
