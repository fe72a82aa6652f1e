"""The work of the process that explains: takes messages, gives replies. Does no I/O.

Nothing that a message holds can end it: what cannot be explained counts as unclassified, and what went wrong is told by
the exception's type and place, because its message may quote a prompt.
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
    """Who does the work."""

    def configure(self, terms: WorkerOptions, now: float) -> None:
        """Go by other terms from now on, and forget nothing that they leave room for."""
        ...

    def explain(self, finished: RequestRecord) -> Explanation:
        """Explain a request, and remember it."""
        ...

    def observe(self, finished: RequestRecord, explanation: Explanation) -> Explanation:
        """Add what rules did to a request, or would have done."""
        ...

    def notices(self) -> Sequence[Notice]:
        """What is to be logged since this was last asked."""
        ...

    def expire(self, now: float) -> None:
        """Let go of what is too old to be kept."""
        ...

    def happened(self, event: CacheEvent) -> None:
        """Something happened to what is cached."""
        ...

    def hear(self, elsewhere: PeerPrompts) -> None:
        """Remember what was computed for another gateway."""
        ...

    def told(self) -> bytes:
        """What other gateways should know was computed since this was last asked; empty for nothing."""
        ...

    def write_down(self, finished: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Add an explained request to the journal."""
        ...

    def write_down_left_out(self, left_out: SkippedTotals, gpus: float) -> None:
        """Add a sum of requests to the journal that nobody looked at."""
        ...

    def answer(self, question: str, arguments: Mapping[str, str], now: float, others: Sequence[bytes] | None) -> bytes:
        """As ``Stats.answer``."""
        ...


class ExplainWorker:
    """Handles messages, one after the other.

    Args:
        hire: Gives those who do the work; called with the first terms, and the Unix time.
        clock: Unix seconds.

    Attributes:
        is_behind: Whether so much waits that what rules save is not worked out.
    """

    def __init__(
        self, hire: Callable[[WorkerOptions, float], WorkerParts], clock: Callable[[], float] = time.time
    ) -> None:
        self._hire = hire
        self._clock = clock
        self._staff: WorkerParts | None = None
        self._gpus: Mapping[str, float] = {}
        self._tells = False
        self._handled = 0
        self._unread: list[int] = []
        self._missed: dict[tuple[str, str, Reason], int] = {}
        self._canonical: dict[tuple[str, RuleMode], tuple[int, int, int]] = {}
        self.is_behind = False
        self._noticed: dict[tuple[str, str], tuple[float, int]] = {}

    def handle(self, message: ToChild) -> Sequence[FromChild]:
        """Do what a message asks for; returns what is to be sent at once."""
        match message:
            case RequestRecord() | CacheEvent() | SkippedTotals() | PeerPrompts():
                return self._work(message)
            case Question():
                return self._answer(message)
            case WorkerOptions():
                return self._take_terms(message)

    def expire(self) -> Sequence[FromChild]:
        """Let go of what is too old to be kept, also while no requests come; returns what is to be sent."""
        staff = self._staff
        if staff is None:
            return ()
        return [*self._attempt("forgetting", lambda: staff.expire(self._clock())), *staff.notices()]

    def unreadable(self) -> None:
        """A message about a request came that cannot be decoded."""
        self._unread.append(self._handled)
        self._handled += 1

    def counted(self) -> Counted | None:
        """What was done since it was last asked; None if nothing was."""
        if not self._handled:
            return None
        missed = tuple((*key, tokens) for key, tokens in self._missed.items())
        canonical = tuple((*key, *figures) for key, figures in self._canonical.items())
        told = self._staff.told() if self._tells and self._staff is not None else b""
        counted = Counted(self._handled, tuple(self._unread), missed, canonical, told)
        self._handled = 0
        self._unread = []
        self._missed = {}
        self._canonical = {}
        return counted

    def _take_terms(self, terms: WorkerOptions) -> Sequence[FromChild]:
        self._gpus, self._tells = terms.gpus, terms.tells
        if self._staff is None:
            self._staff = self._hire(terms, self._clock())
            return [Ready()]
        self._staff.configure(terms, self._clock())
        return []

    def _work(self, message: Work) -> Sequence[FromChild]:
        self._handled += 1
        assert self._staff is not None
        staff = self._staff
        match message:
            case RequestRecord():
                return self._explain(staff, message)
            case SkippedTotals():
                gpus = self._gpus.get(message.model, 1)
                return self._attempt("writing down", lambda: staff.write_down_left_out(message, gpus))
            case CacheEvent():
                return self._attempt("taking an event", lambda: staff.happened(message))
            case PeerPrompts():
                return self._attempt("hearing of others' requests", lambda: staff.hear(message))

    def _explain(self, staff: WorkerParts, finished: RequestRecord) -> Sequence[FromChild]:
        notices: Sequence[FromChild] = ()
        try:
            explanation = staff.explain(finished)
        except Exception as error:  # noqa: BLE001 - one odd prompt must not cost all others their reasons
            notices = self._notice("explaining", error)
            explanation = _unclassified(finished)
        # Whether a rule finds the place by itself is not known where none was tried.
        untried = msgspec.structs.replace(explanation, slot=None)
        try:
            explanation = untried if self.is_behind else staff.observe(finished, explanation)
        except Exception as error:  # noqa: BLE001 - likewise
            notices, explanation = [*notices, *self._notice("observing", error)], untried
        notices = [*notices, *staff.notices()]
        if finished.warming:
            return notices
        self._count(finished, explanation)
        gpus = self._gpus.get(finished.model, 1)
        return [*notices, *self._attempt("writing down", lambda: staff.write_down(finished, explanation, gpus))]

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
        assert self._staff is not None
        try:
            document = self._staff.answer(asked.question, asked.arguments, self._clock(), asked.others)
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
        """For the log, once a minute for each kind of failure."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key, now = (step, type(error).__name__ + place), self._clock()
        last, times = self._noticed.get(key, (-_NOTICE_SECONDS, 0))
        if now - last < _NOTICE_SECONDS:
            self._noticed[key] = last, times + 1
            return []
        self._noticed[key] = now, 0
        told = {"step": step, "error": type(error).__name__, "place": place}
        return [Notice("explain_failed", told | ({"times_since": str(times)} if times else {}))]


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
