"""What of a changed configuration is taken over while the gateway serves; all the rest is named."""

import pytest
from pydantic import BaseModel

from gateway.config.settings import Settings
from gateway.core.errors import ConfigInvalid
from gateway.server.reload import merged

SECRET = "0123456789abcdef0123456789abcdef"
OTHER_SECRET = "fedcba9876543210fedcba9876543210"
REDIS = {"state": "redis://localhost:6379/0", "spaces": {"secret": SECRET}}


def settings(**sections):
    model = {"id": "m", "replicas": ["http://a:8000"]} | sections.pop("model", {})
    return Settings.model_validate({"models": [model]} | sections)


def change(before, after):
    """What is in force then, and what waits for a restart."""
    return merged(settings(**before), settings(**after))


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        ({"server": {"port": 9}}, ["server.port"]),
        ({"server": {"workers": 2, "max_body_bytes": 9_999_999}}, ["server.max_body_bytes", "server.workers"]),
        ({"log": {"level": "debug"}}, ["log.level"]),
        ({"spaces": {"file": "/tmp/spaces.json"}}, ["spaces.file"]),
        ({"audit": {"file": "stdout"}}, ["audit.file"]),
        ({"tracing": {"endpoint": "http://collector:4318"}}, ["tracing.endpoint"]),
        ({"index": {"default_blocks": 77}}, ["index.default_blocks"]),
        ({"placement": {"policy": "round_robin"}}, ["placement.policy"]),
        ({"queue": {"busy_seconds": 3, "max_requests": 7}}, ["queue.busy_seconds", "queue.max_requests"]),
        ({"relay": {"resume": True, "retries": 7}}, ["relay.resume", "relay.retries"]),
        ({"model": {"id": "n"}}, ["models"]),
        (REDIS, ["state"]),
    ],
)
def test_what_needs_a_restart_is_named_and_stays_as_it_is(after, keys):
    in_force, waiting = change({}, after)
    assert sorted(waiting) == keys
    before, new = settings(), settings(**after)
    for key in keys:
        section, _, name = key.partition(".")
        running, wanted, now = (getattr(each, section) for each in (before, new, in_force))
        if name:
            running, wanted, now = (getattr(each, name) for each in (running, wanted, now))
        assert now == running != wanted


@pytest.mark.parametrize(
    "after",
    [
        {"admission": {"tenant_header": "x-who"}},
        {"canon": {"memory_mib": 7}},
        {"explain": {"currency": "EUR"}},
        {"personal_data": {"mode": "report"}},
        {"warm": {"requests_per_second": 7}},
        {"spaces": {"idle_ttl_seconds": 7}},
        {"spaces": {"secret": SECRET}},
        {"server": {"admin_token": "a-token-that-is-long-enough"}},
        {"model": {"replicas": ["http://a:8000", "http://b:8000"]}},
        {"model": {"gpus_per_replica": 4}},
    ],
)
def test_what_is_taken_over_is_not_named(after):
    in_force, waiting = change({}, after)
    assert waiting == []
    assert in_force == settings(**after)


def test_with_a_redis_another_secret_needs_a_restart_because_what_is_there_is_encrypted_with_it():
    in_force, waiting = change(REDIS, REDIS | {"spaces": {"secret": OTHER_SECRET, "idle_ttl_seconds": 7}})
    assert waiting == ["spaces.secret"]
    assert in_force.spaces.secret.get_secret_value() == SECRET
    assert in_force.spaces.idle_ttl_seconds == 7


def test_nothing_changed_nothing_named():
    assert change(REDIS, REDIS) == (settings(**REDIS), [])


def test_what_would_be_in_force_has_to_be_right_as_well():
    tenants = {"tenants": [{"id": "a", "keys": [{"hash": "sha256:" + "0" * 64}]}], "spaces": {"secret": SECRET}}
    with pytest.raises(ConfigInvalid, match=r"server\.host"):
        change(
            {"server": {"host": "0.0.0.0", "admin_token": "x" * 30}} | tenants, {"server": {"admin_token": "x" * 30}}
        )


def test_every_section_is_taken_over_or_named_as_a_whole_or_by_key():
    """So that a new kind of section cannot be passed over in silence."""
    for name, field in Settings.model_fields.items():
        default = getattr(settings(), name)
        assert isinstance(default, BaseModel) or name in {"models", "prompts", "prompts_file", "tenants", "state"}, (
            name,
            field,
        )
