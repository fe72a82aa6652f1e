"""What is deployed on Kubernetes: the files of ``deploy/kubernetes`` and what the chart renders."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from gateway.config.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "prefix-gateway"
SECRETS = "/run/secrets/prefix-gateway"
SECRET_VALUES = {
    "admin-token": "a-token-for-operators",
    "metrics-token-hash": "sha256:" + "0" * 64,
    "spaces-secret": "5" * 64,
    "state": "redis://:a-password@redis:6379/0",
}
OLDEST, NEWEST = "1.27", "1.37"

Manifest = dict[str, Any]


def read(file: Path) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def by_name(manifests: Iterable[Manifest]) -> dict[tuple[str, str], Manifest]:
    """By kind and name. Fails if one stands there twice."""
    found: dict[tuple[str, str], Manifest] = {}
    for each in manifests:
        key = each["kind"], each["metadata"]["name"]
        assert key not in found, key
        found[key] = each
    return found


def validate(manifest: Manifest) -> None:
    """Fails if Kubernetes would refuse it, or would drop a field that it does not know."""
    if manifest["kind"] == "ServiceMonitor":  # of the Prometheus operator; no release of Kubernetes defines it
        return
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(manifest, version, strict=True)


def accepted(config: str, folder: Path) -> Settings:
    """The configuration as the pod's gateway reads it, its secrets being mounted."""
    for name, value in SECRET_VALUES.items():
        (folder / name).write_text(value)
    file = folder / "gateway.yaml"
    file.write_text(config.replace(f"file:{SECRETS}/", f"file:{folder}/"))
    return load_settings(file, {})
