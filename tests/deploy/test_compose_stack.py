"""The compose stack, as far as it can be judged without containers (`make test-containers` runs it)."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from external import program
from manifests import ROOT

from gateway.config.settings import Settings, load_settings
from gateway.core.api_keys import hash_key

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIG = ROOT / "config" / "compose"
SECRETS = "/run/secrets/prefix-gateway"
MADE_FOR = {"kept", "gateway", "redis", "prometheus", "grafana"}


def make_secrets(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the service `secrets` does, in a folder of the test's."""
    for name in MADE_FOR:
        (folder / name).mkdir(exist_ok=True)
    named = (ROOT / "deploy" / "compose" / "make_secrets.py").read_text().replace('"/secrets"', repr(str(folder)))
    script = folder / SERVICES["secrets"]["entrypoint"][1].removeprefix("/")
    script.write_text(named)
    return subprocess.run(
        [sys.executable, script],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def configured(folder: Path, **environment: str) -> Settings:
    """The gateways' configuration, with the secrets of a folder."""
    file = folder / "gateway.yaml"
    file.write_text((CONFIG / "gateway.yaml").read_text().replace(f"file:{SECRETS}/", f"file:{folder}/gateway/"))
    return load_settings(file, environment)


def test_the_gateways_accept_their_configuration_with_secrets_that_were_made(tmp_path):
    assert make_secrets(tmp_path).returncode == 0
    settings = configured(tmp_path)
    assert [replica.url for replica in settings.models[0].replicas] == ["http://engine-0:8000", "http://engine-1:8000"]
    assert settings.state is not None
    password = (tmp_path / "redis" / "redis.conf").read_text().split('"')[1]
    assert settings.state.get_secret_value() == f"redis://:{password}@redis:6379/0"
    token = (tmp_path / "prometheus" / "token").read_text()
    assert [each.hash.get_secret_value() for each in settings.server.admin_tokens] == [hash_key(token)]
    assert token not in "".join(file.read_text() for file in (tmp_path / "gateway").iterdir())


def test_secrets_are_made_once_and_env_goes_before_them(tmp_path):
    make_secrets(tmp_path)
    before = {file: file.read_text() for file in tmp_path.glob("*/*")}
    make_secrets(tmp_path)
    assert {file: file.read_text() for file in before} == before
    make_secrets(tmp_path, REDIS_PASSWORD="p@ss/word#with%signs")
    assert configured(tmp_path).state.get_secret_value() == "redis://:p%40ss%2Fword%23with%25signs@redis:6379/0"
    changed = {file.name for file, text in before.items() if file.read_text() != text}
    assert changed == {"REDIS_PASSWORD", "redis.conf", "state"}


@pytest.mark.parametrize(
    "value", ["short", 'with "quotes" inside it', "with spaces in the middle", "ümlaute-in-a-password"]
)
def test_a_secret_that_cannot_be_used_is_refused_by_its_name(tmp_path, value):
    done = make_secrets(tmp_path, ADMIN_TOKEN=value)
    assert done.returncode == 1
    assert done.stderr.startswith("ADMIN_TOKEN in .env: ")
    assert value not in done.stderr


def test_every_service_gets_its_own_secrets_only():
    for name, service in SERVICES.items():
        volumes = {volume.split(":")[0] for volume in service.get("volumes", [])}
        held = {volume.removeprefix("secrets-") for volume in volumes if volume.startswith("secrets-")}
        expected = {"gateway-0": {"gateway"}, "gateway-1": {"gateway"}, "secrets": MADE_FOR}
        assert held == expected.get(name, {name} & MADE_FOR), name


def test_a_profile_has_both_engines_and_none_of_the_other_one():
    for profile, image in (("cpu", "prefix-gateway"), ("gpu", "vllm")):
        engines = [service for service in SERVICES.values() if service.get("profiles") == [profile]]
        assert [service["networks"]["default"]["aliases"] for service in engines] == [["engine-0"], ["engine-1"]]
        assert all(image in service["image"] for service in engines)
    assert {str(service.get("profiles")) for service in SERVICES.values()} == {"None", "['cpu']", "['gpu']"}


def test_services_of_this_stack_are_confined():
    for name, service in SERVICES.items():
        if service.get("profiles") == ["gpu"]:
            continue
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name


def test_everything_is_published_on_loopback_unless_env_says_otherwise():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(port.startswith("${BIND:-127.0.0.1}:") for port in ports)


def test_gateways_are_given_the_time_that_they_take_to_stop(tmp_path):
    make_secrets(tmp_path)
    server = configured(tmp_path).server
    for name in ("gateway-0", "gateway-1"):
        given = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert given >= server.drain_seconds + server.shutdown_grace_seconds + 10


def test_every_variable_has_a_default_and_stands_in_the_example():
    text = (ROOT / "docker-compose.yml").read_text()
    used = re.findall(r"(?<!\$)\$\{(\w+)(:-[^}]*)?\}", text)
    assert [name for name, default in used if not default] == []
    example = (ROOT / ".env.example").read_text()
    reported = dict(re.findall(r"^#(\w+)=(.*)$", example, re.MULTILINE))
    assert set(reported) == {name for name, _ in used} | {"COMPOSE_PROFILES"}
    for name, default in used:
        assert reported[name] == default.removeprefix(":-"), name


def test_images_are_pinned_and_what_is_mounted_is_there():
    for name, service in SERVICES.items():
        image = re.sub(r"\$\{\w+:-(.*)\}", r"\1", service["image"])
        image = image.partition("@")[0]
        assert re.search(r":[\w.-]+$", image), name
        assert not image.endswith(":latest"), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], volume


def test_the_proxy_and_prometheus_know_the_services_by_their_names():
    aliases = {"engine-0", "engine-1"}
    proxy = (CONFIG / "haproxy.cfg").read_text()
    servers = re.findall(r"^ +server (\S+) (\S+):(\d+)$", proxy, re.MULTILINE)
    gateways = {name for name in SERVICES if name.startswith("gateway-")}
    assert {host for _, host, _ in servers} == gateways
    prometheus = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    targets = {
        job["job_name"]: {target for each in job["static_configs"] for target in each["targets"]}
        for job in prometheus["scrape_configs"]
    }
    assert targets == {
        "prefix-gateway": {f"{name}:8081" for name in gateways},
        "engines": {f"{name}:8000" for name in aliases},
        "proxy": {"proxy:8404"},
    }
    assert "bind :8404" in proxy


def test_prometheus_accepts_its_configuration(tmp_path):
    config = (CONFIG / "prometheus.yml").read_text()
    config = config.replace("/etc/prometheus/rules/", f"{ROOT}/deploy/prometheus/")
    (tmp_path / "token").write_text("token")
    config = config.replace("/run/secrets/prometheus/token", str(tmp_path / "token"))
    file = tmp_path / "prometheus.yml"
    file.write_text(config)
    done = subprocess.run([program("promtool"), "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_made_from_files_that_the_builder_gets():
    """`.dockerignore` leaves everything out but what it names."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert len(sources) >= 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == path or source.startswith(f"{path}/") for path in allowed), source
