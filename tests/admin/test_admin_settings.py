"""The admin port's tokens in the configuration."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings, load_settings
from gateway.core.errors import ConfigInvalid

HASH = "sha256:" + hashlib.sha256(b"a token").hexdigest()
OTHER = "sha256:" + hashlib.sha256(b"another").hexdigest()


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Settings]:
    """Settings whose server section holds this."""

    def load_server(server: str) -> Settings:
        file = tmp_path / "gateway.yaml"
        file.write_text(f"models: [{{id: m, replicas: ['http://h']}}]\nserver: {server}\n")
        return load_settings(file, {})

    return load_server


@pytest.fixture
def mistakes(load: Callable[[str], Settings]) -> Callable[[str], list[str]]:
    def mistakes_of(server: str) -> list[str]:
        with pytest.raises(ConfigInvalid) as caught:
            load(server)
        assert "s3cret" not in str(caught.value)
        return [problem.partition("yaml:2: server.")[2] for problem in caught.value.problems]

    return mistakes_of


def test_a_token_has_a_name_a_hash_a_role_and_an_end(load):
    tokens = f"[{{id: ops, hash: '{HASH}', role: operate, expires: 2027-01-31}}, {{id: dash, hash: '{OTHER}'}}]"
    ops, dash = load(f"{{admin_host: 0.0.0.0, admin_tokens: {tokens}}}").server.admin_tokens
    assert (ops.id, ops.role, ops.expires_at) == ("ops", "operate", 1_801_440_000)
    assert ops.digest == hashlib.sha256(b"a token").digest()
    assert (dash.role, dash.expires_at) == ("read", None)


def test_a_hash_is_not_shown(load):
    settings = load(f"{{admin_tokens: [{{id: dash, hash: '{HASH}', expires: 2027-01-31}}]}}")
    assert settings.masked()["server"]["admin_tokens"] == [
        {"id": "dash", "hash": "***", "role": "read", "expires": "2027-01-31"}
    ]
    assert HASH[7:] not in repr(settings)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("s3cret", "admin_tokens: expected a list"),
        ("{s3cret: 1}", "admin_tokens: expected a list"),
        ("[s3cret]", "admin_tokens[0]: expected a mapping with id, hash, role and expires"),
        ("[{s3cret-abcdefghij0: 1}]", "admin_tokens[0]: expected a mapping"),
        ("[{id: a, hash: s3cret}]", "admin_tokens[0].hash: expected sha256: and 64 hex digits; only hashes stand"),
        ("[{id: a, hash: 31337}]", "admin_tokens[0].hash: expected sha256:"),
        ("[{id: a}]", "admin_tokens[0].hash: required, but missing"),
        (f"[{{hash: '{HASH}'}}]", "admin_tokens[0].id: required, but missing"),
        (f"[{{id: 'a b', hash: '{HASH}'}}]", "admin_tokens[0].id: expected a name"),
        (f"[{{id: admin_token, hash: '{HASH}'}}]", "admin_tokens[0].id: admin_token is the name of"),
        (f"[{{id: a, hash: '{HASH}', role: write}}]", "admin_tokens[0].role: expected read or operate, got 'write'"),
        (f"[{{id: a, hash: '{HASH}', expires: soon}}]", "admin_tokens[0].expires: expected a date such as"),
        (f"[{{id: a, hash: '{HASH}', rule: read}}]", "admin_tokens[0].rule: unknown key (did you mean role?)"),
        (f"[{{id: a, hash: '{HASH}'}}, {{id: a, hash: '{OTHER}'}}]", "admin_tokens: two of them are called a"),
        (f"[{{id: a, hash: '{HASH}'}}, {{id: b, hash: '{HASH}'}}]", "admin_tokens: a and b have the same hash"),
    ],
)
def test_a_wrong_token_is_named_and_never_shown(mistakes, tokens, expected):
    (problem,) = mistakes(f"{{admin_tokens: {tokens}}}")
    assert problem.startswith(expected)


def test_a_token_that_is_its_own_name_would_stand_in_the_log(mistakes):
    token = "pgw_s3cret"
    digest = hashlib.sha256(token.encode()).hexdigest()
    (problem,) = mistakes(f"{{admin_tokens: [{{id: {token}, hash: 'sha256:{digest}'}}]}}")
    assert problem.startswith("admin_tokens[0].hash: hash of its id")


def test_an_exposed_port_requires_a_token_of_either_kind(mistakes, load):
    (problem,) = mistakes("{admin_host: 0.0.0.0}")
    assert problem.startswith("admin_token: required, because admin_host is an address that other machines may reach")
    assert "admin_tokens" in problem
    (problem,) = mistakes("{admin_host: 0.0.0.0, admin_tokens: []}")
    assert problem.startswith("admin_token: required")
    load("{admin_host: 0.0.0.0, admin_token: t}")
    load(f"{{admin_host: 0.0.0.0, admin_tokens: [{{id: a, hash: '{HASH}'}}]}}")


def test_a_refused_token_is_not_also_a_missing_one(mistakes):
    (problem,) = mistakes("{admin_host: 0.0.0.0, admin_tokens: [{id: a, hash: s3cret}]}")
    assert problem.startswith("admin_tokens[0].hash: ")


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (f"{{admin_token: a token, admin_tokens: [{{id: a, hash: '{HASH}'}}]}}", "admin_token: a token travels"),
        (f"{{admin_token: another, admin_tokens: [{{id: a, hash: '{OTHER}'}}]}}", "admin_token: its hash stands in"),
        (f"{{admin_token: {'s3cret' * 100}}}", "admin_token: expected at most 512 characters"),
    ],
)
def test_a_plain_token_that_could_not_work(mistakes, server, expected):
    (problem,) = mistakes(server)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("{file: ''}", "audit.file: expected text, got an empty one"),
        ("{max_bytes: 1000}", "audit.max_bytes: expected at least 65536, got 1000"),
        ("{keep: -1}", "audit.keep: expected at least 0, got -1"),
        ("{max_size: 1}", "audit.max_size: unknown key"),
        ("{requests: 1}", "audit.requests: expected true or false"),
    ],
)
def test_a_wrong_audit_setting_is_named(tmp_path, section, expected):
    file = tmp_path / "gateway.yaml"
    file.write_text(f"models: [{{id: m, replicas: ['http://h']}}]\naudit: {section}\n")
    with pytest.raises(ConfigInvalid) as caught:
        load_settings(file, {})
    (problem,) = caught.value.problems
    assert problem.partition("yaml:2: ")[2].startswith(expected)


def test_unknown_types_of_values_do_not_get_through(load, mistakes):
    wrong: Any = mistakes("{admin_tokens: [{id: 5, hash: [s3cret]}]}")
    assert [problem.partition(":")[0] for problem in wrong] == ["admin_tokens[0].id", "admin_tokens[0].hash"]
