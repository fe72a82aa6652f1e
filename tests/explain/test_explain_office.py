"""The work of the process that explains, without the process: messages in, replies out."""

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
    MessageSplitter,
    Notice,
    Question,
    QuestionAnswer,
    Ready,
    SkippedTotals,
    WorkerOptions,
    pack,
)
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.skipped_totals import SkippedSums, share_of

TERMS = WorkerOptions(1_000_000, 10, 60.0, 1_000_000, 60.0, 1000, None, "USD", {"demo": 8})


class Staff:
    def __init__(self, fails=()):
        self.fails = fails
        self.terms = []
        self.written = []
        self.left_out = []
        self.events = []
        self.told = []

    def configure(self, terms, now):
        self.terms.append(terms)

    def explain(self, finished):
        self._do("explain")
        missed = finished.prompt_tokens - finished.cached_tokens
        return Explanation(
            finished.prompt_tokens,
            finished.cached_tokens,
            True,
            (),
            (Attribution(Reason.NEW_CONTENT, missed, True),),
            slot=VaryingSlot("^Run: (.+)$", "run", Reason.DYNAMIC_ID),
        )

    def observe(self, finished, explanation):
        self._do("observe")
        outcomes = (RuleOutcome("unicode", RuleMode.APPLY, 3, 0, 16), RuleOutcome("all", RuleMode.OBSERVE, 1, 32, 0))
        return msgspec.structs.replace(explanation, canonical=outcomes, observed=True)

    def notices(self):
        told, self.told = self.told, []
        return told

    def expire(self, now):
        self.expired = now

    def happened(self, event):
        self._do("happened")
        self.events.append(event)

    def write_down(self, finished, explanation, gpus):
        self._do("write_down")
        self.written.append((finished, explanation, gpus))

    def write_down_left_out(self, left_out, gpus):
        self._do("write_down_left_out")
        self.left_out.append((left_out, gpus))

    def answer(self, question, arguments, now, others):
        self._do("answer")
        if question == "wrong":
            raise BadRequest("No.", param="window", code="unknown_window")
        return b"{}"

    def _do(self, step):
        if step in self.fails:
            raise ValueError("quotes a prompt")


def opened(staff, clock=lambda: 0.0):
    office = ExplainWorker(lambda terms, now: staff, clock)
    assert office.handle(TERMS) == [Ready()]
    return office


def test_requests_are_explained_written_down_and_counted():
    staff = Staff()
    office = opened(staff)
    for number in range(3):
        assert not office.handle(request(f"Hello {number}."))
    assert not office.handle(request("Other.", model="other", tenant_label="lab"))
    counted = office.counted()
    assert counted is not None
    assert (counted.handled, counted.unread) == (4, ())
    assert set(counted.missed) == {("demo", "shop", Reason.NEW_CONTENT, 204), ("other", "lab", Reason.NEW_CONTENT, 68)}
    assert [gpus for _, _, gpus in staff.written] == [8, 8, 8, 1]
    assert office.counted() is None


def test_what_rules_did_is_counted_by_rule_and_mode():
    staff = Staff()
    office = opened(staff)
    for number in range(3):
        assert not office.handle(request(f"Hello {number}."))
    counted = office.counted()
    assert counted is not None
    assert set(counted.canonical) == {("unicode", RuleMode.APPLY, 9, 0, 48), ("all", RuleMode.OBSERVE, 3, 96, 0)}
    assert all(explanation.observed for _, explanation, _ in staff.written)
    assert not office.handle(request("Hello.", warming=True))
    counted = office.counted()
    assert counted is not None
    assert counted.canonical == ()


def test_rules_are_left_out_before_reasons_are():
    staff = Staff()
    office = opened(staff)
    office.is_behind = True
    assert not office.handle(request("Hello."))
    counted = office.counted()
    assert counted is not None
    assert (counted.missed, counted.canonical) == ((("demo", "shop", Reason.NEW_CONTENT, 68),), ())
    # Nor is suggested what a rule may find by itself.
    assert [(explanation.observed, explanation.slot) for _, explanation, _ in staff.written] == [(False, None)]


def test_rules_that_fail_cost_no_reasons():
    staff = Staff(fails={"observe"})
    office = opened(staff)
    [notice] = office.handle(request("Hello."))
    assert isinstance(notice, Notice)
    assert (notice.event, notice.fields["step"]) == ("explain_failed", "observing")
    [(_, explanation, _)] = staff.written
    assert explanation.missed == (Attribution(Reason.NEW_CONTENT, 68, True),)
    assert explanation.slot is None


def test_what_is_to_be_logged_is_told_once_also_while_no_requests_come():
    staff = Staff()
    office = opened(staff)
    notice = Notice("canon_not_observed", {"model": "demo"})
    staff.told = [notice]
    assert office.handle(request("Hello.")) == [notice]
    assert not office.expire()
    staff.told = [notice]
    assert office.expire() == [notice]


@pytest.mark.parametrize("step", ["explain", "write_down", "happened", "write_down_left_out"])
def test_work_that_fails_is_told_by_type_and_place_and_the_rest_goes_on(step):
    staff = Staff(fails={step})
    office = opened(staff)
    replies = [
        *office.handle(request("Hello.")),
        *office.handle(CacheEvent(CacheHistory.LEFT, 1.0, "r0")),
        *office.handle(share_of(request("Hello."))),
    ]
    [notice] = replies
    assert isinstance(notice, Notice)
    assert (notice.event, notice.fields["error"]) == ("explain_failed", "ValueError")
    assert "test_explain_office.py" in notice.fields["place"]
    assert "quotes" not in str(notice)
    counted = office.counted()
    assert counted is not None
    assert counted.handled == 3
    reason = Reason.UNCLASSIFIED if step == "explain" else Reason.NEW_CONTENT
    assert counted.missed == (("demo", "shop", reason, 68),)


def test_the_same_failure_is_told_once_a_minute():
    now = 0.0
    office = opened(Staff(fails={"explain"}), lambda: now)
    assert [len(office.handle(request("Hello."))) for _ in range(3)] == [1, 0, 0]
    now = 61.0
    [notice] = office.handle(request("Hello."))
    assert isinstance(notice, Notice)
    assert notice.fields["times_since"] == "2"


def test_a_request_that_cannot_be_explained_has_a_ladder_all_the_same():
    staff = Staff(fails={"explain"})
    office = opened(staff)
    office.handle(request("Hello.", cached_tokens=None, predicted_tokens=48))
    [(_, explanation, _)] = staff.written
    assert (explanation.hits, explanation.hits_confirmed) == (48, False)
    assert explanation.missed == (Attribution(Reason.UNCLASSIFIED, 52, False),)
    assert explanation.rungs == (48, 48, 48, 48, 48, 48, 100, 100)
    assert len(explanation.rungs) == len(Rung)


def test_what_is_left_out_is_written_down_and_not_counted_again():
    staff = Staff()
    office = opened(staff)
    office.handle(share_of(request("Hello.")))
    assert [(each.requests, gpus) for each, gpus in staff.left_out] == [(1, 8)]
    counted = office.counted()
    assert counted is not None
    assert (counted.handled, counted.missed) == (1, ())


def test_answers_and_refusals():
    office = opened(Staff())
    assert office.handle(Question(7, "summary", {})) == [QuestionAnswer(7, 200, b"{}")]
    assert office.handle(Question(8, "wrong", {})) == [QuestionAnswer(8, 400, b"", "No.", "window", "unknown_window")]
    answer, notice = opened(Staff(fails={"answer"})).handle(Question(9, "summary", {}))
    assert isinstance(answer, QuestionAnswer)
    assert (answer.number, answer.status, answer.code) == (9, 500, "explain_failed")
    assert isinstance(notice, Notice)


def test_other_terms_reach_those_who_work():
    staff = Staff()
    office = opened(staff)
    dearer = msgspec.structs.replace(TERMS, gpu_hour_price=3.0, gpus={"demo": 2})
    assert not office.handle(dearer)
    office.handle(request("Hello."))
    assert staff.terms == [dearer]
    assert staff.written[0][2] == 2


counts = st.one_of(st.none(), st.integers(-5, 500))


@given(prompt=st.integers(-5, 500), own=st.integers(0, 500), predicted=st.integers(-5, 500), cached=counts)
def test_hits_and_missed_of_what_is_left_out_are_the_prompt(prompt, own, predicted, cached):
    share = share_of(
        request(None, prompt_tokens=prompt, own_tokens=own, predicted_tokens=predicted, cached_tokens=cached)
    )
    assert 0 <= share.hits <= share.prompt_tokens == max(prompt, 0)


def test_sums_tell_template_versions_apart():
    sums = SkippedSums()
    for version in ("v3", "v4", "v4"):
        sums.add(share_of(request(None, where=SpaceKey("demo", template=version))))
    assert {each.template: each.requests for each in sums.take()} == {"v3": 1, "v4": 2}


def test_sums_lose_nothing_however_many_sources_there_are():
    sums = SkippedSums(most=10)
    for number in range(1000):
        sums.add(share_of(request(None, tenant=f"t{number % 7}", source=f"app-{number}", at=float(number))))
    taken = sums.take()
    assert len(taken) <= 11
    assert sum(each.requests for each in taken) == 1000
    assert sum(each.prompt_tokens for each in taken) == 100_000
    assert sum(each.hits for each in taken) == 32_000
    assert sum(each.prefill_seconds for each in taken) == pytest.approx(10)
    assert max(each.at for each in taken) == 999
    [other] = [each for each in taken if each.source == "(other)"]
    assert (other.tenant, other.tenant_label, other.requests) == ("(other)", "shop", 990)
    assert not sums.take()


MESSAGES = [
    TERMS,
    request("Hello, wörld 🙂"),
    request(None, cached_tokens=None, ttft_seconds=0.25),
    CacheEvent(CacheHistory.LIFE_ENDED, 1.0, "a1b2", "request"),
    share_of(request(None)),
    Question(1, "summary", {"window": "15m"}),
    Ready(),
    QuestionAnswer(1, 200, b"{}"),
    Notice("explain_failed", {"error": "ValueError"}),
]


@given(cuts=st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_messages_arrive_as_they_were_sent_wherever_the_stream_is_cut(cuts):
    stream = bytearray()
    sizes = [pack(message, stream) for message in MESSAGES]
    assert sum(sizes) == len(stream)
    frames, arrived, at = MessageSplitter(), [], 0
    while at < len(stream):
        step = cuts[len(arrived) % len(cuts)]
        arrived += frames.feed(bytes(stream[at : at + step]))
        at += step
    assert [frame.message() for frame in arrived] == MESSAGES
    assert [frame.size for frame in arrived] == sizes
    assert [type(frame.message()) for frame in arrived if frame.is_question] == [Question]
    assert {type(frame.message()) for frame in arrived if frame.is_work} == {
        type(request(None)),
        CacheEvent,
        SkippedTotals,
    }


def test_what_cannot_be_encoded_leaves_the_stream_as_it_was():
    stream = bytearray()
    pack(Ready(), stream)
    before = bytes(stream)
    with pytest.raises(UnicodeEncodeError):
        pack(request("x", session="\ud800"), stream)
    assert stream == before
