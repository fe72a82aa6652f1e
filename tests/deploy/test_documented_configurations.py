"""Every piece of YAML on the pages is accepted by the program that it is for."""

import itertools
import json
import re
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from external import program
from manifests import ROOT, accepted, validate
from markdown_pages import PAGES, Block, blocks
from test_compose_stack import COMPOSE
from test_helm_chart import pytestmark as needs_helm
from test_helm_chart import rendered

from gateway.commands import check
from gateway.config.settings import Settings

EXAMPLES = [block for page in PAGES for block in blocks(page) if block.kind in ("yaml", "yml")]
MODEL: dict[str, Any] = {"id": "chat", "replicas": ["http://vllm-0:8000"]}
SECRET = "5" * 64


def kind(document: Any) -> str:
    """What a piece of YAML is for."""
    keys = set(document) if isinstance(document, dict) else set()
    kinds = {
        "kubernetes": "apiVersion" in keys,
        "compose": keys == {"services"},
        "chart": "config" in keys,
        "prometheus": "scrape_configs" in keys,
        "gateway": bool(keys) and keys <= set(Settings.model_fields),
        "model": keys == {"discover"},
        "replicas": isinstance(document, list),
        "role": keys == {"rules"},
        "litellm": keys == {"model_list"},
    }
    (found,) = [name for name, matches in kinds.items() if matches] or ["unknown"]
    return found


def of_kind(*wanted: str) -> Any:
    found = [block for block in EXAMPLES if kind(yaml.safe_load(block.text)) in wanted]
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


def checked(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The problems that `prefix-gateway check` finds, with values for what a page leaves open."""
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, SECRET)
    (folder / "secret").write_text(SECRET)
    text = re.sub(r"file:/run/secrets/[\w/-]+", f"file:{folder}/secret", text)
    text = text.replace("/var/lib/prefix-gateway/", f"{folder}/")
    hashes = itertools.count(1)
    text = re.sub("sha256:…", lambda _: f"sha256:{next(hashes):064x}", text)
    replicas = folder / "replicas.yaml"
    if not replicas.exists():
        replicas.write_text("[]")
    file = folder / "gateway.yaml"
    file.write_text(text.replace("/etc/prefix-gateway/replicas.yaml", str(replicas)))
    check.run(Namespace(file=file, json=True))
    return json.loads(capsys.readouterr().out)["problems"]


@pytest.mark.parametrize("block", EXAMPLES, ids=[block.place for block in EXAMPLES])
def test_it_is_known_what_it_is_for(block):
    assert kind(yaml.safe_load(block.text)) != "unknown"


def test_pages_have_examples_of_all_kinds():
    assert {kind(yaml.safe_load(block.text)) for block in EXAMPLES} >= {
        "gateway", "chart", "kubernetes", "compose", "prometheus",
    }  # fmt: skip


@of_kind("gateway")
def test_the_gateway_accepts_its_configurations(block: Block, tmp_path, monkeypatch, capsys):
    """What an example leaves out is added: all models, or their replicas."""
    text = block.text
    models = yaml.safe_load(text).get("models")
    if models is None:
        text = f"models: [{json.dumps(MODEL)}]\n{text}"
    elif any(not model.keys() & {"replicas", "discover"} for model in models):
        text = json.dumps(yaml.safe_load(text) | {"models": [MODEL | model for model in models]})
    assert checked(text, tmp_path, monkeypatch, capsys) == []


@of_kind("model")
def test_the_gateway_accepts_parts_of_a_model(block: Block, tmp_path, monkeypatch, capsys):
    text = f"models:\n  - id: chat\n{block.text}"
    assert checked(text, tmp_path, monkeypatch, capsys) == []


@of_kind("replicas")
def test_the_gateway_accepts_lists_of_replicas(block: Block, tmp_path, monkeypatch, capsys):
    (tmp_path / "secret").write_text(SECRET)
    listed = re.sub(r"file:/run/secrets/[\w/-]+", f"file:{tmp_path}/secret", block.text)
    (tmp_path / "replicas.yaml").write_text(listed)
    text = "models: [{id: chat, discover: {file: {path: /etc/prefix-gateway/replicas.yaml}}}]"
    assert checked(text, tmp_path, monkeypatch, capsys) == []


def test_a_mistake_would_be_found(tmp_path, monkeypatch, capsys):
    text = "models: [{id: chat, replicas: ['http://vllm-0:8000']}]\nqueue: {busy: 1}"
    (problem,) = checked(text, tmp_path, monkeypatch, capsys)
    assert "queue.busy" in problem


@needs_helm
@of_kind("chart")
def test_helm_and_kubernetes_accept_the_charts_values(block: Block, tmp_path):
    manifests = rendered(yaml.safe_load(block.text))
    for manifest in manifests:
        validate(manifest)
    (config,) = [each["data"]["gateway.yaml"] for each in manifests if each["kind"] == "ConfigMap"]
    assert accepted(config, tmp_path).models


@of_kind("kubernetes")
def test_kubernetes_accepts_manifests(block: Block):
    for manifest in yaml.safe_load_all(block.text):
        validate(manifest)


@of_kind("role")
def test_kubernetes_accepts_rules_of_a_role(block: Block):
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "gateway"}}
    validate(head | yaml.safe_load(block.text))


@of_kind("compose")
def test_services_are_like_those_of_the_stack(block: Block):
    """Keys that the stack uses, which `make test-containers` runs; as confined as there."""
    known = {key for service in COMPOSE["services"].values() for key in service}
    for service in yaml.safe_load(block.text)["services"].values():
        assert set(service) <= known
        assert re.search(r":[\w.-]+$", service["image"])
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@of_kind("prometheus")
def test_prometheus_accepts_its_configurations(block: Block, tmp_path):
    for name in ("rules.yml", "alerts.yml"):
        (tmp_path / name).write_text((ROOT / "deploy" / "prometheus" / name).read_text())
    (tmp_path / "token").write_text("token")
    file = tmp_path / "prometheus.yml"
    file.write_text(re.sub(r"/etc/prometheus/[\w.-]+\.token", str(tmp_path / "token"), block.text))
    done = subprocess.run([program("promtool"), "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_variables_of_the_compose_stack_on_pages_exist():
    example = (ROOT / ".env.example").read_text()
    known = set(re.findall(r"^#(\w+)=", example, re.MULTILINE))
    shown = [block for page in PAGES for block in blocks(page) if block.kind == "ini"]
    assert shown
    for block in shown:
        assert set(re.findall(r"^(\w+)=", block.text, re.MULTILINE)) <= known, block.place
