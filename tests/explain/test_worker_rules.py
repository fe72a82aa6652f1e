"""From requests to the summary: the real rules, the real journal, and the process in between."""

import json
import time

import msgspec
import pytest
import yaml
from explain_harness import ClientHarness, eventually
from observed_prompts import LONG, OPTIONS, body, request

from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import Canonicalized, RuleMode, RuleName, default_mode
from gateway.explain.worker.explain_client import COMMAND
from gateway.explain.worker.explain_messages import (
    CanonOptions,
    FrameSplitter,
    Question,
    QuestionAnswer,
    WorkerOptions,
    encode,
)
from gateway.explain.worker.explain_parts import ExplainParts
from gateway.explain.worker.explain_supervisor import ExplainTimeouts
from gateway.explain.worker.explain_worker import ExplainWorker

OBSERVED = tuple(map(default_mode, RuleName))
NOW = 1_795_262_400.0
"""2026-11-21 12:00 UTC."""


def options(canon: CanonOptions | None = OPTIONS, **fields) -> WorkerOptions:
    return WorkerOptions(1 << 26, 1000, 3600.0, 1 << 26, 3600.0, 100_000, None, "USD", {}, canon, **fields)


class Desk:
    """An worker with the real parts, whose tokenizer is loaded."""

    def __init__(self, canon: CanonOptions | None = OPTIONS) -> None:
        self.worker = ExplainWorker(ExplainParts, lambda: NOW)
        self.worker.handle(options(canon))
        self.number = 0
        until = time.monotonic() + 20
        while canon is not None and not self.summary()["looked_at"]["requests"]:
            assert time.monotonic() < until
            self.send(body("Hello.  \r\nYou.", "Hi."), life="before", session="before")
            time.sleep(0.005)
        self.worker.counted()
        self.looked_at = self.summary()["looked_at"]["requests"]

    def send(self, sent: bytes, **fields) -> None:
        self.number += 1
        finished = request(sent, observe=(), request_id=f"req-{self.number}", at=NOW + self.number / 10)
        # As clients send it.
        named = json.dumps({"model": finished.model, **json.loads(sent)}).encode()
        finished = msgspec.structs.replace(finished, body=named)
        canonical = fields.pop("canonical", Canonicalized(OBSERVED, owner="acme"))
        finished = msgspec.structs.replace(finished, **({"canonical": canonical, "session": ""} | fields))
        frame = bytearray()
        encode(finished, frame)
        [arrived] = FrameSplitter().feed(bytes(frame))
        assert not self.worker.handle(arrived.decode())

    def ask(self, question: str, **arguments: str) -> dict:
        [answer] = self.worker.handle(Question(1, question, arguments))
        assert isinstance(answer, QuestionAnswer)
        assert answer.status == 200, answer
        return json.loads(answer.document)

    def summary(self) -> dict:
        return self.ask("summary")["canonicalization"]

    def rules(self) -> dict[str, dict]:
        return {each["rule"]: each for each in self.summary()["rules"]}


def test_a_leading_time_is_shown_with_the_tokens_a_rule_would_save():
    desk = Desk()
    for number in range(10):
        desk.send(body(f"Current time: 2026-11-21 12:0{number}\n{LONG}", "Hi."))
    rule = desk.rules()["dynamic-suffix"]
    assert rule["requests"] == 10
    assert rule["saved_tokens"] > 9 * 500
    assert rule["points"] > 80
    assert not desk.summary()["suggestions"]
    counted = desk.worker.counted()
    assert counted is not None
    assert (RuleMode.OBSERVE, 20) in [each[1:3] for each in counted.canonical if each[0] == "dynamic-suffix"]


def test_a_random_mark_at_the_beginning_is_suggested_and_moves_once_it_is_configured():
    desk = Desk()
    for mark in ("k29fq8xz", "p81mz3qd", "7bmz3q9d", "zz4k1m2p"):
        desk.send(body(f"[{mark}] You help people.\n{LONG}", "Hi."))
    [found] = desk.summary()["suggestions"]
    assert (found["name"], found["reason"], found["requests"]) == ("random", "dynamic_id", 3)
    settings = CanonSettings.model_validate(yaml.safe_load(found["yaml"])["canon"])
    fields = json.loads(body(f"[a1b2c3d4] You help people.\n{LONG}", "Hi.")) | {"model": found["model"]}
    [moved, _] = rulebook(settings).canonical(fields, [RuleName.DYNAMIC_SUFFIX], RuleContext(now=NOW)).edits
    assert moved.before == "a1b2c3d4"


def test_a_slot_that_no_rule_finds_is_suggested_and_found_once_configured():
    desk = Desk()
    for name in ("Anna Smith", "Bob Kent", "Carla Diaz", "Dora Lund", "Emil Berg"):
        desk.send(body(f"You help people.\nCustomer: {name}\n{LONG}", "Hi."))
    [found] = desk.summary()["suggestions"]
    assert (found["regex"], found["varies"], found["requests"]) == ("^Customer: (.+)$", "conversation", 4)
    assert "dynamic-suffix" not in desk.rules()
    settings = CanonSettings.model_validate(yaml.safe_load(found["yaml"])["canon"])
    desk.worker.handle(options(CanonOptions(settings.model_dump_json().encode(), OPTIONS.models)))
    for name in ("Finn Ros", "Gita Rao", "Hugo Lima", "Ines Paz", "Jan Vos"):
        desk.send(body(f"You help people.\nCustomer: {name}\n{LONG}", "Hello."))
    assert desk.rules()["dynamic-suffix"]["saved_tokens"] > 4 * 500
    [still] = desk.summary()["suggestions"]
    assert (still["regex"], still["requests"]) == (found["regex"], 4)


def test_a_request_shows_what_rules_would_change():
    desk = Desk()
    desk.send(body(f"Be brief.  \r\n{LONG}", "Hi\u200b there."))
    shown = desk.ask("request", id=f"req-{desk.number}")["canonicalization"]
    assert shown["observed"]
    assert shown["applied"] == []
    assert {each["rule"] for each in shown["rules"]} == {"unicode", "whitespace", "all"}
    assert {edit["rule"] for edit in shown["edits"]} == {"unicode", "whitespace"}
    assert all(edit["mode"] == "observe" and isinstance(edit["tokens"], int) for edit in shown["edits"])
    assert "brief" not in json.dumps(shown)


def test_without_rule_options_nothing_is_observed_or_suggested():
    desk = Desk(None)
    for name in ("Anna Smith", "Bob Kent", "Carla Diaz"):
        desk.send(body(f"You help people.\nCustomer: {name}  \n{LONG}", "Hi."))
    nothing = {"requests": 0, "prompt_tokens": 0, "conversations": {"tried": 0, "of": 0}}
    assert desk.summary() == {"looked_at": nothing, "rules": [], "suggestions": []}
    # Later they come, and the tokenizer is loaded.
    desk.worker.handle(options())
    until = time.monotonic() + 60
    while not desk.summary()["looked_at"]["requests"]:
        assert time.monotonic() < until
        desk.send(body(LONG, "Hi."))


def test_invalid_rules_cost_no_explanations():
    worker = ExplainWorker(ExplainParts, lambda: NOW)
    worker.handle(options(CanonOptions(b'{"unknown": 1}', {})))
    [notice] = worker.expire()
    assert notice.event == "canon_not_observed"
    assert not worker.handle(request(body(LONG, "Hi.")))
    assert worker.counted().missed


@pytest.mark.parametrize("before", [0, 14])
async def test_original_prompts_are_dropped_first_when_the_buffer_fills(tmp_path, before):
    timeouts = ExplainTimeouts(tick_seconds=0.1, silent_ticks=600, starting_ticks=600, answer_seconds=60)
    async with ClientHarness(
        tmp_path, timeouts=timeouts, command=list(COMMAND), canon=OPTIONS, max_waiting_mib=1
    ) as harness:
        await harness.summary()
        client = harness.client
        for number in range(before):
            client.record_request(request(body(LONG, "x" * 20_000), life=f"l{number}"))
        given = {"request_id": "late", "at": time.time()}
        client.record_request(request(body("Hi.", "Hi."), body("Hi.  \n", "Hi."), apply=["whitespace"], **given))
        await eventually(lambda: not client._send_buffer.awaits and client._send_buffer.is_empty)
        shown = json.loads(await client.ask("request", {"id": "late"}))
        assert not shown["skipped"]
        assert shown["canonicalization"]["applied"] == ([] if before else ["whitespace"])
        assert harness.counts.canonical["whitespace", "apply", "edits"] == (0 if before else 1)
