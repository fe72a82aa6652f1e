"""The work of the process that explains, without the process: messages in, replies out."""

import os

import msgspec
import pytest
from explained_requests import request
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import RuleMode, RuleOutcome
from gateway.core.errors import BadRequest
from gateway.core.explanation import Attribution, CacheEvent, CacheHistory, Explanation, SpaceKey, VaryingSlot
from gateway.core.reasons import Reason, Rung
from gateway.explain.worker.explain_messages import (
    FrameSplitter,
    Notice,
    Question,
    QuestionAnswer,
    Ready,
    SkippedTotals,
    WorkerOptions,
    encode,
)
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.send_buffer import SkippedSums

OPTIONS = WorkerOptions(1_000_000, 10, 60.0, 1_000_000, 60.0, 1000, None, "USD", {"demo": 8})


class FakeParts:
    def __init__(self, fails=()):
        self.fails = fails
        self.options = []
        self.written = []
        self.skipped = []
        self.events = []
        self.reported = []

    def configure(self, options, now):
        self.options.append(options)

    def explain(self, record):
        self._do("explain")
        missed = record.prompt_tokens - record.cached_tokens
        return Explanation(
            record.prompt_tokens,
            record.cached_tokens,
            True,
            (),
            (Attribution(Reason.NEW_CONTENT, missed, True),),
            slot=VaryingSlot("^Run: (.+)$", "run", Reason.DYNAMIC_ID),
        )

    def observe(self, record, explanation):
        self._do("observe")
        outcomes = (RuleOutcome("unicode", RuleMode.APPLY, 3, 0, 16), RuleOutcome("all", RuleMode.OBSERVE, 1, 32, 0))
        return msgspec.structs.replace(explanation, canonical=outcomes, observed=1)

    def notices(self):
        reported, self.reported = self.reported, []
        return reported

    def expire(self, now):
        self.expired = now

    def record_event(self, event):
        self._do("record_event")
        self.events.append(event)

    def add_request(self, record, explanation, gpus):
        self._do("add_request")
        self.written.append((record, explanation, gpus))

    def add_skipped(self, skipped, gpus):
        self._do("add_skipped")
        self.skipped.append((skipped, gpus))

    def answer(self, question, arguments, now, others):
        self._do("answer")
        if question == "wrong":
            raise BadRequest("No.", param="window", code="unknown_window")
        return b"{}"

    def _do(self, step):
        if step in self.fails:
            raise ValueError("quotes a prompt")


def opened(parts, clock=lambda: 0.0):
    worker = ExplainWorker(lambda options, now: parts, clock)
    assert worker.handle(OPTIONS) == [Ready(os.getpid())]
    return worker


def test_requests_are_explained_counted_and_added_to_the_journal():
    parts = FakeParts()
    worker = opened(parts)
    for number in range(3):
        assert not worker.handle(request(f"Hello {number}."))
    assert not worker.handle(request("Other.", model="other", tenant_label="lab"))
    counted = worker.counted()
    assert counted is not None
    assert (counted.handled, counted.undecodable) == (4, ())
    assert set(counted.missed) == {("demo", "shop", Reason.NEW_CONTENT, 204), ("other", "lab", Reason.NEW_CONTENT, 68)}
    assert [gpus for _, _, gpus in parts.written] == [8, 8, 8, 1]
    assert worker.counted() is None


def test_rule_effects_are_counted_by_rule_and_mode():
    parts = FakeParts()
    worker = opened(parts)
    for number in range(3):
        assert not worker.handle(request(f"Hello {number}."))
    counted = worker.counted()
    assert counted is not None
    assert set(counted.canonical) == {("unicode", RuleMode.APPLY, 9, 0, 48), ("all", RuleMode.OBSERVE, 3, 96, 0)}
    assert all(explanation.observed for _, explanation, _ in parts.written)
    assert not worker.handle(request("Hello.", warming=True))
    counted = worker.counted()
    assert counted is not None
    assert counted.canonical == ()


def test_rules_are_not_observed_while_the_worker_is_behind():
    parts = FakeParts()
    worker = opened(parts)
    worker.is_behind = True
    assert not worker.handle(request("Hello."))
    counted = worker.counted()
    assert counted is not None
    assert (counted.missed, counted.canonical) == ((("demo", "shop", Reason.NEW_CONTENT, 68),), ())
    # Nor is suggested what a rule may find by itself.
    assert [(explanation.observed, explanation.slot) for _, explanation, _ in parts.written] == [(False, None)]


def test_failing_rules_cost_no_explanations():
    parts = FakeParts(fails={"observe"})
    worker = opened(parts)
    [notice] = worker.handle(request("Hello."))
    assert isinstance(notice, Notice)
    assert (notice.event, notice.fields["step"]) == ("explain_failed", "observing")
    [(_, explanation, _)] = parts.written
    assert explanation.missed == (Attribution(Reason.NEW_CONTENT, 68, True),)
    assert explanation.slot is None


def test_notices_are_sent_once_also_without_requests():
    parts = FakeParts()
    worker = opened(parts)
    notice = Notice("canon_not_observed", {"model": "demo"})
    parts.reported = [notice]
    assert worker.handle(request("Hello.")) == [notice]
    assert not worker.expire()
    parts.reported = [notice]
    assert worker.expire() == [notice]


@pytest.mark.parametrize("step", ["explain", "add_request", "record_event", "add_skipped"])
def test_failing_work_is_reported_by_type_and_place_and_the_rest_continues(step):
    parts = FakeParts(fails={step})
    worker = opened(parts)
    replies = [
        *worker.handle(request("Hello.")),
        *worker.handle(CacheEvent(CacheHistory.LEFT, 1.0, "r0")),
        *worker.handle(SkippedTotals.of(request("Hello."))),
    ]
    [notice] = replies
    assert isinstance(notice, Notice)
    assert (notice.event, notice.fields["error"]) == ("explain_failed", "ValueError")
    assert "test_explain_worker.py" in notice.fields["place"]
    assert "quotes" not in str(notice)
    counted = worker.counted()
    assert counted is not None
    assert counted.handled == 3
    reason = Reason.UNCLASSIFIED if step == "explain" else Reason.NEW_CONTENT
    assert counted.missed == (("demo", "shop", reason, 68),)


def test_the_same_failure_is_reported_once_a_minute():
    now = 0.0
    worker = opened(FakeParts(fails={"explain"}), lambda: now)
    assert [len(worker.handle(request("Hello."))) for _ in range(3)] == [1, 0, 0]
    now = 61.0
    [notice] = worker.handle(request("Hello."))
    assert isinstance(notice, Notice)
    assert notice.fields["times_since"] == "2"


def test_a_request_that_cannot_be_explained_has_a_ladder():
    parts = FakeParts(fails={"explain"})
    worker = opened(parts)
    worker.handle(request("Hello.", cached_tokens=None, predicted_tokens=48))
    [(_, explanation, _)] = parts.written
    assert (explanation.hits, explanation.hits_confirmed) == (48, False)
    assert explanation.missed == (Attribution(Reason.UNCLASSIFIED, 52, False),)
    assert explanation.rungs == (48, 48, 48, 48, 48, 48, 100, 100)
    assert len(explanation.rungs) == len(Rung)


def test_skipped_totals_are_added_to_the_journal_and_not_counted_again():
    parts = FakeParts()
    worker = opened(parts)
    worker.handle(SkippedTotals.of(request("Hello.")))
    assert [(each.requests, gpus) for each, gpus in parts.skipped] == [(1, 8)]
    counted = worker.counted()
    assert counted is not None
    assert (counted.handled, counted.missed) == (1, ())


def test_answers_and_errors_of_questions():
    worker = opened(FakeParts())
    assert worker.handle(Question(7, "summary", {})) == [QuestionAnswer(7, 200, b"{}")]
    assert worker.handle(Question(8, "wrong", {})) == [QuestionAnswer(8, 400, b"", "No.", "window", "unknown_window")]
    answer, notice = opened(FakeParts(fails={"answer"})).handle(Question(9, "summary", {}))
    assert isinstance(answer, QuestionAnswer)
    assert (answer.number, answer.status, answer.code) == (9, 500, "explain_failed")
    assert isinstance(notice, Notice)


def test_changed_options_reach_the_parts():
    parts = FakeParts()
    worker = opened(parts)
    dearer = msgspec.structs.replace(OPTIONS, gpu_hour_price=3.0, gpus={"demo": 2})
    assert not worker.handle(dearer)
    worker.handle(request("Hello."))
    assert parts.options == [dearer]
    assert parts.written[0][2] == 2


counts = st.one_of(st.none(), st.integers(-5, 500))


@given(prompt=st.integers(-5, 500), own=st.integers(0, 500), predicted=st.integers(-5, 500), cached=counts)
def test_hits_and_missed_tokens_of_skipped_totals_are_the_prompt(prompt, own, predicted, cached):
    share = SkippedTotals.of(
        request(None, prompt_tokens=prompt, own_tokens=own, predicted_tokens=predicted, cached_tokens=cached)
    )
    assert 0 <= share.hits <= share.prompt_tokens == max(prompt, 0)


def test_sums_are_kept_by_template_version():
    sums = SkippedSums()
    for version in ("v3", "v4", "v4"):
        sums.add(SkippedTotals.of(request(None, where=SpaceKey("demo", template=version))))
    assert {each.template: each.requests for each in sums.take()} == {"v3": 1, "v4": 2}


def test_sums_lose_nothing_however_many_sources_there_are():
    sums = SkippedSums(most=10)
    for number in range(1000):
        about = {"tenant": f"t{number % 7}", "source": f"app-{number}", "at": float(number), "completion_tokens": 3}
        sums.add(SkippedTotals.of(request(None, **about)))
    taken = sums.take()
    assert len(taken) <= 11
    assert sum(each.requests for each in taken) == 1000
    assert sum(each.prompt_tokens for each in taken) == 100_000
    assert sum(each.hits for each in taken) == 32_000
    assert sum(each.completion_tokens for each in taken) == 3_000
    assert sum(each.prefill_seconds for each in taken) == pytest.approx(10)
    assert max(each.at for each in taken) == 999
    [other] = [each for each in taken if each.source == "(other)"]
    assert (other.tenant, other.tenant_label, other.requests) == ("(other)", "shop", 990)
    assert not sums.take()


MESSAGES = [
    OPTIONS,
    request("Hello, wörld 🙂"),
    request(None, cached_tokens=None, ttft_seconds=0.25),
    CacheEvent(CacheHistory.LIFE_ENDED, 1.0, "a1b2", "request"),
    SkippedTotals.of(request(None)),
    Question(1, "summary", {"window": "15m"}),
    Ready(7),
    QuestionAnswer(1, 200, b"{}"),
    Notice("explain_failed", {"error": "ValueError"}),
]


@given(cuts=st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_messages_are_decoded_however_the_stream_is_split(cuts):
    stream = bytearray()
    sizes = [encode(message, stream) for message in MESSAGES]
    assert sum(sizes) == len(stream)
    frames, arrived, at = FrameSplitter(), [], 0
    while at < len(stream):
        step = cuts[len(arrived) % len(cuts)]
        arrived += frames.feed(bytes(stream[at : at + step]))
        at += step
    assert [frame.decode() for frame in arrived] == MESSAGES
    assert [frame.size for frame in arrived] == sizes
    assert [type(frame.decode()) for frame in arrived if frame.is_question] == [Question]
    assert {type(frame.decode()) for frame in arrived if frame.is_work} == {
        type(request(None)),
        CacheEvent,
        SkippedTotals,
    }


def test_a_failed_encode_leaves_the_stream_unchanged():
    stream = bytearray()
    encode(Ready(7), stream)
    before = bytes(stream)
    with pytest.raises(UnicodeEncodeError):
        encode(request("x", session="\ud800"), stream)
    assert stream == before
