"""The message handler of the explain worker: takes messages, returns replies. Does no I/O.

No message can end it: a request that cannot be explained counts as unclassified. Errors are logged with the type and
place of the exception only, because its message may quote a prompt.
"""

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gateway.core.bounded_cache import BoundedCache
from gateway.core.canonical import RuleMode
from gateway.core.errors import GatewayError
from gateway.core.experiment_group import ExperimentSample
from gateway.core.explanation import Attribution, CacheEvent, Explanation, RequestRecord, SkippedTotals
from gateway.core.reasons import Reason, Rung
from gateway.explain.worker.explain_messages import (
    FromWorker,
    NamedComparison,
    Notice,
    PeerPrompts,
    Question,
    QuestionAnswer,
    Ready,
    RepeatedRequest,
    StoredHistory,
    ToWorker,
    Work,
    WorkerOptions,
    WorkReport,
)
from gateway.explain.worker.repeats import REFERRED
from gateway.stats.entries import without_text
from gateway.stats.markers import Marker

if TYPE_CHECKING:
    from gateway.explain.worker.explain_parts import ExplainParts


_NOTICE_SECONDS = 60.0


class _Referred(NamedTuple):
    """An explained request that later ones can refer to.

    Attributes:
        record: The request, without body, token ids and replies.
        explanation: Its explanation.
    """

    record: RequestRecord
    explanation: Explanation


class ExplainWorker:
    """Handles messages one by one.

    Args:
        build: Builds the parts; called with the first options and the Unix time.
        clock: Unix seconds.

    Attributes:
        is_behind: Whether so much is waiting that rules are not observed.
    """

    def __init__(
        self, build: "Callable[[WorkerOptions, float], ExplainParts]", clock: Callable[[], float] = time.time
    ) -> None:
        self._build = build
        self._clock = clock
        self._parts: ExplainParts | None = None
        self._gpus: Mapping[str, float] = {}
        self._publishes_seen = False
        self._handled = 0
        self._undecodable: list[int] = []
        self._missed: dict[tuple[str, str, Reason], int] = {}
        self._canonical: dict[tuple[str, RuleMode], tuple[float, float, float]] = {}
        self._referred: BoundedCache[int, _Referred] = BoundedCache(REFERRED)
        self._cpu_seconds = 0.0
        self.is_behind = False
        self._noticed: dict[tuple[str, str], tuple[float, int]] = {}

    @property
    def is_loading(self) -> bool:
        """Whether a tokenizer is being loaded."""
        return self._parts is not None and self._parts.is_loading

    def handle(self, message: ToWorker) -> Sequence[FromWorker]:
        """Handle a message; returns the replies to send at once."""
        match message:
            case (
                RequestRecord()
                | RepeatedRequest()
                | CacheEvent()
                | ExperimentSample()
                | Marker()
                | SkippedTotals()
                | PeerPrompts()
                | NamedComparison()
            ):
                return self._work(message)
            case StoredHistory():
                return self._restore(message)
            case Question():
                return self._answer(message)
            case WorkerOptions():
                return self._take_options(message)

    def expire(self) -> Sequence[FromWorker]:
        """Drop expired state, also without requests; returns the messages to send."""
        parts = self._parts
        if parts is None:
            return ()
        return [*self._attempt("forgetting", lambda: parts.expire(self._clock())), *parts.notices()]

    def count_undecodable(self) -> None:
        """Count a work message that cannot be decoded."""
        self._undecodable.append(self._handled)
        self._handled += 1

    def counted(self) -> WorkReport | None:
        """The results since the last call; None if no message was handled."""
        if not self._handled:
            return None
        missed = tuple((*key, tokens) for key, tokens in self._missed.items())
        canonical = tuple((*key, *figures) for key, figures in self._canonical.items())
        seen = self._parts.take_seen() if self._publishes_seen and self._parts is not None else b""
        counted = WorkReport(self._handled, tuple(self._undecodable), missed, canonical, seen, self._cpu_seconds)
        self._handled = 0
        self._undecodable = []
        self._missed = {}
        self._canonical = {}
        self._cpu_seconds = 0.0
        return counted

    def _take_options(self, options: WorkerOptions) -> Sequence[FromWorker]:
        self._gpus, self._publishes_seen = options.gpus, options.publishes_seen
        if self._parts is None:
            self._parts = self._build(options, self._clock())
            return [Ready(os.getpid())]
        self._parts.configure(options, self._clock())
        return []

    def _work(self, message: Work) -> Sequence[FromWorker]:
        self._handled += 1
        assert self._parts is not None
        parts = self._parts
        match message:
            case RequestRecord():
                began = time.process_time()
                replies = self._explain(parts, message)
                if message.parts:
                    self._cpu_seconds += time.process_time() - began
                return replies
            case RepeatedRequest():
                began = time.process_time()
                replies = self._repeat(parts, message)
                self._cpu_seconds += time.process_time() - began
                return replies
            case SkippedTotals():
                gpus = self._gpus.get(message.model, 1)
                return self._attempt("writing down", lambda: parts.add_skipped(message, gpus))
            case ExperimentSample():
                gpus = self._gpus.get(message.model, 1)
                return self._attempt("comparing", lambda: parts.add_sample(message, gpus))
            case Marker():
                return self._attempt("adding a marker", lambda: parts.add_marker(message))
            case CacheEvent():
                return self._attempt("taking an event", lambda: parts.record_event(message))
            case PeerPrompts():
                return self._attempt("recording peer prompts", lambda: parts.add_peer_prompts(message))
            case NamedComparison():
                compared = message.record, message.named, message.client
                return self._answered(message.number, lambda: parts.diagnose(*compared))

    def _restore(self, message: StoredHistory) -> Sequence[FromWorker]:
        assert self._parts is not None
        parts = self._parts
        return self._attempt("restoring the history", lambda: parts.restore(message.data))

    def _explain(self, parts: "ExplainParts", record: RequestRecord) -> Sequence[FromWorker]:
        notices: Sequence[FromWorker] = ()
        try:
            explanation = parts.explain(record)
        except Exception as error:  # noqa: BLE001 - one odd prompt must not cost all others their reasons
            notices = self._notice("explaining", error)
            explanation = _unclassified(record)
        try:
            explanation = _untried(explanation) if self.is_behind else parts.observe(record, explanation)
        except Exception as error:  # noqa: BLE001 - likewise
            notices, explanation = [*notices, *self._notice("observing", error)], _untried(explanation)
        notices = [*notices, *parts.notices()]
        if record.warming:
            return notices
        if record.number and record.parts:
            referred = _Referred(without_text(record), explanation)
            self._referred.put(record.number, referred)
        return [*notices, *self._write_down(parts, record, explanation)]

    def _repeat(self, parts: "ExplainParts", repeated: RepeatedRequest) -> Sequence[FromWorker]:
        referred = self._referred.peek(repeated.number)
        if referred is None:
            self._undecodable.append(self._handled - 1)  # the gateway counts its tokens
            return ()
        record = repeated.record(referred.record)
        parts.repeat(record, referred.record)
        return self._write_down(parts, record, referred.explanation)

    def _write_down(
        self, parts: "ExplainParts", record: RequestRecord, explanation: Explanation
    ) -> Sequence[FromWorker]:
        self._count(record, explanation)
        gpus = self._gpus.get(record.model, 1)
        return self._attempt("writing down", lambda: parts.add_request(record, explanation, gpus))

    def _count(self, record: RequestRecord, explanation: Explanation) -> None:
        for each in explanation.missed:
            key = (record.model, record.tenant_label, each.reason)
            self._missed[key] = self._missed.get(key, 0) + each.tokens
        for outcome in explanation.canonical:
            edits, saved, lost = self._canonical.get((outcome.rule, outcome.mode), (0, 0, 0))
            self._canonical[outcome.rule, outcome.mode] = (
                edits + outcome.edits * explanation.weight,
                saved + outcome.saved_tokens * explanation.weight,
                lost + outcome.lost_tokens * explanation.weight,
            )

    def _attempt(self, step: str, call: Callable[[], None]) -> Sequence[FromWorker]:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as for explaining
            return self._notice(step, error)
        return ()

    def _answer(self, asked: Question) -> Sequence[FromWorker]:
        assert self._parts is not None
        parts = self._parts
        answers = self._answered(
            asked.number, lambda: parts.answer(asked.question, asked.arguments, self._clock(), asked.others)
        )
        # What is stored must not count again as unreported if this process is lost after it.
        counted = self.counted() if asked.question == "history" else None
        return [*([] if counted is None else [counted]), *answers]

    def _answered(self, number: int, work_out: Callable[[], bytes]) -> Sequence[FromWorker]:
        """The answer to a question, with the document that is worked out."""
        try:
            return [QuestionAnswer(number, 200, work_out())]
        except GatewayError as error:
            return [QuestionAnswer(number, error.status, b"", error.message, error.param, error.code)]
        except Exception as error:  # noqa: BLE001 - later questions are still answered
            refused = "The question could not be answered; the log says more (explain_failed)."
            return [
                QuestionAnswer(number, 500, b"", refused, None, "explain_failed"),
                *self._notice("answering", error),
            ]

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


def _untried(explanation: Explanation) -> Explanation:
    """Without observation it is unknown whether a rule already finds the slot."""
    return explanation if explanation.slot is None else msgspec.structs.replace(explanation, slot=None)


def _unclassified(record: RequestRecord) -> Explanation:
    """The explanation of a request that cannot be explained."""
    share = SkippedTotals.of(record)
    missed = share.prompt_tokens - share.hits
    rungs = tuple(share.hits if rung not in {Rung.REUSABLE, Rung.PROMPT} else share.prompt_tokens for rung in Rung)
    return Explanation(
        prompt_tokens=share.prompt_tokens,
        hits=share.hits,
        hits_confirmed=share.hits_confirmed,
        rungs=rungs,
        missed=(Attribution(Reason.UNCLASSIFIED, missed, share.hits_confirmed),) if missed else (),
    )
