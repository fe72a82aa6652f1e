"""``prefix-gateway serve`` as a process: its exit codes, its signals, its log."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fork_server
import httpx
import pytest
from raw_http import Connection, post
from running_gateway import CHAT, eventually, held_answers
from serving import COMMAND, Serving

STREAM = b'{"model":"demo","stream":true,"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"Hi"}]}'


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return fork_server.run([*COMMAND, *map(str, arguments)])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_lets_open_streams_end(serve, start_engine, number):
    engine = await start_engine()
    release = held_answers(engine)
    serving = await serve(engine.url)
    client = await Connection.open(httpx.URL(serving.url).port)
    await client.send(post(CHAT, STREAM % 60))
    await client.reader.readuntil(b"data: ")
    serving.process.send_signal(number)
    await eventually(lambda: bool(serving.events("gateway_stopping")))

    async def refused() -> bool:
        try:
            (await Connection.open(httpx.URL(serving.url).port)).abort()
        except ConnectionRefusedError:
            return True
        return False

    await eventually(refused)
    release.set()
    rest = await client.reader.readuntil(b"data: [DONE]\n\n")
    assert rest.count(b"data: ") >= 59
    assert b'"error"' not in rest
    assert await serving.exit_code() == 0
    assert engine.scheduler.totals.aborted == 0
    assert [event["ending"] for event in serving.events("request_settled")] == ["complete"]
    client.abort()


@pytest.mark.parametrize("signals", [1, 2], ids=["the grace period is over", "asked twice"])
async def test_answers_that_do_not_end_in_time_are_ended_properly(serve, start_engine, signals):
    engine = await start_engine(decode_ms=100)
    serving = await serve(engine.url, server={"shutdown_grace_seconds": 0.5 if signals == 1 else 60})
    stream, whole = [await Connection.open(httpx.URL(serving.url).port) for _ in range(2)]
    await stream.send(post(CHAT, STREAM % 400))
    await whole.send(post(CHAT, (STREAM % 400).replace(b'"stream":true', b'"stream":false')))
    await stream.reader.readuntil(b"data: ")
    await eventually(lambda: engine.scheduler.running == 2)
    serving.process.terminate()
    await eventually(lambda: bool(serving.events("gateway_stopping")))
    if signals == 2:
        serving.process.terminate()
    reported = await stream.reader.readuntil(b"data: [DONE]\n\n")
    assert b'"code":"shutting_down"' in reported
    answer = await whole.reader.readuntil(b"}}")
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in answer
    assert b'"code":"shutting_down"' in answer
    assert await serving.exit_code(30) == 0
    await eventually(lambda: engine.scheduler.totals.aborted == 2)
    assert not [line for line in serving.lines if "Traceback" in line]
    assert len([line for line in serving.lines if "interrupted" in line and "request_settled" in line]) == 2
    stream.abort()
    whole.abort()


def test_signal_before_it_serves_ends_it_with_any_process_id(config):
    """The first process of a container gets only those signals that it has a handler for."""
    with subprocess.Popen([*COMMAND, "serve", "--config", config()], stderr=subprocess.PIPE, text=True) as process:
        status = Path(f"/proc/{process.pid}/status")

        def handled() -> bool:
            (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", status.read_text(), re.MULTILINE)
            return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

        end = time.monotonic() + 60
        while not handled():
            assert time.monotonic() < end
            time.sleep(0.001)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_the_installed_command_serves(config, start_engine, workers):
    """The program itself, in new interpreters, its workers and explain workers included."""
    engine = await start_engine()
    file = config(engine.url, log={"format": "json"}, server={"workers": workers})
    installed = Path(sys.executable).with_name("prefix-gateway")
    process = await asyncio.create_subprocess_exec(
        *(str(installed), "serve", "--config", str(file)),
        env=os.environ | {"PREFIX_GATEWAY_TESTS_EXEC": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    serving = Serving(process, file)
    try:
        await serving.ready()
        async with httpx.AsyncClient() as client:
            for _ in range(4):
                body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
                answer = await client.post(serving.url + CHAT, json=body)
                assert answer.status_code == 200

            async def explained() -> bool:
                return (await client.get(f"{serving.admin_url}/admin/api/summary")).json().get("requests") == 4

            await eventually(explained)
        process.terminate()
        assert await serving.exit_code() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def test_signal_without_work_ends_at_once(serve, start_engine):
    serving = await serve((await start_engine()).url)
    kept = await Connection.open(httpx.URL(serving.url).port)
    serving.process.terminate()
    assert await serving.exit_code(15) == 0
    kept.abort()


@pytest.mark.parametrize("key", ["port", "admin_port"])
def test_taken_port_is_named_in_one_line(config, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("serve", "--config", config(server={key: port}))
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert f"server.{key}" in line
    assert f"127.0.0.1:{port}" in line
    assert ended.stdout == ""


def test_configuration_mistakes_are_all_named(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("models:\n  - id: demo\n    replicas: [ftp://x]\nserver:\n  prot: 80\n  port: many\n")
    ended = run("serve", "--config", file)
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert [line.startswith(f"{file}:{number}:") for line, number in zip(lines, (3, 5, 6), strict=True)] == [True] * 3
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "arguments", [["serve"], ["serve", "--config"], ["srve"], [], ["serve", "--config", "/no/file"]]
)
def test_bad_usage(arguments):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.strip()
    assert "Traceback" not in ended.stderr


def test_help_shows_an_example():
    for arguments in (["--help"], ["serve", "--help"], ["check", "--help"]):
        ended = run(*arguments)
        assert ended.returncode == 0
        assert "example" in ended.stdout


MARKER = "XYZZY-prompt-marker"


async def test_every_request_is_one_line_and_no_text_is_logged(serve, start_engine):
    engine = await start_engine()
    serving = await serve(engine.url, relay={"first_byte_timeout_seconds": 3})
    good = {"model": "demo", "messages": [{"role": "user", "content": MARKER}], "max_tokens": 60, "ignore_eos": True}
    answers = []
    async with httpx.AsyncClient(base_url=serving.url, verify=False, headers={"x-session-id": MARKER}) as client:

        async def ask(status: int, path: str = CHAT, **fields: Any) -> None:
            answer = await client.post(path, json=good | fields)
            assert answer.status_code == status
            answers.append(answer)

        await ask(200)
        await ask(200, stream=True)
        await ask(200, "/v1/completions", prompt=MARKER)
        await ask(400, max_tokens=-1)
        await ask(400, messages=[{"role": "user", "content": [{"type": MARKER}]}])
        for fault, status in (("500", 500), ("die_before_first_byte", 502), ("hang", 504), ("die_mid_stream=2", 200)):
            await engine.set_fault(fault)
            await ask(status, stream=True)
        await engine.set_fault("refuse")
        await ask(503)
        reported = answers[0].json()["choices"][0]["message"]["content"]
        # Refused before they concern a replica.
        await ask(400, messages=MARKER)
        for body in (
            MARKER,
            '{"x":"' + MARKER,
            '{"model":"demo","messages":[{"role":"user","content":"\\ud800' + MARKER,
        ):
            await client.post(CHAT, content=body, headers={"content-type": "application/json"})
    serving.process.terminate()
    assert await serving.exit_code() == 0
    assert all(isinstance(json.loads(line), dict) for line in serving.lines)
    settled = serving.events("request_settled")
    assert [line["request_id"] for line in settled] == [answer.headers["x-request-id"] for answer in answers[:10]]
    assert [line["status"] for line in settled] == [answer.status_code for answer in answers[:10]]
    assert settled[0]["cached_tokens"] == 0
    assert settled[1]["decision"] == "warm"
    log = "\n".join(serving.lines)
    assert MARKER not in log
    assert reported not in log
    assert reported[10:40] not in log


@pytest.mark.parametrize("form", ["json", "console"])
def test_exceptions_are_logged_without_the_values_around_them(form):
    script = (
        "import structlog\n"
        "from gateway.telemetry import configure_logs\n"
        f"configure_logs({form!r}, 'debug')\n"
        "def fail(prompt):\n"
        "    raise RuntimeError(f'cannot do {prompt}')\n"
        "try:\n"
        f"    fail({MARKER[:5]!r} + {MARKER[5:]!r})\n"
        "except RuntimeError:\n"
        "    structlog.get_logger('x').exception('request_failed')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "300"}
    )
    assert "RuntimeError" in ended.stderr
    assert "line 5" in ended.stderr
    assert MARKER not in ended.stderr


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"audit": {"file": "/no/such/folder/audit.jsonl"}}, "audit.file"),
        ({"spaces": {"file": "/no/such/folder/spaces.json"}}, "spaces.file: no such folder"),
        ({"warm": {"file": "/no/such/prefixes.yaml"}}, "warm.file: no such file"),
        ({"server": {"host": "0.0.0.0", "port": 0, "admin_port": 0}}, "server.host: other machines may reach"),
        ({"tenants": [{"id": "a", "keys": ["pgw_the-key-itself"]}]}, "only hashes stand in the configuration"),
    ],
)
def test_what_would_fail_later_is_reported_at_the_start(config, sections, problem):
    done = run("serve", "--config", config(**sections))
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert "the-key-itself" not in done.stderr
