"""The gateway under test: a real ``prefix-gateway serve`` with a configuration file, as a user starts it."""

import json
import sys
from pathlib import Path

from tests.engine.replica import MODEL, MODEL_FOLDER, SLOTS, Process, free_port


def start_gateway(folder: Path, replicas: list[Process], chat_template: Path) -> Process:
    """Write the configuration and start the gateway in front of the replicas. Ready when ``/readyz`` answers."""
    port = free_port()
    config = folder / "gateway.yaml"
    # JSON is YAML.
    settings = {
        "server": {"port": port, "admin_port": free_port()},
        "log": {"format": "json"},
        "models": [
            {
                "id": MODEL,
                "tokenizer": str(MODEL_FOLDER),
                "chat_template": str(chat_template),
                "replicas": [{"url": replica.url, "id": replica.name} for replica in replicas],
            }
        ],
        # What one thread of this machine does, to start from; the real speed is learned from the first answers.
        "placement": {"prefill_tokens_per_second": 200, "base_ttft_seconds": 0.1, "slots": SLOTS},
    }
    config.write_text(json.dumps(settings, indent=1))
    program = str(Path(sys.executable).with_name("prefix-gateway"))
    return Process([program, "serve", "--config", str(config)], port, folder / "gateway.log")
