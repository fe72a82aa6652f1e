"""What rules save, worked out beside the gateway: with simple rules and a real tokenizer."""

import threading
import time
from datetime import UTC, datetime

import msgspec
import pytest
from answered_requests import answered
from observed_prompts import ENCODER, LONG, OPTIONS, WHERE, Observer, TakeOut, body, common, ids, request, tokens
from patience import HANG_SECONDS

from gateway.core.canonical import Canonicalized, RuleMode
from gateway.core.explanation import Explanation, ReplyChoice
from gateway.explain.seen import PromptHashes
from gateway.explain.whatif.whatif import WhatIf
from gateway.explain.worker.explain_messages import CanonOptions
from gateway.tokenize.block_hashes import ChainHasher


def test_a_rule_saves_what_it_makes_equal():
    observer = Observer()
    assert observer.reported(request(body(f"#1 {LONG}", "Hi."), observe=["whitespace"])) == {
        "whitespace": (1, 0, 0),
        "all": (1, 0, 0),
    }
    second = body(f"#2 {LONG}", "Hello.")
    saved = common(body(f" {LONG}", "Hi."), body(f" {LONG}", "Hello."))
    assert saved > 500
    assert observer.reported(request(second, observe=["whitespace"])) == {
        "whitespace": (1, saved, 0),
        "all": (1, saved, 0),
    }


def test_a_rule_is_tried_alone_only_where_another_one_has_changed_the_prompt_before_it(monkeypatch):
    observer, tried = Observer(), []
    detect = TakeOut.detect

    def recorded(rule, fields, given):
        tried.append(rule.name)
        return detect(rule, fields, given)

    monkeypatch.setattr(TakeOut, "detect", recorded)

    def tried_on(system):
        tried.clear()
        observer.observed(request(body(system, "One?"), observe=["unicode", "whitespace"]))
        return tried

    assert tried_on("Be brief.") == ["unicode", "whitespace"]
    assert tried_on("Be brief. #2") == ["unicode", "whitespace"]
    assert tried_on("Be %1 brief. #2") == ["unicode", "whitespace", "whitespace"]


def test_a_time_that_has_become_current_is_found_in_a_prompt_that_no_rule_changed_before():
    shadow = WhatIf(OPTIONS, PromptHashes(ChainHasher()), seen_blocks=1000, ttl_seconds=1e9, load=lambda _: ENCODER)
    noon = 1_790_000_000.0

    def edits(sent, at):
        finished = request(sent, observe=["whitespace", "dynamic_suffix"], at=at)
        explanation = shadow.observed(finished, Explanation(finished.prompt_tokens, 0, True, (), ()))
        return [(each.rule, each.what) for each in explanation.edits]

    dated = body(f"Current date: {datetime.fromtimestamp(noon, UTC):%Y-%m-%d %H:%M}\n{LONG}", "Hi.")
    assert edits(dated, noon - 90 * 86400) == []
    assert ("dynamic-suffix", "moved") in edits(dated, noon)


def test_what_was_sent_before_as_it_is_needs_no_rule():
    observer = Observer()
    one = request(body(f"#1 {LONG}", "Hi."), observe=["whitespace"])
    observer.reported(one)
    # The same again: it would have been reused in either form; all but the blocks of the shorter one's end.
    reported = observer.reported(one)
    edits, saved, lost = reported["whitespace"]
    assert edits == 1
    assert saved == 0
    assert lost <= 16


def test_an_applied_rule_saved_what_the_client_had_made_different():
    observer = Observer()
    for number in (1, 2):
        asked = body(f"#{number} {LONG}", "Hi.")
        reported = observer.reported(request(body(f" {LONG}", "Hi."), asked, apply=["whitespace"]))
    assert reported == {"whitespace": (1, (tokens(body(f" {LONG}", "Hi.")) - 1) // 16 * 16, 0)}


def test_a_rule_that_makes_a_difference_loses_tokens():
    observer = Observer()
    second = body(LONG, "Hi.", LONG, "And now?")
    observer.reported(request(body(LONG, "Hi."), observe=["dynamic_suffix"]))
    observer.reported(request(second, observe=["dynamic_suffix"]))
    # To another owner the block of the first turn does not belong, so everything behind it would be computed again.
    reported = observer.reported(request(second, observe=["dynamic_suffix"], owner="else"))
    reused = common(body(LONG, "Hi. (stamp 5)"), body(LONG, "Hi."))
    assert reported["dynamic-suffix"] == (1, 0, (tokens(second) - 1) // 16 * 16 - reused)


def test_two_faults_in_one_prompt_hide_each_others_cost():
    observer = Observer()
    for number in (1, 2):
        reported = observer.reported(
            request(body(f"#{number} %{number} {LONG}", "Hi."), observe=["whitespace", "unicode"])
        )
    saved = (tokens(body(f"  {LONG}", "Hi.")) - 1) // 16 * 16
    assert reported == {"unicode": (1, 0, 0), "whitespace": (1, 0, 0), "all": (2, saved, 0)}


def test_a_prompt_that_needs_no_rule_gains_by_what_one_would_have_done_to_another():
    observer = Observer()
    observer.reported(request(body(f"#1{LONG}", "Hi."), observe=["whitespace", "unicode"]))
    reported = observer.reported(request(body(LONG, "Hi."), observe=["whitespace", "unicode"]))
    saved = (tokens(body(LONG, "Hi.")) - 1) // 16 * 16
    assert reported == {"whitespace": (0, saved, 0), "all": (0, saved, 0)}


def test_the_last_token_is_always_computed():
    observer = Observer()
    text = LONG
    while tokens(body(text, "Hi.")) % 16:
        text += " a"
    length = tokens(body(text, "Hi."))
    for number in (1, 2):
        reported = observer.reported(request(body(f"#{number}{text}", "Hi."), observe=["whitespace"]))
    assert reported["whitespace"] == (1, length - 16, 0)


def test_what_was_generated_is_there_for_the_next_turn_in_every_form():
    observer = Observer()
    reply = " ".join(f"Answer {n}." for n in range(40))
    turns = (LONG, "Hi.", reply, "And now?")
    first = body(f"#1{LONG}", "Hi.")
    # As the template prints a reply that comes back: between the prompt and the next message.
    behind = ids(body(*turns))[len(ids(body(LONG, "Hi."))) :]
    observer.reported(request(first, observe=["whitespace"], replies=(ReplyChoice(reply, behind),)))
    reported = observer.reported(request(body(f"#2{LONG}", *turns[1:]), observe=["whitespace"]))
    assert reported["whitespace"] == (1, (tokens(body(*turns)) - 1) // 16 * 16, 0)


@pytest.mark.parametrize(
    ("change", "seconds", "saves"),
    [
        ({}, 3599.0, True),
        ({}, 3602.0, False),
        ({"life": "b"}, 1.0, False),
        ({"where": msgspec.structs.replace(WHERE, owner="tenant:other")}, 1.0, False),
        ({"where": msgspec.structs.replace(WHERE, scope="team")}, 1.0, False),
    ],
)
def test_what_was_sent_counts_in_its_epoch_and_space_and_for_its_time(change, seconds, saves):
    observer = Observer()
    observer.reported(request(body(f"#1{LONG}", "Hi."), observe=["whitespace"]))
    reported = observer.reported(request(body(f"#2{LONG}", "Hi."), observe=["whitespace"], **change), seconds)
    assert (reported["whitespace"][1] > 500) is saves
    assert reported["whitespace"][::2] == (1, 0)


def test_blocks_of_earlier_turns_are_put_back_for_their_owner_alone():
    observer = Observer()
    observer.reported(request(body(LONG, "Hi."), observe=["dynamic_suffix"]))
    second = body(LONG, "Hi.", "Hello.", "What now?")
    edits = observer.observed(request(second, observe=["dynamic_suffix"])).edits
    assert [edit.path for edit in edits] == ["messages[1].content", "messages[3].content"]
    edits = observer.observed(request(second, observe=["dynamic_suffix"], owner="else")).edits
    assert [edit.path for edit in edits] == ["messages[3].content"]


def test_a_form_that_this_process_cannot_know_is_not_counted():
    observer = Observer()
    asked = body(f"#1{LONG}", "Hi.", "Hello.", "What now?")
    sent = body(LONG, "Hi. (stamp 900)", "Hello.", "What now? (stamp 901)")
    explanation = observer.observed(request(sent, asked, apply=["whitespace", "dynamic_suffix"]))
    # Without ``whitespace`` it would have been sent with a block that only the gateway remembers.
    assert not explanation.observed
    assert {each.rule: each.saved_tokens for each in explanation.canonical} == {"whitespace": 0, "dynamic-suffix": 0}
    explanation = observer.observed(request(sent, asked, lost=True, apply=["whitespace", "dynamic_suffix"]))
    assert explanation.observed


def test_edits_are_shown_without_their_text_and_with_what_they_do_to_the_tokens():
    observer = Observer()
    explanation = observer.observed(request(body(f"#1234 {LONG}", "Hi %99."), observe=["whitespace", "unicode"]))
    shown = {edit.rule: edit for edit in explanation.edits}
    assert len(explanation.edits) == 2
    edit = shown["whitespace"]
    assert (edit.mode, edit.what, edit.path) == (RuleMode.OBSERVE, "taken_out", "messages[0].content")
    assert (edit.before, edit.after) == ("#9999", "")
    assert edit.tokens == -(len(ENCODER.encode_text("#1234")) // 4)
    assert shown["unicode"].path == "messages[1].content"


def test_at_most_twenty_edits_are_shown_and_every_rule_has_some():
    observer = Observer()
    explanation = observer.observed(request(body("#1 " * 300 + "%1 %2", LONG), observe=["whitespace", "unicode"]))
    assert len(explanation.edits) == 20
    assert sum(edit.rule == "unicode" for edit in explanation.edits) == 2
    assert {each.rule: each.edits for each in explanation.canonical} == {"whitespace": 300, "unicode": 2, "all": 302}


def test_rules_that_are_off_are_not_mentioned():
    observer = Observer()
    explanation = observer.observed(request(body(f"#1{LONG}", "Hi.")))
    assert not explanation.observed
    assert (explanation.canonical, explanation.edits) == ((), ())
    # But what was sent is known in all forms.
    reported = observer.reported(request(body(f"#1{LONG}", "Hi."), observe=["whitespace"]))
    assert reported["whitespace"] == (1, 0, (tokens(body(f"#1{LONG}", "Hi.")) - 1) // 16 * 16)


def test_without_modes_or_text_nothing_is_reported():
    observer = Observer()
    for finished in (
        request(body("#1 x", "y"), canonical=Canonicalized()),
        answered(canonical=request(body("#1 x", "y"), observe=["whitespace"]).canonical),
        request(body("#1 x", "y"), observe=["whitespace"], parts=(b"\1\0\0\0", b"\2\0\0\0")),
        request(body("#1 x", "y"), observe=["whitespace"], body=b"{"),
    ):
        explanation = observer.observed(finished)
        assert (explanation.observed, explanation.canonical, explanation.edits) == (False, (), ())


def test_a_tokenizer_that_is_being_loaded_is_reported_as_loading():
    loaded = threading.Event()

    def load(options):
        assert loaded.wait(HANG_SECONDS)
        return ENCODER

    observer = Observer(load, wait=False)
    one = request(body("#1 x", "y"), observe=["whitespace"])
    assert not observer.shadow.is_loading
    assert not observer.observed(one).observed
    assert observer.shadow.is_loading
    loaded.set()
    until = time.monotonic() + 20
    while observer.shadow.is_loading:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert observer.observed(one).observed


class Panic(BaseException):
    """As PyO3's, which is no ``Exception``."""


@pytest.mark.parametrize("kind", [OSError, Panic])
def test_a_tokenizer_that_cannot_be_loaded_is_reported_once(kind):
    def fail(options):
        raise kind("no such folder")

    observer = Observer(fail, wait=False)
    one = request(body("#1 x", "y"), body("%1#1 x", "y"), observe=["whitespace"], apply=["unicode"])
    notices = []
    until = time.monotonic() + 20
    while not notices:
        assert time.monotonic() < until
        explanation = observer.observed(one)
        notices += observer.shadow.notices()
    assert not explanation.observed
    # What was done is known all the same.
    assert [(each.rule, each.edits, each.saved_tokens) for each in explanation.canonical] == [("unicode", 1, 0)]
    assert [(edit.rule, edit.tokens) for edit in explanation.edits] == [("unicode", None), ("whitespace", None)]
    [notice] = notices
    assert notice.event == "canon_not_observed"
    assert "no such folder" in notice.fields["problem"]
    for _ in range(5):
        observer.observed(one)
    assert not observer.shadow.notices()
    # Unchanged requests alone would make what rules change look rarer than it is.
    assert not observer.observed(request(body("x", "y"), observe=["whitespace"])).observed


def test_no_tokenizer_is_needed_where_nothing_is_ever_to_be_edited():
    def fail(options):
        raise AssertionError("it was loaded")

    observer = Observer(fail, wait=False)
    for _ in range(3):
        assert observer.observed(request(body("x", "y"), observe=["whitespace"])).observed
    assert not observer.shadow.notices()


def test_a_tokenizer_that_gives_other_tokens_is_not_used():
    observer = Observer()
    one = request(body(f"#1{LONG}", "Hi."), observe=["whitespace"])
    where = msgspec.structs.replace(one.where, template="v2")
    other = msgspec.structs.replace(one, parts=(ids(body("Hi.", LONG)),), where=where)
    assert [observer.observed(other).observed for _ in range(5)] == [False] * 5
    [notice] = observer.shadow.notices()
    assert "other tokens" in notice.fields["problem"]
    assert observer.observed(one).observed


def test_prompts_that_an_engine_tokenized_are_not_compared():
    observer = Observer()
    finished = request(body(f"#1{LONG}", "Hi."), observe=["whitespace"], token_source="engine_render")
    assert not observer.observed(finished).observed


def test_other_rules_take_over_at_once_and_what_was_sent_stays_known():
    observer = Observer()
    observer.reported(request(body(f"#1{LONG}", "Hi."), observe=["whitespace"]))
    settings = OPTIONS.settings.replace(b'"memory_mib":64', b'"memory_mib":32')
    assert settings != OPTIONS.settings
    observer.shadow.configure(CanonOptions(settings, OPTIONS.models), 1)
    assert observer.reported(request(body(f"#2{LONG}", "Hi."), observe=["whitespace"]))["whitespace"][1] > 500
