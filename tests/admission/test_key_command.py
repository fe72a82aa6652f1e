"""``prefix-gateway key``: what it prints is a key, and lines that the configuration takes."""

import argparse
import json
import re

import pytest
import yaml
from admission_setup import AdmissionSetup

from gateway.commands import key as command
from gateway.core.api_keys import bearer, hash_key


@pytest.fixture
def run(capsys):
    def run_command(*arguments: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser(prog="prefix-gateway key")
        command.add_arguments(parser)
        try:
            code = command.run(parser.parse_args(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def parts(output: str) -> tuple[str, dict]:
    """The key, and the configuration behind it."""
    (key,) = re.findall(r"^pgw_\S+$", output, re.MULTILINE)
    return key, yaml.safe_load(output[output.index("\n\n", output.index(key) + len(key) + 2) :])


def test_the_key_is_let_in_by_the_lines_printed_beside_it(run):
    code, output, _ = run("--tenant", "acme", "--id", "ci", "--expires", "2999-01-31")
    key, configuration = parts(output)
    assert code == 0
    assert output.count(key) == 1
    caller = AdmissionSetup(configuration["tenants"]).caller(key)
    assert (caller.tenant.id, caller.key_id) == ("acme", "ci")
    (entry,) = configuration["tenants"][0]["keys"]
    assert entry == {"hash": hash_key(key), "id": "ci", "expires": "2999-01-31"}


def test_every_key_is_another(run):
    assert len({parts(run()[1])[0] for _ in range(20)}) == 20


@pytest.mark.parametrize("name", ["1", "1e3", "no", "null", "2027-01-01", "a:b", "-", ":"])
def test_names_that_yaml_would_read_as_something_else_stay_names(run, name):
    _, configuration = parts(run(f"--tenant={name}", f"--id={name}")[1])
    (tenant,) = configuration["tenants"]
    assert (tenant["id"], tenant["keys"][0]["id"]) == (name, name)


def test_an_admin_token_has_a_name_and_a_role(run):
    code, output, _ = run("--admin", "--role", "operate", "--id", "ops")
    token, configuration = parts(output)
    assert code == 0
    assert token.startswith("pgw_admin_")
    assert bearer(f"Bearer {token}".encode()) == token
    assert configuration == {"server": {"admin_tokens": [{"hash": hash_key(token), "id": "ops", "role": "operate"}]}}

    token, configuration = parts(run("--admin")[1])
    (entry,) = configuration["server"]["admin_tokens"]
    assert entry == {"hash": hash_key(token), "id": hash_key(token)[:15], "role": "read"}


def test_json_holds_all_of_it(run):
    code, output, _ = run("--tenant", "acme", "--id", "ci", "--expires", "2999-01-31", "--json")
    printed = json.loads(output)
    assert code == 0
    assert printed == {
        "key": printed["key"],
        "tenant": "acme",
        "hash": hash_key(printed["key"]),
        "id": "ci",
        "expires": "2999-01-31",
    }
    printed = json.loads(run("--admin", "--json")[1])
    assert printed["hash"] == hash_key(printed["key"])
    assert (printed["role"], printed["id"]) == ("read", printed["hash"][:15])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tenant", "a b"], "argument --tenant: expected a name of 1 to 64 characters"),
        (["--tenant", "*"], "argument --tenant: expected a name of 1 to 64 characters"),
        (["--id", ""], "argument --id: expected a name of 1 to 64 characters"),
        (["--expires", "soon"], "argument --expires: expected a date such as 2027-01-31"),
        (["--expires", "2020-01-01"], "argument --expires: 2020-01-01 is over already"),
        (["--admin", "--role", "root"], "argument --role: invalid choice: 'root'"),
        (["--role", "read"], "prefix-gateway key: --role goes with --admin"),
        (["--admin", "--tenant", "a"], "prefix-gateway key: --tenant does not go with --admin"),
    ],
)
def test_bad_usage_is_one_clear_line_and_makes_no_key(run, arguments, message):
    code, output, error = run(*arguments)
    assert (code, output) == (2, "")
    assert message in error.splitlines()[-1]


def test_help_shows_examples(run):
    code, output, _ = run("--help")
    assert code == 0
    assert "prefix-gateway key --tenant acme" in output
