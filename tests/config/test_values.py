"""How values are read: defaults, variables, secrets, YAML's pitfalls."""

import pytest
from pydantic import ValidationError

from gateway.config.settings import ReplicaSettings, Settings

MODELS = 'models: [{id: m, replicas: ["http://localhost:8000"]}]\n'


def replica(settings):
    return settings.models[0].replicas[0]


def test_the_minimal_file_has_defaults_for_everything_else(load):
    settings = load(MODELS)
    assert settings.server.port == 8080
    assert settings.models[0].tokenizer == "engine"
    assert settings.placement.policy == "expected_ttft"
    assert replica(settings).id == "localhost:8000"


def test_a_section_with_all_keys_commented_out_has_its_defaults(load):
    assert load(f"{MODELS}server:\n  # port: 1\nrelay: ~\n") == load(MODELS)


@pytest.mark.parametrize(
    ("url", "kept", "name"),
    [
        ("http://h", "http://h", "h:80"),
        ("https://h/", "https://h", "h:443"),
        ("HTTP://Host:1/Prefix/", "http://host:1/Prefix", "host:1"),
        ("http://[::1]:8000", "http://[::1]:8000", "[::1]:8000"),
        ("http://h:1/v1x", "http://h:1/v1x", "h:1"),
    ],
)
def test_a_url_is_kept_in_one_form_and_names_the_replica(load, url, kept, name):
    found = replica(load(f'models: [{{id: m, replicas: ["{url}"]}}]'))
    assert (found.url, found.id) == (kept, name)


def test_one_host_with_two_path_prefixes_needs_names_and_takes_them(load):
    settings = load("models: [{id: m, replicas: [{url: http://h/a, id: a}, {url: http://h/b, id: b}]}]")
    assert [each.id for each in settings.models[0].replicas] == ["a", "b"]


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_admin_token(load, host):
    assert load(f"{MODELS}server: {{admin_host: '{host}'}}").server.admin_token is None


def test_both_ports_may_be_any_free_one(load):
    assert load(f"{MODELS}server: {{port: 0, admin_port: 0}}").server.admin_port == 0


@pytest.mark.parametrize("word", ["off", "no", "false", "Off", "NO", '"off"', "${SWITCH}", '"${SWITCH}"'])
def test_off_is_false_where_a_boolean_is_expected(load, word):
    assert load(f"{MODELS}log:\n  requests: {word}\n", SWITCH="off").log.requests is False


def test_off_and_dates_and_the_like_are_text_elsewhere(load):
    settings = load(
        "models: [{id: off, template_version: 2024-01-01, replicas: [{url: http://h, id: no}], "
        "chat_template_kwargs: {a: on, b: true, c: 010, d: 1e3, e: 12:30, f: ~, g: 0x10, 1: .5}}]"
    )
    assert (settings.models[0].id, settings.models[0].template_version, replica(settings).id) == (
        "off",
        "2024-01-01",
        "no",
    )
    assert settings.models[0].chat_template_kwargs == {
        "a": "on", "b": True, "c": 10, "d": 1000.0, "e": "12:30", "f": None, "g": 16, "1": 0.5,
    }  # fmt: skip


def test_anchors_work(load):
    settings = load("models: [{id: m, replicas: [{url: http://h, api_key: &k s3}, {url: http://i, api_key: *k}]}]")
    assert settings.models[0].replicas[1].api_key.get_secret_value() == "s3"


def test_variables_are_replaced_inside_text_and_take_the_type_expected(load):
    settings = load(
        """\
server: {port: "${PORT}", shutdown_grace_seconds: "${GRACE:-2.5}"}
log: {requests: "${REQUESTS:-false}"}
models:
  - id: ${NAME}-${SIZE:-small}
    template_version: ${NUMBER}
    chat_template_kwargs:
      plain: ${NUMBER}
      quoted: "${NUMBER}"
      literal: $${NUMBER} $5
    replicas: ["http://${EMPTY:-h}:${PORT}"]
""",
        PORT="9000", NAME="m", NUMBER="7", EMPTY="",
    )  # fmt: skip
    assert (settings.server.port, settings.server.shutdown_grace_seconds, settings.log.requests) == (9000, 2.5, False)
    model = settings.models[0]
    assert (model.id, model.template_version, replica(settings).url) == ("m-small", "7", "http://h:9000")
    assert model.chat_template_kwargs == {"plain": 7, "quoted": "7", "literal": "${NUMBER} $5"}


def test_undefined_variables_are_each_reported_and_hide_no_other_mistake(mistakes):
    problems = mistakes(
        "server:\n  port: ${A}\n  host: ${B}${C}\nmodels:\n  - id: ${D}\n    tokenizer: 3\n    replicas: [http://h]\n"
    )
    assert [problem.split(" (")[0] for problem in problems] == [
        "gateway.yaml:2: server.port: variable A is not set",
        "gateway.yaml:3: server.host: variable B is not set",
        "gateway.yaml:3: server.host: variable C is not set",
        "gateway.yaml:5: models[0].id: variable D is not set",
        "gateway.yaml:6: models[0].tokenizer: expected text, got 3",
    ]


@pytest.mark.parametrize("text", ["${", "${}", "${A", "${A-B}", "${1A}", "a${b c}"])
def test_what_only_looks_like_a_variable_is_a_mistake(mistakes, text):
    (problem,) = mistakes(f'{MODELS}server: {{host: "{text}"}}', A="a")
    assert problem.startswith("gateway.yaml:2: server.host: `${` does not begin a variable")


def test_what_a_variable_stands_for_is_not_shown(mistakes):
    (problem,) = mistakes(f"{MODELS}log:\n  level: ${{LEVEL}}\n", LEVEL="hunter2")
    assert problem == "gateway.yaml:3: log.level: expected debug, info, warning or error, got the value of ${LEVEL}"


@pytest.mark.parametrize("content", [b"hunter2\n", b"hunter2\r\n", b"hunter2"])
def test_a_secret_is_read_from_its_file(load, tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    settings = load("models: [{id: m, replicas: [{url: http://h, api_key: 'file:${DIR}/key'}]}]", DIR=str(tmp_path))
    assert replica(settings).api_key.get_secret_value() == "hunter2"


def test_only_secrets_are_read_from_files(load):
    assert load("models: [{id: 'file:/etc/hostname', replicas: [http://h]}]").models[0].id == "file:/etc/hostname"


def test_unusable_secret_files_are_mistakes(mistakes, tmp_path):
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "lines").write_bytes(b"hunter2\nhunter2\n")
    problems = mistakes(
        f"""\
models:
  - id: m
    replicas:
      - {{url: http://a, api_key: file:{tmp_path}/missing}}
      - {{url: http://b, api_key: file:{tmp_path}/empty}}
      - {{url: http://c, api_key: file:{tmp_path}/binary}}
      - {{url: http://d, api_key: file:{tmp_path}/lines}}
"""
    )
    for line, (problem, end) in enumerate(
        zip(problems, ["No such file or directory", "is empty", "not UTF-8 text", "without spaces"], strict=True),
        start=4,
    ):
        assert problem.startswith(f"gateway.yaml:{line}: models[0].replicas[{line - 4}].api_key: ")
        assert problem.endswith(end)
        assert "hunter2" not in problem


@pytest.mark.parametrize(
    "secret",
    ["hunter 2", "[hunter2]", "{hunter2: hunter2}", "${SECRET}", '"${SECRET}x${NOWHERE}"', "20241231", "hünter2"],
)
def test_a_refused_secret_is_never_shown(mistakes, secret):
    problems = mistakes(
        f"server:\n  admin_token: {secret}\n"
        f"models:\n  - id: m\n    replicas:\n      - url: http://h\n        api_key: {secret}\n",
        SECRET="hunter 2",
    )
    assert len(problems) == 2
    assert not any("nter" in problem or "2024" in problem for problem in problems)


def test_secrets_show_neither_in_repr_nor_in_the_masked_settings(load):
    settings = load(
        "server: {admin_token: hunter2}\nmodels: [{id: m, replicas: [{url: http://h, api_key: hunter2}, http://i]}]\n"
    )
    masked = settings.masked()
    assert masked["server"]["admin_token"] == "***"
    assert [each["api_key"] for each in masked["models"][0]["replicas"]] == ["***", None]
    assert "hunter2" not in repr(settings) + str(settings) + str(masked)


def test_a_chat_template_that_exists_is_kept_as_a_path(load, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("")
    settings = load(f"models: [{{id: m, chat_template: {template}, replicas: [http://h]}}]")
    assert settings.models[0].chat_template == template
    assert settings.masked()["models"][0]["chat_template"] == str(template)


def test_settings_made_in_code_follow_the_same_rules():
    with pytest.raises(ValidationError, match="has this URL already"):
        Settings.model_validate({"models": [{"id": "a", "replicas": ["http://h", "http://h"]}]})
    replicas = (ReplicaSettings(url="http://h"), ReplicaSettings(url="http://i"))
    settings = Settings.model_validate({"models": [{"id": "a", "replicas": replicas}]})
    with pytest.raises(ValidationError):
        settings.server.port = 1  # type: ignore[misc]
