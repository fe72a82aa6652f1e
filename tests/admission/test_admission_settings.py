"""The entries of the configuration file: what each may hold, and what is said of a wrong one."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from gateway.config.config_file import read_config
from gateway.config.tenants_settings import AdmissionSettings, KeySettings, TenantSettings, is_open
from gateway.core.api_keys import hash_key, new_key
from gateway.core.errors import ConfigInvalid

HASH = hash_key("abc")
KEY = "pgw_4FhUUqWnPEqFs1XkAp3l3dwhLKqDYhZ0hQn4Gf0oTts"


class File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    admission: AdmissionSettings = AdmissionSettings()
    tenants: tuple[TenantSettings, ...] = ()


@pytest.fixture
def read(tmp_path: Path):
    def read_text(content: str, **environ: str) -> File:
        file = tmp_path / "gateway.yaml"
        file.write_text(content)
        return read_config(file, File, environ)

    return read_text


@pytest.fixture
def wrong(read, tmp_path: Path):
    """The only mistake in a file of two lines whose second is ``- …`` under ``tenants:``."""

    def mistake(tenant: str, **environ: str) -> str:
        with pytest.raises(ConfigInvalid) as caught:
            read(f"tenants:\n- {tenant}\n", **environ)
        assert KEY not in str(caught.value)
        (problem,) = caught.value.problems
        return problem.removeprefix(f"{tmp_path}/gateway.yaml:2: tenants[0]")

    return mistake


def test_a_key_may_be_text_or_a_mapping(read):
    other = hash_key("def")
    (tenant,) = read(
        f"""\
tenants:
- id: acme
  group: retail
  keys:
  - "{HASH}"
  - {{hash: "{other}", id: ci, expires: 2027-01-01T00:00:00Z, models: [m], scope: de, scopes: [fr, "*"]}}
  models: [m, n]
  regions: [eu]
  requests_per_second: 50
  concurrent: 100
  prompt_tokens_per_minute: 2000000
  personal_data: off
  idle_ttl_seconds: 600
  max_age_seconds: 3600
"""
    ).tenants
    plain, full = tenant.keys
    assert (plain.id, plain.expires, plain.expires_at, plain.models) == ("sha256:ba7816bf", None, None, None)
    assert (plain.scope, plain.scopes) == ("", ())
    assert plain.digest == bytes.fromhex(HASH[7:])
    assert (full.id, full.expires, full.expires_at) == ("ci", "2027-01-01T00:00:00Z", 1798761600)
    assert (full.models, full.scope, full.scopes) == (("m",), "de", ("fr", "*"))
    assert (tenant.requests_per_second, tenant.concurrent, tenant.prompt_tokens_per_minute) == (50, 100, 2_000_000)
    assert (tenant.personal_data, tenant.idle_ttl_seconds, tenant.max_age_seconds) == ("off", 600, 3600)


def test_hashes_may_come_from_variables_and_files(read, tmp_path):
    secret = tmp_path / "hash"
    secret.write_text(HASH + "\n")
    (tenant,) = read(
        f'tenants: [{{id: a, keys: ["${{H}}", {{hash: "file:{secret}", id: two}}]}}]', H=hash_key("def")
    ).tenants
    assert [key.digest.hex() for key in tenant.keys] == [hash_key("def")[7:], HASH[7:]]


ONLY_HASHES = (
    "expected sha256: and 64 hex digits; only hashes stand in the configuration (make one with `prefix-gateway key`)"
)


@pytest.mark.parametrize(
    "value", [KEY, f"'{KEY}'", "1234567890", "1.5", "true", "[1]", f"[{KEY}]", f"sha256:{KEY}", "''"]
)
def test_a_key_in_the_place_of_a_hash_is_not_shown(wrong, value):
    assert wrong(f"{{id: a, keys: [{value}]}}") == f".keys[0].hash: {ONLY_HASHES}"
    assert wrong(f"{{id: a, keys: [{{hash: {value}}}]}}") == f".keys[0].hash: {ONLY_HASHES}"


def test_a_key_from_a_variable_in_the_place_of_a_hash_is_not_shown(wrong):
    assert wrong('{id: a, keys: ["${K}"]}', K=KEY) == f".keys[0].hash: {ONLY_HASHES}"
    assert wrong('{id: a, keys: "${K}"}', K=KEY).startswith(".keys: expected a list")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            f"{{id: a, keys: {KEY}}}",
            ".keys: expected a list (`- ` before each hash; make one with `prefix-gateway key`)",
        ),
        ("{id: a, keys: 12345}", ".keys: expected a list (`- ` before each hash"),
        (f"{{id: a, keys: {{{KEY}: }}}}", ".keys: expected a list (`- ` before each hash"),
        (
            f"{{id: a, keys: [{{{KEY}: ci}}]}}",
            ".keys[0]: unknown key, not shown here; expected hash, id, expires, models",
        ),
        (f"{{id: a, keys: [{{hash: '{HASH}', Id: x}}]}}", ".keys[0].Id: unknown key (did you mean id?)"),
        ("{id: a, keys: [{id: x}]}", ".keys[0].hash: required, but missing (add it)"),
        (
            f"{{id: a, keys: [{{hash: '{hash_key(KEY)}', id: {KEY}}}]}}",
            ".keys[0].id: the key itself, which would stand",
        ),
        (f"{{id: a, keys: [{{hash: '{HASH}', id: a b}}]}}", ".keys[0].id: expected a name of 1 to 64 characters"),
        (f"{{id: a, keys: [{{hash: '{HASH}', id: ''}}]}}", ".keys[0].id: expected a name of 1 to 64 characters"),
        (
            f"{{id: a, keys: [{{hash: '{HASH}', expires: soon}}]}}",
            ".keys[0].expires: expected a date such as 2027-01-31",
        ),
        (f"{{id: a, keys: [{{hash: '{HASH}', expires: 2027}}]}}", ".keys[0].expires: expected text, got 2027"),
        (f"{{id: a, keys: [{{hash: '{HASH}', models: []}}]}}", ".keys[0].models: expected at least one model (leave"),
        (f"{{id: a, keys: [{{hash: '{HASH}', scope: '*'}}]}}", ".keys[0].scope: expected a name of 1 to 64"),
        (
            f"{{id: a, keys: [{{hash: '{HASH}', scopes: [de, 'f r']}}]}}",
            ".keys[0].scopes[1]: expected a name of 1 to 64",
        ),
        (
            f"{{id: a, keys: [{{hash: '{HASH}', scopes: de}}]}}",
            ".keys[0].scopes: expected a list (`- ` before each item)",
        ),
        (f"{{id: '*', keys: ['{HASH}']}}", ".keys: `*` stands for tenants that a trusted proxy names (keys belong to"),
        ("{}", ".id: required, but missing (add it)"),
        ("{id: 7}", ".id: expected text, got 7 (put it in quotes)"),
        ("{id: ''}", ".id: expected a name of 1 to 64 characters out of A-Z a-z 0-9 . _ : -"),
        (f"{{id: {'x' * 65}}}", ".id: expected a name of 1 to 64 characters"),
        ("{id: 'a*'}", ".id: expected a name of 1 to 64 characters"),
        ("{id: a, group: 'a,b'}", ".group: expected a name of 1 to 64 characters"),
        ("{id: a, models: []}", ".models: expected at least one model (leave the setting out for all)"),
        ("{id: a, regions: []}", ".regions: expected at least one region (leave the setting out for all)"),
        ("{id: a, requests_per_second: 0}", ".requests_per_second: expected at least 0.0001, got 0"),
        ("{id: a, requests_per_second: 200000}", ".requests_per_second: expected at most 100000, got 200000"),
        ("{id: a, requests_per_second: .inf}", ".requests_per_second: expected a finite number, got inf"),
        ("{id: a, concurrent: 0}", ".concurrent: expected at least 1, got 0"),
        ("{id: a, concurrent: 1.5}", ".concurrent: expected a whole number, got 1.5"),
        ("{id: a, prompt_tokens_per_minute: 0}", ".prompt_tokens_per_minute: expected at least 1, got 0"),
        ("{id: a, personal_data: hide}", ".personal_data: expected off, report, mask or block, got 'hide'"),
        ("{id: a, idle_ttl_seconds: 0}", ".idle_ttl_seconds: expected more than 0, got 0"),
        ("{id: a, max_age_seconds: -1}", ".max_age_seconds: expected more than 0, got -1"),
        ("{id: a, key: x}", ".key: unknown key (did you mean keys?)"),
    ],
)
def test_a_wrong_entry_is_named_with_the_fix(wrong, entry, expected):
    assert wrong(entry).startswith(expected)


@pytest.mark.parametrize(
    ("admission", "expected"),
    [
        ("{open: maybe}", "admission.open: expected true or false, got 'maybe'"),
        ("{tenant_header: 'a b'}", "admission.tenant_header: expected the name of a header, such as x-tenant-id"),
        ("{tenant_header: ''}", "admission.tenant_header: expected the name of a header, such as x-tenant-id"),
        ("{tenant_header: Authorization}", "admission.tenant_header: a header with a meaning of its own"),
        ("{tenant_header: x-cache-scope}", "admission.tenant_header: a header with a meaning of its own"),
        ("{trusted_proxies: 10.0.0.7}", "admission.trusted_proxies: expected a list"),
        (
            "{trusted_proxies: [10.0.0.7, proxy.internal]}",
            "admission.trusted_proxies[1]: expected an address or a network, such as 10.0.0.7 or 10.0.0.0/8, "
            "got 'proxy.internal'",
        ),
        ("{trusted_proxies: ['10.0.0.7:80']}", "admission.trusted_proxies[0]: expected an address or a network"),
        (
            "{trusted_proxies: [10.1.2.3/8]}",
            "admission.trusted_proxies[0]: 10.1.2.3/8 is neither an address nor a network (write 10.0.0.0/8 for the "
            "network, 10.1.2.3 for the address)",
        ),
        (
            "{trusted_proxies: [0.0.0.0/0]}",
            "admission.trusted_proxies[0]: 0.0.0.0/0 is everybody, who could then be any",
        ),
        ("{trusted_proxies: ['::/0']}", "admission.trusted_proxies[0]: ::/0 is everybody"),
        ("{trusted_proxies: ['::ffff:0:0/96']}", "admission.trusted_proxies[0]: ::ffff:0:0/96 is everybody"),
    ],
)
def test_a_wrong_admission_is_named_with_the_fix(read, tmp_path, admission, expected):
    with pytest.raises(ConfigInvalid) as caught:
        read(f"admission: {admission}\n")
    (problem,) = caught.value.problems
    assert problem.removeprefix(f"{tmp_path}/gateway.yaml:1: ").startswith(expected)


def test_no_object_and_no_error_shows_a_key_or_a_hash():
    key = new_key()
    tenant = TenantSettings.model_validate({"id": "a", "keys": (hash_key(key),)}, strict=True)
    shown = f"{tenant!r}{tenant!s}{tenant.keys[0]!r}{tenant.model_dump()}{tenant.model_dump_json()}"
    assert hash_key(key)[16:] not in shown
    for wrong in (
        {"hash": key},
        {"hash": hash_key(key), "id": key},
        {"hash": "sha256:" + hash_key(key)[7:].upper(), "id": key},
        {"hash": hash_key(key), key: 1},
        key,
        17,
    ):
        with pytest.raises(ValidationError) as caught:
            KeySettings.model_validate(wrong, strict=True)
        assert key not in f"{caught.value!s}{caught.value!r}"


def test_a_dump_is_json_ready_but_for_the_hash_which_is_a_secret():
    tenant = TenantSettings.model_validate(
        {"id": "a", "keys": ({"hash": HASH, "expires": "2027-01-31", "scopes": ("*",)},)}, strict=True
    )
    (key,) = tenant.model_dump()["keys"]
    assert isinstance(key.pop("hash"), SecretStr)
    assert json.loads(json.dumps(key))["expires"] == "2027-01-31"


def test_it_is_open_where_there_is_neither_a_key_nor_a_proxy():
    keyless, keyed = TenantSettings(id="default"), TenantSettings.model_validate({"id": "a", "keys": [HASH]})
    default, proxy = AdmissionSettings(), AdmissionSettings(trusted_proxies=("10.0.0.7",))
    assert is_open([], default)
    assert is_open([keyless], default)
    assert not is_open([keyless, keyed], default)
    assert not is_open([], proxy)
