"""Rules are tried on requests with avoidable misses, on changed ones, and on a sample of the other conversations."""

import json
import random
from itertools import takewhile

import msgspec
import pytest
from observed_prompts import LONG, OPTIONS, body, request
from pydantic import ValidationError

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.canonical import Canonicalized, RuleName, default_mode
from gateway.core.explanation import Explanation, ReplicaPrefix
from gateway.explain.worker.explain_messages import WorkerOptions
from gateway.explain.worker.explain_parts import ExplainParts

BLOCK_BYTES = 64
NOW = 1_795_262_400.0
"""2026-11-21 12:00 UTC."""
SHARE = ExplainSettings().observed_share
MODES = tuple(map(default_mode, RuleName))


def words(seed: str, count: int) -> str:
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefgh", k=5)) for _ in range(count))


class Explained:
    """Requests one after the other at one replica that forgets nothing, explained and tried with the real rules."""

    def __init__(self, share: float) -> None:
        options = WorkerOptions(1 << 26, 9000, 3600.0, 1 << 26, 3600.0, 500_000, None, "USD", {}, OPTIONS)
        self.parts = ExplainParts(msgspec.structs.replace(options, observed_share=share), NOW)
        self.parts.load_tokenizers()
        self.number = 0
        self.held: set[int] = set()

    def send(self, sent: bytes, **fields) -> Explanation:
        self.number += 1
        record = request(sent, request_id=f"req-{self.number}", at=NOW + self.number / 10)
        canonical = Canonicalized(MODES, owner="acme")
        hits = self.compute(record.parts[0])
        known = {"cached_tokens": hits, "predicted_tokens": hits, "own_tokens": record.prompt_tokens}
        known["holders"] = (ReplicaPrefix("r0", 0, hits),)
        record = msgspec.structs.replace(record, **({"canonical": canonical, "session": ""} | known | fields))
        explanation = self.parts.observe(record, self.parts.explain(record))
        self.parts.add_request(record, explanation, 1)
        return explanation

    def compute(self, ids: bytes) -> int:
        blocks = [hash(ids[:end]) for end in range(BLOCK_BYTES, len(ids), BLOCK_BYTES)]
        held = sum(1 for _ in takewhile(self.held.__contains__, blocks))
        self.held.update(blocks)
        return held * BLOCK_BYTES // 4

    def ask(self, question: str, **arguments: str) -> dict:
        return json.loads(self.parts.answer(question, arguments, NOW + self.number / 10, ()))

    def summary(self) -> dict:
        return self.ask("summary")["canonicalization"]

    def points(self) -> dict[str, tuple[float, dict | None]]:
        return {each["rule"]: (each["points"], each["points_interval"]) for each in self.summary()["rules"]}


def stamped(number: int, *texts: str) -> bytes:
    return body(f"Current time: 2026-11-21 12:{number // 60 % 60:02}:{number % 60:02}\n{LONG}", *texts)


def test_a_healthy_conversation_out_of_the_sample_is_not_tried_and_says_so():
    explained = Explained(share=0)
    first = explained.send(body(f"Be brief.  \r\n{LONG}", "Hi."))
    second = explained.send(body(f"Be brief.  \r\n{LONG}", "Hi.", "Hello.", "Bye."))
    for each in (first, second):
        assert (each.observed, each.left_out, each.canonical, each.edits) == (0, True, (), ())
    shown = explained.ask("request", id="req-2")["canonicalization"]
    assert (shown["observed"], shown["left_out"], shown["rules"]) == (False, True, [])
    looked_at = explained.summary()["looked_at"]
    assert (looked_at["requests"], looked_at["conversations"]) == (2, {"tried": 0, "of": 1})


@pytest.mark.parametrize("kind", ["time", "turns"])
def test_an_avoidable_miss_shows_the_same_savings_as_if_all_were_tried(kind):
    prompts = {
        "time": [stamped(number, f"Question {number}?") for number in range(5)],
        # What a client has changed in the history stands behind a healthy turn.
        "turns": [
            body("Help.", f"{LONG}  \r\nHi."),
            body("Help.", f"{LONG}  \r\nHi.", LONG, "So?"),
            body("Help.", f"{LONG}\nHi.", LONG, "So?", "Well.", "Bye."),
        ],
    }[kind]
    all_tried, few_tried = Explained(share=1), Explained(share=0)
    pairs = [(all_tried.send(prompt), few_tried.send(prompt)) for prompt in prompts]
    assert pairs[0][1].left_out
    assert all(each.observed == 1 for each, _ in pairs)
    assert any(outcome.saved_tokens > 500 for outcome in pairs[-1][1].canonical)
    for every, few in pairs:
        if not few.left_out:
            assert (few.observed, few.canonical, few.edits) == (1, every.canonical, every.edits)


def test_what_is_tried_late_counts_nowhere():
    explained = Explained(share=0)
    for number in range(2):
        explained.send(stamped(number, "Hi."))
    [suffix] = [each for each in explained.summary()["rules"] if each["rule"] == "dynamic-suffix"]
    assert suffix["requests"] == 1
    assert not explained.ask("request", id="req-1")["canonicalization"]["observed"]


def test_a_request_that_a_rule_has_changed_is_always_tried():
    asked = body(f"Be brief.  \r\n{LONG}", "Hi.")
    changed = Canonicalized(MODES, asked, owner="acme")
    assert Explained(share=0).send(body(f"Be brief.\n{LONG}", "Hi."), canonical=changed).observed == 1


def test_with_a_share_of_one_everything_is_tried_and_counts_once():
    explained = Explained(share=1)
    found = [explained.send(body(LONG, f"Question {number}?")) for number in range(30)]
    assert {(each.observed, each.left_out) for each in found} == {(1, False)}
    assert explained.summary()["looked_at"]["conversations"] == {"tried": 30, "of": 30}


def test_all_turns_of_a_conversation_are_in_the_sample_or_none():
    explained = Explained(share=0.5)
    weights: dict[str, set[float]] = {}
    for turn in range(1, 4):
        for name in range(40):
            texts = [words(f"{name} {each}", 20) for each in range(2 * turn - 1)]
            found = explained.send(body(LONG, *texts), session=f"session-{name}")
            weights.setdefault(found.conversation, set()).add(found.observed)
    # Each turn that misses something avoidable counts once.
    assert {0, 2} <= set.union(*weights.values())
    assert not any({0, 2} <= each for each in weights.values())


def test_estimates_of_a_sample_hold_what_trying_all_gives():
    all_tried, few_tried = Explained(share=1), Explained(share=SHARE)
    for number in range(400):
        prompt = stamped(number, "Hi.") if number % 8 == 0 else body(LONG, words(f"{number}", 40))
        for each in (all_tried, few_tried):
            each.send(prompt)
    known = all_tried.points()
    assert known["dynamic-suffix"][0] > 5
    for rule, (estimate, interval) in few_tried.points().items():
        exact, none = known[rule]
        assert none is None
        assert interval is not None
        assert interval["low"] <= estimate <= interval["high"]
        assert interval["low"] <= exact <= interval["high"]
    looked_at, all_looked_at = few_tried.summary()["looked_at"], all_tried.summary()["looked_at"]
    assert looked_at["requests"] == all_looked_at["requests"]
    assert looked_at["prompt_tokens"] == all_looked_at["prompt_tokens"]
    assert looked_at["conversations"]["tried"] < looked_at["conversations"]["of"] / 2


@pytest.mark.parametrize("share", [-0.01, 1.01, "half"])
def test_a_share_is_from_nothing_to_all(share):
    for bound in (0, 1):
        assert ExplainSettings(observed_share=bound).observed_share == bound
    with pytest.raises(ValidationError):
        ExplainSettings(observed_share=share)


def test_an_ended_session_leaves_nothing_to_be_tried():
    explained = Explained(share=0)
    explained.send(stamped(1, "Hi."), session="session-1")
    explained.parts.answer("end_session", {"id": "session-1"}, NOW + 1, ())
    explained.send(stamped(2, "Hi."))
    assert explained.send(stamped(3, "Hi.")).observed == 1
