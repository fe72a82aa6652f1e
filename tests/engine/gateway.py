"""The gateway under test: a real ``prefix-gateway serve`` with a configuration file, as a user starts it."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from benchmarks.free_ports import free_port
from tests.engine.replica import MODEL, MODEL_FOLDER, SLOTS, Process

PROGRAM = str(Path(sys.executable).with_name("prefix-gateway"))


class Gateway(Process):
    """A gateway's process, and what its admin port reports.

    Attributes:
        admin_url: Its admin port.
    """

    def __init__(self, command: list[str], port: int, admin_port: int, log: Path) -> None:
        super().__init__(command, port, log)
        self.admin_url = f"http://127.0.0.1:{admin_port}"

    def replicas(self) -> dict[str, dict[str, Any]]:
        """``/admin/api/replicas``, by the replicas' ids."""
        found = httpx.get(f"{self.admin_url}/admin/api/replicas", timeout=30.0).json()["replicas"]
        return {replica["id"]: replica for replica in found}

    def total(self, metric: str, **labels: str) -> int:
        """Sum over all samples of a metric that have these labels."""
        page = httpx.get(f"{self.admin_url}/metrics", timeout=30.0).text
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        samples = [line for line in page.splitlines() if line.startswith(f"{metric}{{")]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in samples if all(part in line for part in wanted))


def start_gateway(
    folder: Path,
    replicas: list[Process],
    chat_template: Path,
    name: str = "gateway",
    events: str = "auto",
    regions: Mapping[str, str] | None = None,
    api_keys: Mapping[str, str] | None = None,
    **sections: Any,
) -> Gateway:
    """Write the configuration and start a gateway in front of the replicas. Ready when ``/readyz`` answers.

    Args:
        folder: Where its configuration and log go.
        replicas: The replicas.
        chat_template: The file with their chat template.
        name: Its name.
        events: As ``models[].replicas[].events``.
        api_keys: ``models[].replicas[].api_key``, by the replicas' names.
        regions: ``models[].replicas[].region``, by the replicas' names.
        **sections: Further sections of the configuration.
    """
    port, admin_port = free_port(), free_port()
    config = folder / f"{name}.yaml"
    # JSON is YAML.
    settings = {
        "server": {"port": port, "admin_port": admin_port, "drain_seconds": 0},
        "log": {"format": "json"},
        "models": [
            {
                "id": MODEL,
                "tokenizer": str(MODEL_FOLDER),
                "chat_template": str(chat_template),
                "replicas": [
                    {
                        "url": replica.url,
                        "id": replica.name,
                        "events": events,
                        "region": (regions or {}).get(replica.name, ""),
                        "api_key": (api_keys or {}).get(replica.name),
                    }
                    for replica in replicas
                ],
            }
        ],
        # What one thread of this machine does, to start from; the real speed is learned from the first answers.
        "placement": {"prefill_tokens_per_second": 200, "base_ttft_seconds": 0.1, "slots": SLOTS},
        **sections,
    }
    config.write_text(json.dumps(settings, indent=1))
    return Gateway([PROGRAM, "serve", "--config", str(config)], port, admin_port, folder / f"{name}.log")
