"""The plain manifests are valid, fit together, and fit the gateway."""

import copy
import os
import re
import subprocess

import kubernetes_validate
import pytest
import yaml
from external import program
from manifests import KUBERNETES, SECRET_VALUES, SECRETS, accepted, by_name, read, validate
from prometheus_client.metrics import MetricWrapperBase

from gateway.core.api_keys import hash_key
from gateway.telemetry import MetricCatalog

KUSTOMIZATIONS = [KUBERNETES, KUBERNETES / "monitoring", KUBERNETES / "autoscaling"]
FILES = [
    folder / name
    for folder in KUSTOMIZATIONS
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
]
ALL = by_name(manifest for file in FILES for manifest in read(file))
DEPLOYMENT = ALL["Deployment", "prefix-gateway"]
POD = DEPLOYMENT["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


@pytest.mark.parametrize("file", [*FILES, KUBERNETES / "vllm.yaml"], ids=lambda file: file.name)
def test_kubernetes_accepts_every_manifest(file):
    for manifest in read(file):
        validate(manifest)


def test_a_field_that_does_not_exist_is_refused():
    misspelt = copy.deepcopy(DEPLOYMENT)
    misspelt["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        validate(misspelt)


def test_no_file_is_forgotten():
    others = {"gateway.yaml", "kustomization.yaml", "vllm.yaml", "prometheus-adapter.yaml"}
    assert {file for file in KUBERNETES.rglob("*.yaml") if file.name not in others} == set(FILES)


def test_the_gateway_accepts_its_configuration(tmp_path):
    settings = accepted((KUBERNETES / "gateway.yaml").read_text(), tmp_path)
    server = settings.server
    assert {"http": server.port, "admin": server.admin_port} == {
        port["name"]: port["containerPort"] for port in CONTAINER["ports"]
    }
    assert POD["spec"]["terminationGracePeriodSeconds"] >= server.drain_seconds + server.shutdown_grace_seconds + 10
    (model,) = settings.models
    service = model.discover.kubernetes
    engines = by_name(read(KUBERNETES / "vllm.yaml"))
    assert service.port in {port["name"] for port in engines["Service", service.service]["spec"]["ports"]}
    assert (
        f"--served-model-name={model.id}"
        in (engines["StatefulSet", "vllm"]["spec"]["template"]["spec"]["containers"][0]["args"])
    )


def test_the_configuration_and_its_secrets_are_where_the_gateway_looks():
    volumes = {volume["name"]: volume for volume in POD["spec"]["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in CONTAINER["volumeMounts"]}
    (generated,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    assert mounted["/etc/prefix-gateway"]["configMap"]["name"] == generated["name"]
    assert generated["files"] == ["gateway.yaml"]  # the file that the image serves by default
    assert mounted[SECRETS]["secret"]["secretName"] == "prefix-gateway"
    named = set(re.findall(rf"file:{SECRETS}/([\w-]+)", (KUBERNETES / "gateway.yaml").read_text()))
    assert named == set(SECRET_VALUES)


def test_the_secret_that_the_script_makes_has_what_is_asked_for(tmp_path):
    """It is run with a kubectl that prints what it was asked."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    kubectl.chmod(0o755)
    program("openssl")
    reported = subprocess.run(
        [KUBERNETES / "make-secrets", "inference"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    assert reported[:5] == ["--namespace", "inference", "create", "secret", "generic"]
    made = dict(line.removeprefix("--from-literal=").split("=", 1) for line in reported if line.startswith("--from"))
    assert made["metrics-token-hash"] == hash_key(made["metrics-token"])
    password = made["redis.conf"].removeprefix("requirepass ")
    assert made["state"] == f"redis://:{password}@prefix-gateway-redis:6379/0"
    assert len({made[name] for name in ("admin-token", "metrics-token", "spaces-secret")} | {password}) == 4
    read_by_prometheus = ALL["ServiceMonitor", "prefix-gateway"]["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert set(made) == set(SECRET_VALUES) | {read_by_prometheus["key"], "redis.conf"}


def test_probes_services_and_policies_name_ports_that_are_there():
    ports = {port["name"] for port in CONTAINER["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] in ports
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for name in ("prefix-gateway", "prefix-gateway-admin"):
        service = ALL["Service", name]["spec"]
        assert {port["targetPort"] for port in service["ports"]} <= ports
        assert service["selector"].items() <= POD["metadata"]["labels"].items()
    policy = ALL["NetworkPolicy", "prefix-gateway"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= POD["metadata"]["labels"].items()
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    budget = ALL["PodDisruptionBudget", "prefix-gateway"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= POD["metadata"]["labels"].items()


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "prefix-gateway"), ("StatefulSet", "prefix-gateway-redis")])
def test_pods_fit_the_restricted_level_and_cannot_write_to_their_root(kind, name):
    spec = ALL[kind, name]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_pods_may_look_up_the_engines_and_nothing_else():
    (rule,) = ALL["Role", "prefix-gateway-discovery"]["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    binding = ALL["RoleBinding", "prefix-gateway-discovery"]
    assert binding["roleRef"]["name"] == "prefix-gateway-discovery"
    assert [subject["name"] for subject in binding["subjects"]] == [POD["spec"]["serviceAccountName"]]
    assert POD["spec"]["automountServiceAccountToken"] is True


def test_autoscaling_goes_by_a_metric_that_the_gateway_has():
    (metric,) = ALL["HorizontalPodAutoscaler", "prefix-gateway"]["spec"]["metrics"]
    (rule,) = yaml.safe_load((KUBERNETES / "autoscaling" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    known = {each._name for each in vars(MetricCatalog()).values() if isinstance(each, MetricWrapperBase)}
    assert re.match(r"\w+", rule["seriesQuery"])[0] in known


def test_prometheus_finds_the_admin_port_of_every_pod():
    monitor = ALL["ServiceMonitor", "prefix-gateway"]["spec"]
    service = ALL["Service", "prefix-gateway-admin"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert (
        not monitor["selector"]["matchLabels"].items() <= ALL["Service", "prefix-gateway"]["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    # The job name that alerts look for.
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "prefix-gateway"
