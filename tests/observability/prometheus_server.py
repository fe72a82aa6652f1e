"""A real Prometheus, in a folder of its own, that scrapes one gateway every half second."""

import math
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml
from external import program
from patience import HANG_SECONDS
from shipped import PROMETHEUS

from benchmarks.free_ports import free_port

SCRAPE_SECONDS = 0.5


class Prometheus:
    """Configured as the shipped example is, but for its target and how often it looks."""

    def __init__(self, folder: Path, target: str) -> None:
        config: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS * 1000:.0f}ms", "evaluation_interval": "1s"}
        config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={file}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                    "--enable-feature=exemplar-storage",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._http = httpx.Client(base_url=f"http://{address}", timeout=60, trust_env=False)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + HANG_SECONDS
        while not self._ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(60)

    def values(self, expr: str, *, instant: bool, seconds: float) -> list[float]:
        """All numbers that a query gives: now, or over the last seconds. Those that are no number are left out."""
        now = time.time()
        if instant:
            result = self._ask("query", query=expr, time=now)["result"]
            pairs = [series["value"] for series in result]
        else:
            result = self._ask("query_range", query=expr, start=now - seconds, end=now, step=1)["result"]
            pairs = [pair for series in result for pair in series["values"]]
        return [value for _, text in pairs if not math.isnan(value := float(text))]

    def label_values(self, label: str, selector: str) -> list[str]:
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": selector})
        return found

    def exemplars(self, expr: str, seconds: float) -> list[Mapping[str, Any]]:
        now = time.time()
        found = self._ask("query_exemplars", query=expr, start=now - seconds, end=now)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def healthy_rules(self) -> dict[str, list[Mapping[str, Any]]]:
        """What became of every rule, by name. Fails if one of them could not be worked out."""
        rules: dict[str, list[Mapping[str, Any]]] = {}
        for group in self._ask("rules")["groups"]:
            for rule in group["rules"]:
                assert rule["health"] == "ok", rule
                rules.setdefault(rule["name"], []).append(rule)
        return rules

    def scrape_problem(self) -> str:
        """What went wrong with the last scrape; empty if nothing did."""
        (target,) = self._ask("targets")["activeTargets"]
        return str(target["lastError"])

    def _ask(self, path: str, **parameters: Any) -> Any:
        answer = self._http.get(f"/api/v1/{path}", params=parameters)
        reported = answer.json()
        assert reported["status"] == "success", f"{parameters}: {reported.get('error')}"
        return reported["data"]

    def _ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False
