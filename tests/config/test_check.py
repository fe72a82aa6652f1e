"""``prefix-gateway check``."""

import argparse
import json
from pathlib import Path

import pytest

from gateway.commands import check

CONFIG = Path(__file__).parents[2] / "config"


def run(*arguments):
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    return check.run(parser.parse_args(list(map(str, arguments))))


@pytest.fixture
def broken(tmp_path):
    file = tmp_path / "broken.yaml"
    file.write_text("log: {level: loud}\nmodels: []\n")
    return file


def test_a_valid_file_is_counted(capsys):
    assert run(CONFIG / "gateway.yaml") == 0
    assert capsys.readouterr().out == f"{CONFIG}/gateway.yaml: ok, 1 model, 2 replicas\n"


def test_an_invalid_file_prints_every_mistake_and_exits_with_2(capsys, broken):
    assert run(broken) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{broken}:1: log.level: ")
    assert second.startswith(f"{broken}:2: models: ")


def test_json_for_machines(capsys, broken):
    assert run(CONFIG / "minimal.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(CONFIG / "minimal.yaml"), "ok": True, "models": 1, "replicas": 1, "problems": [],
    }  # fmt: skip
    assert run(broken, "--json") == 2
    result = json.loads(capsys.readouterr().out)
    assert (result["ok"], len(result["problems"])) == (False, 2)


def test_a_file_of_replicas_is_read_too(tmp_path, capsys):
    replicas, file = tmp_path / "replicas.yaml", tmp_path / "gateway.yaml"
    file.write_text(f"models: [{{id: m, discover: {{file: {{path: {replicas}}}}}}}]\n")
    assert run(file) == 2
    assert capsys.readouterr().out == f"{replicas}: cannot be read: No such file or directory\n"
    replicas.write_text("- http://a\n- {url: http://b, regoin: eu}\n")
    assert run(file) == 2
    assert capsys.readouterr().out == f"{replicas}:2: replicas[1].regoin: unknown key (did you mean region?)\n"
    replicas.write_text("- http://a\n- http://b\n")
    assert run(file) == 0
    assert capsys.readouterr().out == f"{file}: ok, 1 model, 2 replicas\n"


def test_help_shows_an_example():
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    assert "prefix-gateway check config/gateway.yaml" in parser.format_help()


def test_files_that_the_configuration_names_are_read_too(tmp_path, capsys):
    prefixes = tmp_path / "prefixes.yaml"
    prefixes.write_text("- {model: m}\n")
    file = tmp_path / "gateway.yaml"
    file.write_text(f'models: [{{id: m, replicas: ["http://h"]}}]\nwarm: {{file: {prefixes}}}\n')
    assert run(file) == 2
    assert f"{prefixes}:1" in capsys.readouterr().out
    file.write_text('models: [{id: m, replicas: ["http://h"]}]\naudit: {file: /no/such/folder/audit.jsonl}\n')
    assert run(file) == 2
    assert "audit.file: no such folder: /no/such/folder" in capsys.readouterr().out
