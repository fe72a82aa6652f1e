"""The section ``tracing`` of the configuration."""

import subprocess
import sys

import pytest

from gateway.config import telemetry_settings as tracing_settings
from gateway.config.settings import load_settings
from gateway.core.errors import ConfigInvalid
from gateway.server.reload import merged

MODELS = 'models: [{id: m, replicas: ["http://localhost:8000"]}]\n'


@pytest.fixture
def load(tmp_path):
    def load(section, **environ):
        file = tmp_path / "gateway.yaml"
        file.write_text(f"{MODELS}tracing: {section}\n")
        return load_settings(file, environ)

    return load


@pytest.fixture
def mistake(load):
    def mistake(section):
        with pytest.raises(ConfigInvalid) as caught:
            load(section)
        (problem,) = caught.value.problems
        return problem.partition("gateway.yaml:2: ")[2]

    return mistake


def test_without_the_extra_it_says_what_to_install(mistake, load, monkeypatch):
    monkeypatch.setattr(tracing_settings, "is_installed", lambda: False)
    reported = mistake("{enabled: true}")
    assert reported.startswith("tracing.enabled: ")
    assert "pip install 'prefix-gateway[tracing]'" in reported
    assert not load("{enabled: false}").tracing.enabled


def test_turned_off_nothing_of_it_is_needed():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import gateway.server.run\n"
        "from gateway.telemetry.tracing import start_tracing\n"
        "from gateway.config.telemetry_settings import is_installed\n"
        "from gateway.config.telemetry_settings import TracingSettings\n"
        "assert start_tracing(TracingSettings(), lambda: None) is None\n"
        "print(is_installed())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("{sample_ratio: 1.1}", "tracing.sample_ratio: expected at most 1, got 1.1"),
        ("{sample_ratio: -0.1}", "tracing.sample_ratio: expected at least 0, got -0.1"),
        ("{endpoint: 'otel:4318'}", "tracing.endpoint: expected an http or https URL"),
        ("{endpoint: 'grpc://otel:4317'}", "tracing.endpoint: expected an http or https URL"),
        ("{endpoint: 'http://otel:99999'}", "tracing.endpoint: expected an http or https URL"),
        ("{endpoint: 'http://me:hunter2@otel'}", "tracing.endpoint: expected a URL without user"),
        ("{endpoint: 'http://otel?a=b'}", "tracing.endpoint: expected a URL without user, query"),
        ("{service_name: ''}", "tracing.service_name: expected text, got an empty one"),
        ("{headers: [hunter2]}", "tracing.headers: expected a mapping"),
        ("{headers: hunter2}", "tracing.headers: expected a mapping"),
        ("{headers: {a: 712345}}", "tracing.headers: expected text for a (put it in quotes)"),
        ("{headers: {a: ''}}", "tracing.headers: a and its value have to fit an HTTP header"),
        ('{headers: {a: "hunter2\\n"}}', "tracing.headers: a and its value have to fit an HTTP header"),
        ("{headers: {'a b': hunter2}}", "tracing.headers: a b and its value have to fit an HTTP header"),
        ("{headers: {a: 'file:/no/such/file'}}", "tracing.headers: secret file /no/such/file cannot be read"),
        ("{ratio: 1}", "tracing.ratio: unknown key"),
    ],
)
def test_a_mistake_is_named_and_no_secret_is_shown(mistake, section, expected):
    reported = mistake(section)
    assert reported.startswith(expected)
    assert "hunter2" not in reported
    assert "712345" not in reported


def test_secrets_come_from_files_and_variables_and_are_not_shown(load, tmp_path):
    file = tmp_path / "credential"
    file.write_text("Bearer from-a-file\n")
    settings = load(f"{{headers: {{authorization: 'file:{file}', x-team: '${{TEAM}}'}}}}", TEAM="blue")
    assert {name: value.get_secret_value() for name, value in settings.tracing.headers.items()} == {
        "authorization": "Bearer from-a-file",
        "x-team": "blue",
    }
    assert settings.masked()["tracing"]["headers"] == {"authorization": "***", "x-team": "***"}


def test_a_change_needs_a_restart(load):
    running, new = load("{sample_ratio: 0.1}"), load("{sample_ratio: 0.2, headers: {a: b}}")
    settings, waiting = merged(running, new)
    assert settings == running
    assert waiting == ["tracing.sample_ratio", "tracing.headers"]
