"""The chart, rendered by Helm's own library: valid, accepted by the gateway, and the same as the plain manifests."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import CHART, KUBERNETES, SECRETS, Manifest, accepted, by_name, read, validate

from gateway.core.api_keys import hash_key

pytestmark = pytest.mark.skipif(
    find_spec("helm_python") is None and not os.environ.get("PREFIX_GATEWAY_REQUIRE_ALL"),
    reason="helm-python-sdk has no package for this machine",
)
RENDER = Path(__file__).parent / "render_chart.py"
MODELS = [{"id": "chat", "replicas": ["http://vllm-0.vllm:8000"]}]
LEAST: dict[str, Any] = {"config": {"models": MODELS, "admission": {"open": True}}}
MOST: dict[str, Any] = {
    "config": {**LEAST["config"], "server": {"drain_seconds": 2.5, "shutdown_grace_seconds": 300, "admin_tokens": []}},
    "image": {"repository": "registry.example.com/gateway", "digest": "sha256:" + "a" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "secrets": {"redisUrl": "rediss://:p%40ss@redis.example.com:6380/1"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "discovery": {"enabled": True, "namespaces": ["engines-a", "engines-b"]},
    "serviceAccount": {"annotations": {"example.com/role": "gateway"}},
    "service": {"type": "LoadBalancer", "port": 8000, "annotations": {"example.com/internal": "true"}},
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"team": "inference"},
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
        "operators": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "engines": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "engines-a"}}}],
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 6380, "protocol": "TCP"}]}],
    },
    "autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 30},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}


def rendered(values: dict[str, Any], release: str = "prefix-gateway", namespace: str = "inference") -> list[Manifest]:
    answer = _ask(values, release, namespace)
    assert "refused" not in answer, answer["refused"]
    texts = [text for name, text in answer["files"].items() if not name.endswith("NOTES.txt")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def refusal(values: dict[str, Any]) -> str:
    return str(_ask(values, "prefix-gateway", "inference").get("refused", ""))


def _ask(values: dict[str, Any], release: str, namespace: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, RENDER, CHART, release, namespace],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("values", [LEAST, MOST], ids=["least", "most"])
def test_what_it_renders_is_valid_and_in_the_gateways_words(values, tmp_path):
    everything = rendered(values)
    for manifest in everything:
        validate(manifest)
    manifests = _of_its_namespace(everything)
    settings = accepted(manifests["ConfigMap", "prefix-gateway"]["data"]["gateway.yaml"], tmp_path)
    pod = manifests["Deployment", "prefix-gateway"]["spec"]["template"]["spec"]
    server = settings.server
    assert (server.host, server.admin_host) == ("0.0.0.0", "0.0.0.0")
    assert pod["terminationGracePeriodSeconds"] >= server.drain_seconds + server.shutdown_grace_seconds + 10
    assert {port["containerPort"] for port in pod["containers"][0]["ports"]} == {server.port, server.admin_port}
    assert (settings.state is None) == (values is LEAST)
    assert [model.id for model in settings.models] == ["chat"]


def test_every_option_reaches_what_it_is_for():
    manifests = _of_its_namespace(rendered(MOST))
    deployment = manifests["Deployment", "prefix-gateway"]["spec"]
    assert "replicas" not in deployment  # the autoscaler's
    pod = deployment["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.com/gateway@sha256:" + "a" * 64
    assert pod["terminationGracePeriodSeconds"] == 3 + 300 + 10
    assert deployment["template"]["metadata"]["labels"]["team"] == "inference"
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert manifests["Secret", "prefix-gateway"]["stringData"]["state"] == MOST["secrets"]["redisUrl"]
    policy = manifests["NetworkPolicy", "prefix-gateway"]["spec"]
    assert policy["ingress"][0]["from"] == MOST["networkPolicy"]["clients"]
    assert policy["egress"][-1] == MOST["networkPolicy"]["extraEgress"][0]
    roles = [each for each in rendered(MOST) if each["kind"] == "RoleBinding"]
    assert {each["metadata"]["namespace"] for each in roles} == {"engines-a", "engines-b"}
    assert {each["subjects"][0]["namespace"] for each in roles} == {"inference"}


def test_the_secret_it_makes_fits_the_configuration():
    secret = by_name(rendered(LEAST))["Secret", "prefix-gateway"]["stringData"]
    assert secret["metrics-token-hash"] == hash_key(secret["metrics-token"])
    assert len({secret["admin-token"], secret["metrics-token"], secret["spaces-secret"]}) == 3
    assert min(len(value) for value in secret.values()) >= 48
    another = by_name(rendered(LEAST))["Secret", "prefix-gateway"]["stringData"]
    assert another["admin-token"] != secret["admin-token"]


def test_a_secret_of_ones_own_takes_the_place_of_the_charts():
    values = {**LEAST, "secrets": {"existing": "mine", "state": True}, "serviceMonitor": {"enabled": True}}
    manifests = by_name(rendered(values))
    assert not [key for key in manifests if key[0] == "Secret"]
    pod = manifests["Deployment", "prefix-gateway"]["spec"]["template"]["spec"]
    assert [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume] == ["mine"]
    (endpoint,) = manifests["ServiceMonitor", "prefix-gateway"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == "mine"
    config = yaml.safe_load(manifests["ConfigMap", "prefix-gateway"]["data"]["gateway.yaml"])
    assert config["state"] == f"file:{SECRETS}/state"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "models"),
        ({"config": {"models": []}}, "models"),
        ({**LEAST, "replicaCount": 0}, "replicaCount"),
        ({**LEAST, "imge": {}}, "imge"),
        ({**LEAST, "autoscaling": {"enable": True}}, "enable"),
    ],
    ids=["nothing", "no models", "no replicas", "misspelt", "misspelt below"],
)
def test_values_that_cannot_work_are_refused_by_name(values, said):
    assert said in refusal(values)


def test_it_renders_the_plain_manifests():
    """One deployment in two forms: what differs is named here."""
    config = yaml.safe_load((KUBERNETES / "gateway.yaml").read_text())
    base = {
        "config": config,
        "secrets": {"existing": "prefix-gateway", "state": True},
        "discovery": {"enabled": True},
        "serviceMonitor": {"enabled": True},
    }
    from_chart = by_name(rendered(base, namespace="prefix-gateway"))
    scaled = by_name(rendered({**base, "autoscaling": {"enabled": True}}, namespace="prefix-gateway"))
    from_chart["HorizontalPodAutoscaler", "prefix-gateway"] = scaled["HorizontalPodAutoscaler", "prefix-gateway"]
    rendered_config = yaml.safe_load(from_chart.pop(("ConfigMap", "prefix-gateway"))["data"]["gateway.yaml"])
    tokens = config["server"].pop("admin_tokens")
    # The chart puts its own in front of those of the values.
    assert rendered_config["server"].pop("admin_tokens") == tokens + tokens
    assert rendered_config == config

    plain = by_name(
        manifest
        for file in KUBERNETES.rglob("*.yaml")
        if file.name not in ("gateway.yaml", "kustomization.yaml", "vllm.yaml", "prometheus-adapter.yaml", "redis.yaml")
        for manifest in read(file)
    )
    assert {key: _comparable(manifest) for key, manifest in plain.items()} == {
        key: _comparable(manifest) for key, manifest in from_chart.items()
    }


def _of_its_namespace(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return by_name(each for each in manifests if "namespace" not in each["metadata"])


def _comparable(manifest: Manifest) -> Manifest:
    """Without the labels that only say who made it, and without the namespace, which kustomize puts in."""
    reported = json.loads(json.dumps(manifest))
    reported["metadata"].pop("namespace", None)
    for label in ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"):
        reported["metadata"].get("labels", {}).pop(label, None)
    return dict(reported)
