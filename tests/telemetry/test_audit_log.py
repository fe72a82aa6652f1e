"""The lines of the audit log, and that nothing but lines comes of it."""

import asyncio
import datetime
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_SECONDS
from records import ACME, lines_of, refusal, request, settlement, space_end

from gateway.config.telemetry_settings import AuditSettings
from gateway.core.canonical import PersonalFinding
from gateway.core.errors import ConfigInvalid
from gateway.core.ports import AuditEvent
from gateway.core.space import ResetCause
from gateway.telemetry import AuditLog, check_writable


@pytest.fixture
def audit(tmp_path: Path):
    """Hands what a function records to an audit log, and returns its lines."""

    async def write(use: Any, **settings: Any) -> list[dict[str, Any]]:
        file = tmp_path / "audit.jsonl"
        log = AuditLog(AuditSettings(file=str(file), **settings), lambda: pytest.fail("an error was counted"))
        log.start()
        use(log)
        await log.stop()
        return lines_of(file)

    return write


def without_time(line: dict[str, Any]) -> dict[str, Any]:
    moment = datetime.datetime.fromisoformat(line["time"])
    assert moment.utcoffset() == datetime.timedelta(0)
    return {key: value for key, value in line.items() if key != "time"}


async def test_a_request_is_one_line_of_who_what_where(audit):
    (line,) = await audit(lambda log: log.on_settled(settlement()))
    assert without_time(line) == {
        "event": "request",
        "tenant": "acme",
        "key_id": "ci",
        "scope": "de",
        "peer": "203.0.113.9",
        "request_id": "req-1",
        "model": "m",
        "endpoint": "/v1/chat/completions",
        "space": "k3v9",
        "replica": "r0",
        "decision": "warm",
        "status": 200,
        "code": None,
        "prompt_tokens": 100,
        "cached_tokens": 80,
        "warming": False,
    }


async def test_a_request_no_replica_took_has_none(audit):
    (line,) = await audit(
        lambda log: log.on_settled(settlement(decision=None, ending=None, status=503, cached_tokens=None))
    )
    assert (line["replica"], line["decision"], line["cached_tokens"], line["status"]) == (None, None, None, 503)


async def test_requests_can_be_left_out_and_refusals_cannot(audit):
    def use(log: AuditLog) -> None:
        log.on_settled(settlement())
        log.on_refused(refusal(401, "invalid_api_key"))

    assert [line["event"] for line in await audit(use, requests=False)] == ["access_refused"]


@pytest.mark.parametrize("requests", [True, False])
async def test_what_is_refused_later_is_recorded_like_what_is_refused_at_admission(audit, requests):
    refused = settlement(decision=None, ending=None, status=400, code="personal_data_in_prefix")
    (line,) = await audit(lambda log: log.on_settled(refused), requests=requests)
    assert without_time(line) == {
        "event": "access_refused",
        "peer": "203.0.113.9",
        "status": 400,
        "code": "personal_data_in_prefix",
        "tenant": "acme",
        "key_id": "ci",
        "request_id": "req-1",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "space": "k3v9",
    }


async def test_a_failure_on_the_way_is_a_request(audit):
    failed = settlement(decision=None, ending=None, status=503, code="no_replica")
    (line,) = await audit(lambda log: log.on_settled(failed))
    assert (line["event"], line["status"], line["code"]) == ("request", 503, "no_replica")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "duplicate_header"),
        (401, "invalid_api_key"),
        (403, "unknown_tenant"),
        (404, "model_not_found"),
        (429, "rate_limit_exceeded"),
        (431, "headers_too_large"),
    ],
)
async def test_a_refusal_says_from_where_and_why(audit, status, code):
    (line,) = await audit(lambda log: log.on_refused(refusal(status, code)))
    assert without_time(line) == {
        "count": 1,
        "first": line["first"],
        "last": line["first"],
        "event": "access_refused",
        "peer": "203.0.113.9",
        "status": status,
        "code": code,
        "tenant": "",
        "key_id": "",
        "request_id": "req-2",
        "endpoint": "/v1/chat/completions",
    }


async def test_a_refusal_names_the_caller_if_it_is_known(audit):
    (line,) = await audit(lambda log: log.on_refused(refusal(429, "rate_limit_exceeded", ACME)))
    assert (line["tenant"], line["key_id"]) == ("acme", "ci")


async def test_refusals_without_a_caller_are_one_line_for_each_address_and_code(audit):
    def use(log: AuditLog) -> None:
        for peer in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2:3", "fe80::1%eth0", "192.0.2.1"):
            for code in ("invalid_api_key", "unknown_path"):
                log.on_refused(replace(refusal(401, code), peer=peer))
        for path in ("/metrics", "/"):
            details = {"peer": "192.0.2.1", "method": "GET", "path": path, "status": 401, "code": "unauthorized"}
            log.record_refused(AuditEvent("admin_refused", details=details))

    lines = await audit(use)
    assert [(line["event"], line["peer"], line["code"], line["count"]) for line in lines] == [
        ("access_refused", "192.0.2.1", "invalid_api_key", 3),
        ("access_refused", "192.0.2.1", "unknown_path", 3),
        ("access_refused", "2001:db8::1", "invalid_api_key", 2),
        ("access_refused", "2001:db8::1", "unknown_path", 2),
        ("access_refused", "fe80::1%eth0", "invalid_api_key", 1),
        ("access_refused", "fe80::1%eth0", "unknown_path", 1),
        ("admin_refused", "192.0.2.1", "unauthorized", 2),
    ]
    assert all(line["first"] <= line["last"] <= line["time"] for line in lines)
    assert lines[-1]["path"] == "/metrics"


async def test_a_million_addresses_do_not_make_a_million_lines(audit):
    def use(log: AuditLog) -> None:
        for number in range(2000):
            log.on_refused(replace(refusal(401, "invalid_api_key"), peer=f"2001:db8:{number:x}::1"))

    lines = await audit(use)
    assert len(lines) == 251
    assert sum(line["count"] for line in lines) == 2000
    assert without_time(lines[-1]) == {
        "event": "access_refused",
        "peer": "other",
        "status": 401,
        "code": "invalid_api_key",
        "count": 1750,
        "first": lines[-1]["first"],
        "last": lines[-1]["last"],
    }


async def test_merged_refusals_are_written_while_the_gateway_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.telemetry.audit._MERGE_SECONDS", 0.1)
    file = tmp_path / "audit.jsonl"
    log = AuditLog(AuditSettings(file=str(file)), lambda: pytest.fail("an error was counted"))
    log.start()
    for count in (1, 2):
        log.on_refused(refusal(401, "invalid_api_key"))
        async with asyncio.timeout(HANG_SECONDS):
            while not file.exists() or len(lines_of(file)) < count:
                await asyncio.sleep(0.01)
    await log.stop()
    assert [line["count"] for line in lines_of(file)] == [1, 1]


async def test_no_client_pushes_out_what_an_operator_did(audit, tmp_path):
    def use(log: AuditLog) -> None:
        log.record(AuditEvent("spaces_reset_asked", by="ops", details={"all": True}))
        for number in range(3000):
            log.on_settled(settlement())
            log.on_refused(refusal(429, "rate_limit_exceeded", ACME))
            log.on_refused(replace(refusal(401, "invalid_api_key"), peer=f"192.0.2.{number % 256}"))
            log.on_space_end(space_end(ResetCause.MODEL_UPDATE, by=""))
            details = {"peer": "192.0.2.1", "status": 403, "code": "role_required"}
            log.record_refused(AuditEvent("admin_refused", by="grafana", details=details))

    await audit(use, max_bytes=64 * 1024, keep=1)
    everything = lines_of(*sorted(tmp_path.glob("audit.jsonl*")))
    assert [line["by"] for line in everything if line["event"] == "spaces_reset_asked"] == ["ops"]
    assert [line["event"] for line in lines_of(tmp_path / "audit.jsonl.operators")] == ["spaces_reset_asked"]


async def test_what_an_operator_did_is_in_both_files_with_the_same_time(audit, tmp_path):
    lines = await audit(lambda log: log.record(AuditEvent("warm_asked", by="ops")))
    assert lines == lines_of(tmp_path / "audit.jsonl.operators")


async def test_a_pipe_gets_what_operators_did_and_has_no_second_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        settings = AuditSettings(file=str(pipe))
        check_writable(settings)
        log = AuditLog(settings, lambda: pytest.fail("an error was counted"))
        log.start()
        log.record(AuditEvent("warm_asked", by="ops"))
        await log.stop()
        assert os.read(reader, 4096).count(b"warm_asked") == 1
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]


async def test_a_failure_of_the_gateway_is_no_refusal(audit):
    def use(log: AuditLog) -> None:
        log.on_refused(refusal(500, "internal_error"))
        log.on_refused(refusal(403, "unknown_tenant"))

    assert [line["status"] for line in await audit(use)] == [403]


async def test_an_ended_space_has_all_its_parts_and_its_cause(audit):
    (line,) = await audit(lambda log: log.on_space_end(space_end(ResetCause.MODEL_UPDATE, by="")))
    assert without_time(line) == {
        "event": "space_end",
        "cause": "model_update",
        "by": "",
        "space": "k3v9",
        "parts": {
            "model_id": "m",
            "tokenizer_id": "tok1",
            "template_version": "v3+abcd",
            "tenant": "tenant:acme",
            "scope": "de",
            "adapter": "",
            "context_limit": 8192,
            "region": "eu",
            "epoch": 17,
            "prompt": "",
        },
    }


async def test_personal_data_is_written_when_it_is_new_only(audit):
    finding = PersonalFinding("email", "messages[0].content", 12, 20)

    def use(log: AuditLog) -> None:
        for shared, new in ((False, True), (False, False), (True, True)):
            log.on_personal_data(request(), "k3v9", finding, shared=shared, new=new)

    first, second = await audit(use)
    assert without_time(first) == {
        "event": "personal_data",
        "tenant": "acme",
        "key_id": "ci",
        "request_id": "req-1",
        "space": "k3v9",
        "kind": "email",
        "path": "messages[0].content",
        "start": 12,
        "length": 20,
        "shared": False,
    }
    assert second["shared"] is True


async def test_an_event_carries_who_and_its_details(audit):
    event = AuditEvent("spaces_reset_asked", by="ops", tenant="acme", details={"model": "m"})
    (line,) = await audit(lambda log: log.record(event))
    assert without_time(line) == {"event": "spaces_reset_asked", "model": "m", "by": "ops", "tenant": "acme"}


async def test_details_cannot_imitate_other_fields(audit):
    event = AuditEvent("admin_refused", by="ops", tenant="acme", details={"by": "root", "tenant": "other"})
    (line,) = await audit(lambda log: log.record(event))
    assert (line["by"], line["tenant"]) == ("ops", "acme")


@pytest.mark.parametrize(
    "odd", ["line\nbreak", "\x00\x1b[31m", "\udcff", "é漢", {"a": {1: frozenset("b")}}, object(), float("nan"), 2**70]
)
async def test_odd_values_neither_fail_nor_break_a_line(audit, odd):
    def use(log: AuditLog) -> None:
        log.record(AuditEvent("odd", details={"value": odd}))
        log.record(AuditEvent("next"))

    assert [line["event"] for line in await audit(use)] == ["odd", "next"]


async def test_lines_keep_their_order(audit):
    def use(log: AuditLog) -> None:
        for number in range(5000):
            log.record(AuditEvent("step", details={"number": number}))

    assert [line["number"] for line in await audit(use)] == list(range(5000))


async def test_lines_appear_while_the_gateway_runs(tmp_path):
    file = tmp_path / "audit.jsonl"
    log = AuditLog(AuditSettings(file=str(file)), lambda: None)
    log.start()
    log.record(AuditEvent("early"))
    async with asyncio.timeout(HANG_SECONDS):
        while not file.exists() or not file.read_text():
            await asyncio.sleep(0.01)
    log.record(AuditEvent("later"))
    async with asyncio.timeout(HANG_SECONDS):
        while len(lines_of(file)) < 2:
            await asyncio.sleep(0.01)
    await log.stop()
    assert [line["event"] for line in lines_of(file)] == ["early", "later"]


async def test_standard_output_gets_the_lines_too(capfd):
    log = AuditLog(AuditSettings(file="stdout"), lambda: pytest.fail("an error was counted"))
    check_writable(AuditSettings(file="stdout"))
    log.start()
    log.on_settled(settlement())
    await log.stop()
    assert '"request_id":"req-1"' in capfd.readouterr().out


async def test_without_a_file_nothing_is_written(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check_writable(AuditSettings())
    log = AuditLog(AuditSettings(), lambda: pytest.fail("an error was counted"))
    log.start()
    log.on_settled(settlement())
    log.record(AuditEvent("an event"))
    await log.stop()
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("place", [".", "a\0b"])
def test_a_file_that_cannot_be_opened_is_a_mistake_in_the_configuration(tmp_path, place):
    with pytest.raises(ConfigInvalid) as refused:
        check_writable(AuditSettings(file=f"{tmp_path}/{place}"))
    (problem,) = refused.value.problems
    assert problem.startswith("audit.file: ")
    assert "cannot be written" in problem


def test_a_folder_that_cannot_be_written_could_not_rotate(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # tests may run as root, who may write everywhere
    with pytest.raises(ConfigInvalid, match="cannot be rotated"):
        check_writable(AuditSettings(file=f"{tmp_path}/audit.jsonl"))


def test_a_file_that_can_be_written_is_kept_as_it_is(tmp_path):
    file = tmp_path / "audit.jsonl"
    file.write_text('{"event":"before"}\n')
    check_writable(AuditSettings(file=str(file)))
    assert lines_of(file) == [{"event": "before"}]
