"""The last requests, one by one: what is listed, what the details of one are, and when it is forgotten."""

import msgspec
import orjson
import pytest
from answered_requests import ids as ids_of
from hypothesis import given
from hypothesis import strategies as st
from written_requests import NOON, ask, difference, explanation, finished, reference

from gateway.core.errors import NotFound
from gateway.core.explanation import Attribution, Explanation, ReplicaPrefix, ReplyChoice, TokenWindows
from gateway.core.reasons import REASONS, Reason, Remedy, Rung
from gateway.stats import ComputePrice, Stats, StatsLimits


def ids(journal: Stats, now: float = NOON, **filters: str) -> list[str]:
    return [each["id"] for each in ask(journal, "requests", now, **filters)["requests"]]


def detail(*, price: ComputePrice | None = None, gpus: float = 1, explained: Explanation, **fields):
    journal = Stats(NOON - 60, price=price or ComputePrice())
    journal.add(finished(**fields), explained, gpus)
    return ask(journal, "request", id="r1")


def reported(explained: Explanation, **fields) -> str:
    return "\n".join(detail(explained=explained, **fields)["told"])


# The list


def test_a_line_says_what_one_looks_for():
    journal = Stats(NOON - 60)
    missed = {Reason.BLOCK_BOUNDARY: 10, Reason.DYNAMIC_TIME: 300, Reason.NEW_CONTENT: 50}
    journal.add(finished(session="s1"), explanation(640, missed, turn=3), 1)
    (line,) = ask(journal, "requests")["requests"]
    assert line == {
        "id": "r1",
        "at": NOON,
        "time": "2026-11-21T12:00:00.000Z",
        "model": "m",
        "tenant": "acme",
        "source": "web",
        "template": "v3",
        "prompt": "",
        "session": "s1",
        "turn": 3,
        "replica": "r0:8000",
        "decision": "warm",
        "status": 200,
        "prompt_tokens": 1000,
        "hits": 640,
        "evidence": "confirmed",
        "reason": "dynamic_time",
        "reason_tokens": 300,
        "ttft_seconds": 0.1,
        "seconds": 1.5,
    }


def test_of_several_with_one_id_the_last_is_kept():
    journal = Stats(NOON - 60)
    journal.add(finished("a", NOON), explanation(100, {}), 1)
    journal.add(finished("b", NOON + 1), explanation(), 1)
    journal.add(finished("a", NOON + 2), explanation(200, {}), 1)
    assert ids(journal, NOON + 2) == ["a", "b"]
    assert ask(journal, "request", NOON + 2, id="a")["hits"] == 200
    assert ask(journal, "summary", NOON + 2)["requests"] == 3


def test_requests_are_forgotten_with_time():
    journal = Stats(NOON - 60, StatsLimits(ttl_seconds=100))
    journal.add(finished("a", NOON), explanation(), 1)
    journal.add(finished("b", NOON + 50), explanation(), 1)
    assert ids(journal, NOON + 99) == ["b", "a"]
    assert ids(journal, NOON + 100) == ["b"]
    with pytest.raises(NotFound):
        ask(journal, "request", NOON + 100, id="a")
    assert ids(journal, NOON + 150) == []
    assert ask(journal, "summary", NOON + 150)["requests"] == 2


def test_the_oldest_go_when_there_are_too_many():
    journal = Stats(NOON - 60, StatsLimits(requests=3))
    for name in "abcd":
        journal.add(finished(name), explanation(), 1)
    assert ids(journal) == ["d", "c", "b"]
    journal.configure(StatsLimits(requests=1), ComputePrice(), NOON)
    assert ids(journal) == ["d"]


def test_the_oldest_go_when_they_are_too_large():
    journal = Stats(NOON - 60, StatsLimits(request_bytes=100_000))
    holders = tuple(ReplicaPrefix(f"replica-{number}:8000", 0, 0) for number in range(500))
    for number in range(50):
        journal.add(finished(f"r{number}", holders=holders), explanation(), 1)
    kept = ids(journal)
    assert kept == [f"r{number}" for number in range(49, 49 - len(kept), -1)]
    assert 2 <= len(kept) <= 10
    journal.add(finished("huge", holders=holders * 20), explanation(), 1)
    assert ids(journal) == []


def test_an_id_that_comes_again_and_again_pushes_nothing_out():
    journal = Stats(NOON - 60, StatsLimits(request_bytes=20_000))
    journal.add(finished("a"), explanation(), 1)
    for _ in range(200):
        journal.add(finished("b"), explanation(), 1)
    assert ids(journal) == ["b", "a"]


def test_texts_and_tokens_take_no_memory():
    journal = Stats(NOON - 60, StatsLimits(request_bytes=100_000))
    long = b"x" * 50_000
    for number in range(20):
        reported_by_engine = ReplyChoice("x" * 50_000, long)
        journal.add(finished(f"r{number}", body=long, parts=(long,), replies=(reported_by_engine,)), explanation(), 1)
    assert len(ids(journal)) == 20


# The detail


def test_everything_of_a_request_is_reported():
    missed = {Reason.LOAD_BALANCED: 64, Reason.DYNAMIC_TIME: 256, Reason.NEW_CONTENT: 40}
    explained = explanation(640, missed, reference=reference(), difference=difference(), turn=2)
    shown = detail(explained=explained, price=ComputePrice(3.6), gpus=2, session="s1")
    assert next(iter(shown)) == "told"
    assert (shown["id"], shown["model"], shown["tenant"], shown["source"]) == ("r1", "m", "acme", "web")
    assert (shown["session"], shown["turn"], shown["status"], shown["streamed"]) == ("s1", 2, 200, True)
    assert (shown["prompt_tokens"], shown["hits"], shown["evidence"]) == (1000, 640, "confirmed")
    assert {each["reason"]: each["tokens"] for each in shown["missed"]} == {
        "load_balanced": 64,
        "dynamic_time": 256,
        "new_content": 40,
    }
    text = REASONS[Reason.DYNAMIC_TIME]
    assert shown["missed"][1] == {
        "reason": "dynamic_time",
        "title": text.title,
        "tokens": 256,
        "evidence": "confirmed",
        "note": "",
        "remedy": "application",
        "advice": text.advice,
        "gpu_seconds": 0.512,
        "money": 0.000512,
    }
    assert [each["rung"] for each in shown["ladder"]] == list(Rung)
    assert [each["tokens"] for each in shown["ladder"]] == [640, 640, 704, 704, 704, 704, 960, 1000]
    assert all(each["phrase"] for each in shown["ladder"])
    assert sum(each["more"] for each in shown["ladder"]) == 1000
    assert shown["reference"]["id"] == "r0"
    assert (shown["reference"]["chosen_by"], shown["reference"]["equal_tokens"]) == ("session", 650)
    assert shown["reference"]["seconds_before"] == 12
    assert shown["difference"]["path"] == "messages[0].content"
    assert (shown["difference"]["line"], shown["difference"]["column"]) == (2, 14)
    assert shown["difference"]["after"] == "Xxxxxxx xxxx: ‹time›, xxx xxx"
    assert [(each["replica"], each["chosen"], each["barred"]) for each in shown["decision"]["targets"]] == [
        ("r0:8000", True, ""),
        ("r1:8000", False, ""),
        ("r2:8000", False, "unavailable"),
    ]
    assert shown["decision"]["targets"][0] == {
        "replica": "r0:8000",
        "rank": 0,
        "held_tokens": 640,
        "queue_seconds": 0.01,
        "prefill_seconds": 0.36,
        "cost_seconds": 1.09,
        "barred": "",
        "chosen": True,
    }
    assert shown["timings"] == {
        "ttft_seconds": 0.1,
        "seconds": 1.5,
        "sent_after_seconds": 0.004,
        "stages": {"encode": 0.002, "hash": 0.0005, "place": 0.0002},
        "prefill_seconds_per_token": 0.001,
    }
    assert shown["value"]["saved"] == {"gpu_seconds": 1.28, "money": 0.00128}
    assert (shown["space"]["owner"], shown["space"]["life"]) == ("tenant:acme", "k3v9")
    assert (shown["tokens"]["predicted"], shown["tokens"]["cached"]) == (640, 640)


def test_no_text_and_no_token_of_the_prompt_or_the_answer_is_shown():
    journal = Stats(NOON - 60)
    reported_by_engine = ReplyChoice("the secret answer", b"secret-reply-ids")
    windows = TokenWindows(ids_of([7, 987654321]), ids_of([7, 987654322]), 1)
    explained = explanation(640, {Reason.DYNAMIC_TIME: 360}, reference=reference(), difference=difference())
    journal.add(finished(replies=(reported_by_engine,)), msgspec.structs.replace(explained, tokens=windows), 1)
    answered = b"".join(
        journal.answer(question, arguments, NOON)
        for question, arguments in (("summary", {}), ("reasons", {}), ("requests", {}), ("request", {"id": "r1"}))
    )
    assert b"secret" not in answered
    assert b"98765432" not in answered


def test_token_ids_around_the_first_difference_are_sent_if_asked_for():
    journal = Stats(NOON - 60)
    windows = TokenWindows(ids_of([5, 7, 100_000, 4]), ids_of([5, 7, 4294967295]), 2)
    explained = explanation(640, {Reason.DYNAMIC_TIME: 360}, reference=reference(), difference=difference())
    journal.add(finished(), msgspec.structs.replace(explained, tokens=windows), 1)
    assert ask(journal, "tokens", id="r1") == {
        "model": "m",
        "equal_tokens": 650,
        "before": [5, 7, 100_000, 4],
        "after": [5, 7, 4294967295],
        "first": 2,
    }


def test_without_such_tokens_there_are_none():
    journal = Stats(NOON - 60)
    journal.add(finished(), explanation(), 1)
    assert journal.answer("tokens", {"id": "r1"}, NOON) == b"null"
    assert journal.answer("tokens", {"id": "nobody"}, NOON) == b"null"
    assert journal.answer("tokens", {}, NOON) == b"null"


def test_the_answer_is_made_to_be_read_in_a_terminal():
    journal = Stats(NOON - 60)
    journal.add(finished(), explanation(), 1)
    lines = journal.answer("request", {"id": "r1"}, NOON).decode().splitlines()
    assert lines[:2] == ["{", '  "told": [']


def test_a_person_reads_what_was_reused_why_not_where_and_what_to_do():
    missed = {Reason.DYNAMIC_TIME: 256, Reason.BLOCK_BOUNDARY: 4, Reason.NEW_CONTENT: 100}
    page = reported(explanation(640, missed, reference=reference(), difference=difference(), turn=2))
    assert "640 of 1,000 prompt tokens (64%) were not computed again, as the engine reports." in page
    assert "Sent to r0:8000 (warm), believed to hold 640 of them; no other replica held more." in page
    assert "360 were computed again (0.36 GPU seconds):" in page
    assert "      256  A time in the prompt (dynamic_time)" in page
    assert "Compared with r0 (the same session, 12.0 s before, by web): the first 650 tokens are equal." in page
    assert "First difference: messages[0].content, line 2, column 14 (dynamic_time, iso_datetime)" in page
    assert "now:    Xxxxxxx xxxx: ‹time›, xxx xxx" in page
    assert "What to do (dynamic_time): Move it behind what repeats" in page
    assert page.index("640 of") < page.index("256  ") < page.index("First difference") < page.index("What to do")


def test_what_was_only_predicted_is_marked_so():
    page = reported(explanation(640, {Reason.EVICTED: 360}, hits_confirmed=False), cached_tokens=None)
    assert "as predicted, the engine does not say" in page
    assert "(evicted, predicted)" in page
    shown = detail(explained=explanation(640, {Reason.EVICTED: 360}, hits_confirmed=False))
    assert (shown["evidence"], shown["missed"][0]["evidence"]) == ("predicted", "predicted")
    assert "predicted" in shown["ladder"][0]["phrase"]


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (ReplicaPrefix("r9", 0, 900, 2.5, 0.1, 2.6), "r9 held 900, but would have cost 2.600 s, the least is 1.090 s."),
        (ReplicaPrefix("r9", 0, 900, barred="unavailable"), "r9 held 900, but was not available."),
        (ReplicaPrefix("r9", 0, 900, barred="failed"), "r9 held 900, but failed the request."),
        (ReplicaPrefix("r9", 0, 900, barred="pinned"), "r9 held 900, but the request may not go there."),
    ],
)
def test_why_it_did_not_go_to_the_one_that_held_more(best, words):
    chosen = ReplicaPrefix("r0:8000", 0, 640, 0.01, 0.36, 1.09)
    assert words in " ".join(reported(explanation(), holders=(chosen, best)).split())


def test_what_was_skipped_is_marked_so():
    page = reported(explanation(640, {Reason.UNCLASSIFIED: 360}, was_skipped=True))
    assert "the text was not compared" in page


def test_a_trifle_gets_no_advice():
    page = reported(explanation(0, {Reason.EVICTED: 960, Reason.DYNAMIC_TIME: 40}))
    assert "What to do (evicted)" in page
    assert "What to do (dynamic_time)" not in page


def test_the_advice_is_on_the_screen_however_much_there_is_to_say():
    wordy = "a long story " * 30
    reasons = [reason for reason in Reason if REASONS[reason].remedy is not Remedy.NONE][:9]
    missed = tuple(Attribution(reason, 100, True, wordy) for reason in reasons)
    rungs = explanation(0, dict.fromkeys(reasons, 100)).rungs
    differing = difference(before=wordy, after=wordy, said=wordy)
    explained = Explanation(900, 0, True, rungs, missed, reference("r" * 90), differing, 7, was_skipped=True)
    lines = detail(explained=explained)["told"]
    assert len(lines) <= 25
    assert sum(line.startswith("What to do") for line in lines) == 2
    assert any("200  for 2 more reasons: see `missed`" in line for line in lines)


def test_a_note_stands_with_its_reason():
    explained = explanation(640, {})
    noted = Attribution(Reason.REPLICA_LEFT, 360, True, "r7 left 40 s ago")
    page = reported(Explanation(1000, 640, True, (640,) * 3 + (1000,) * 5, (noted,), turn=explained.turn))
    assert "Replica gone (replica_left): r7 left 40 s ago" in page


anything = st.text(max_size=400)


@given(
    st.dictionaries(st.sampled_from(list(Reason)), st.integers(0, 10**9), max_size=len(Reason)),
    st.fixed_dictionaries(
        dict.fromkeys(("detail", "path", "before", "after", "said"), anything),
        optional={"line": st.integers(0, 10**6), "column": st.integers(0, 10**6)},
    ),
    st.fixed_dictionaries(dict.fromkeys(("model", "tenant", "source", "replica", "ending", "decision"), anything)),
    anything,
    st.integers(0, 10**9),
)
def test_one_page_of_requests_suffices_for_any_traffic(missed, differing, fields, other, hits):
    explained = explanation(
        hits, missed, difference=difference(**differing), reference=reference(request_id=other, source=other), turn=7
    )
    lines = detail(explained=explained, **fields)["told"]
    assert 3 <= len(lines) <= 25
    assert all(0 < len(line) <= 110 and line.isprintable() for line in lines)
    if any(missed.values()):
        assert any("computed again (" in line for line in lines)


def test_the_detail_of_every_reason_has_its_advice_within_the_screen():
    for reason in Reason:
        page = " ".join(reported(explanation(0, {reason: 100}, difference=difference(reason))).split())
        assert f"What to do ({reason}): {REASONS[reason].advice}" in page


def test_a_question_in_front_of_documents_is_shown_with_its_gain():
    differing = difference(Reason.USER_DATA, detail="question_first")
    explained = explanation(0, {Reason.USER_DATA: 1234, Reason.EVICTED: 500}, difference=differing)
    shown = detail(explained=explained)
    assert (shown["hint"]["code"], shown["hint"]["tokens"]) == ("question_first", 1234)
    advised = {each["reason"]: each["advice"] for each in shown["missed"]}
    assert advised == {"user_data": shown["hint"]["advice"], "evicted": REASONS[Reason.EVICTED].advice}
    page = " ".join(" ".join(shown["told"]).split())
    assert f"What to do (user_data): {shown['hint']['advice']} {shown['hint']['gain']}" in page
    assert "1,234 tokens" in shown["hint"]["gain"]
    assert detail(explained=explanation(0, {Reason.USER_DATA: 1}))["hint"] is None


def test_answers_are_json_also_for_odd_numbers():
    journal = Stats(NOON - 60)
    journal.add(finished(ttft_seconds=0.0, at=NOON + 0.25), explanation(0, {Reason.EVICTED: 2**40}), 1e9)
    assert orjson.loads(journal.answer("request", {"id": "r1"}, NOON + 1))["prompt_tokens"] == 2**40
    assert ask(journal, "summary", NOON + 1)["prompt_tokens"] == 2**40
