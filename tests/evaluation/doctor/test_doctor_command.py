"""``prefix-gateway doctor`` and what ``serve`` logs of it."""

import argparse
import asyncio
import json
import os
import subprocess
import sys

import fork_server
import pytest
import structlog
import yaml
from examined_settings import settings_for

from gateway.commands import doctor
from gateway.evaluation.doctor.start_examination import examine_at_start
from gateway.tokenize.load_tokenizer import load_local


@pytest.fixture(autouse=True)
def own_log():
    """The command turns the log off for its process."""
    yield
    structlog.reset_defaults()


def run_doctor(*arguments):
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(list(map(str, arguments))))


@pytest.fixture
def config(tmp_path):
    def write(*urls, **sections):
        file = tmp_path / "gateway.yaml"
        model = {"id": "demo", "tokenizer": "builtin:demo", "replicas": list(urls)}
        file.write_text(yaml.safe_dump({"server": {"port": 0, "admin_port": 0}, "models": [model], **sections}))
        return file

    return write


async def in_thread(*arguments):
    """The command, while engines run in this event loop."""
    return await asyncio.to_thread(run_doctor, *arguments)


async def test_a_clean_set_up_ends_with_0(start_engine, config, capsys):
    engine = await start_engine()
    assert await in_thread("--config", config(engine.url)) == 0
    reported = capsys.readouterr()
    assert reported.out.endswith("gateway.yaml, 1 replica: nothing found\n")
    assert reported.err == ""


async def test_findings_end_with_1_and_name_the_flag(start_engine, config, capsys):
    engine = await start_engine(prefix_caching=False, events="", replay="")
    assert await in_thread("--config", config(engine.url)) == 1
    report = capsys.readouterr().out
    assert "error  prefix-caching-off  replica 127.0.0.1:" in report
    assert "fix: start vLLM with --enable-prefix-caching" in report
    assert report.index("prefix-caching-off") < report.index("warning  events-off")
    assert report.endswith("1 replica: 2 findings\n")
    assert all(len(line) <= 110 for line in report.splitlines()[:-1])


async def test_ignored_findings_do_not_count(start_engine, config, capsys):
    engine = await start_engine(events="", replay="")
    file = config(engine.url)
    assert await in_thread("--config", file, "--ignore", "events-off") == 0
    assert "nothing found" in capsys.readouterr().out


async def test_json_holds_what_the_report_says(start_engine, config, capsys):
    engine = await start_engine(prompt_tokens_details=False)
    assert await in_thread("--config", config(engine.url), "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["replicas"] == 1
    (found,) = result["findings"]
    assert found.keys() == {"name", "severity", "where", "said", "fix"}
    assert found["name"] == "usage-details-off"
    assert len(result["unchecked"]) == 1


async def test_requests_of_a_file_are_checked_against_the_block(start_engine, config, tmp_path, capsys):
    engine = await start_engine(block_size=512)
    file = tmp_path / "support.jsonl"
    bodies = [{"model": "demo", "messages": [{"role": "system", "content": f"Hi {n}"}]} for n in "ab"]
    file.write_text("\n".join(map(json.dumps, bodies)))
    assert await in_thread("--config", config(engine.url), "--request", file) == 1
    assert f"error  block-larger-than-prefix  {file}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty; expected the JSON of a request"),
        ("{", "not valid JSON"),
        ('{"a": 1}', "not a request"),
        ('{"messages": [], "model": "other"}', "names the model 'other', which the configuration has not (demo)"),
        ('{"messages": [], "model": "a"}\n{"messages": [], "model": "b"}', "its requests name several models"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_holds_no_request_ends_with_2(config, tmp_path, capsys, content, said):
    file = tmp_path / "request.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run_doctor("--config", config("http://h"), "--request", file) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_bad_configuration_ends_with_2(tmp_path, capsys):
    file = tmp_path / "gateway.yaml"
    assert run_doctor("--config", file) == 2
    assert "gateway.yaml" in capsys.readouterr().err
    file.write_text("models: []")
    assert run_doctor("--config", file) == 2
    assert "expected at least one model" in capsys.readouterr().err


def test_a_finding_that_does_not_exist_cannot_be_ignored(capsys):
    with pytest.raises(SystemExit) as ended:
        run_doctor("--ignore", "event-off")
    assert ended.value.code == 2
    assert "no finding is called 'event-off' (did you mean events-off?)" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "x", "nan", "1e9"])
def test_a_bad_timeout_ends_with_2(capsys, seconds):
    with pytest.raises(SystemExit) as ended:
        run_doctor("--timeout", seconds)
    assert ended.value.code == 2
    assert "expected seconds from 0.1 to 600" in capsys.readouterr().err


def test_help_shows_examples_and_exit_codes():
    shown = fork_server.run([sys.executable, "-m", "gateway", "doctor", "--help"]).stdout
    assert "prefix-gateway doctor --config config/gateway.yaml" in shown
    assert "exit code: 0 nothing found, 1 a finding, 2" in shown


def test_a_reader_that_leaves_early_is_no_error(config):
    command = [sys.executable, "-m", "gateway", "doctor", "--config", str(config("http://127.0.0.1:9"))]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([*command, "--timeout", "2"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


# At the start of a gateway.


async def test_a_gateway_logs_what_the_cheap_checks_find_and_sends_no_generation_requests(start_engine):
    engine = await start_engine(prefix_caching=False, ignores_salt=True)
    encoders = {"demo": load_local("builtin:demo")}
    with structlog.testing.capture_logs() as logs:
        await examine_at_start(settings_for(engine), encoders)
    (found,) = [entry for entry in logs if entry["event"] == "doctor_finding"]
    assert (found["name"], found["where"], found["log_level"]) == ("prefix-caching-off", "replica r0", "error")
    assert "--enable-prefix-caching" in found["fix"]
    assert not [each for each in engine.requests if each.path.endswith("/completions")]


async def test_each_finding_is_logged_once_and_a_late_replica_is_looked_at_again(start_engine):
    late = await start_engine(prefix_caching=False, engine_version="0.31.0")
    wrong = await start_engine(prefix_caching=False)
    await late.kill()
    settings = settings_for(late, wrong, spaces={"idle_ttl_seconds": 60, "max_age_seconds": 60})
    with structlog.testing.capture_logs() as logs:
        examining = asyncio.create_task(examine_at_start(settings, {}, [0.1, 0.5, 60.0]))
        while not any(entry["event"] == "doctor_examined" for entry in logs):
            await asyncio.sleep(0.01)
        await late.start()
        await examining
    found = [(entry["name"], entry["where"]) for entry in logs if entry["event"] == "doctor_finding"]
    assert sorted(found) == [
        ("prefix-caching-off", "replica r0"),
        ("prefix-caching-off", "replica r1"),
        ("replica-unreachable", "replica r0"),
        ("ttl-without-effect", "spaces.idle_ttl_seconds"),
        ("versions-differ", "model demo"),
    ]


async def test_a_check_that_fails_does_not_reach_the_gateway(monkeypatch):
    async def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.evaluation.doctor.start_examination.examine", broken)
    with structlog.testing.capture_logs() as logs:
        await examine_at_start(settings_for("http://h"), {})
    assert [entry["event"] for entry in logs] == ["doctor_failed"]
