"""Write down what a real engine publishes about its cache, and what its cache really held at the time.

``python -m tests.engine.capture_events [NAME…]`` writes ``tests/golden/kv_events/vllm-….json.gz``, by default all of
them: ``everything-int`` and ``everything-bytes`` (one scenario under both forms of hashes), ``hybrid`` (two cache
groups, one of them a sliding window), ``reports`` (blocks stored that are none) and ``servers`` (what a server with one
and with two data-parallel ranks reports: its event sockets, its metrics, its first batches).
"""

import base64
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import zmq

from tests.engine.places import DEMO_TEMPLATE, GOLDEN
from tests.engine.replica import ENVIRONMENT, HOME, MODEL, MODEL_FOLDER, START_SECONDS, Ports, start_replica
from tests.engine.texts import prose

TARGET = GOLDEN / "kv_events"

_SCENARIOS = {
    "everything-int": ("everything", "1"),
    "everything-bytes": ("everything", "0"),
    "hybrid": ("hybrid", "1"),
    "reports": ("reports", "1"),
}
NAMES = (*_SCENARIOS, "servers")
_SCENARIO_SECONDS = 900
_REPLAY_SECONDS = 10
_METRICS = (
    "vllm:cache_config_info",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "process_start_time_seconds",
    "python_info",
    "vllm:time_to_first_token_seconds_count",
)
"""Beginnings of the lines of a metrics page that are kept: what the gateway reads, and some that it has to skip."""


def main(names: Sequence[str]) -> None:
    """Record the captures of these names."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            document = _servers(Path(temporary)) if name == "servers" else _capture(Path(temporary), *_SCENARIOS[name])
            _write(name, document)


def _capture(folder: Path, scenario: str, int_hashes: str) -> dict[str, Any]:
    target = folder / f"{scenario}-{int_hashes}.json"
    program = [str(HOME / "venv" / "bin" / "python"), str(Path(__file__).with_name("capture_scenarios.py"))]
    changed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": int_hashes}
    log = target.with_suffix(".log")
    with log.open("wb") as output:
        ended = subprocess.run(
            [*program, str(MODEL_FOLDER), scenario, str(target)],
            env=os.environ | ENVIRONMENT | changed,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_SCENARIO_SECONDS,
            check=False,
        )
    if ended.returncode:
        raise SystemExit("\n".join(log.read_text(errors="replace").splitlines()[-25:]))
    document: dict[str, Any] = json.loads(target.read_text())
    return {"environment": changed, **document}


def _servers(folder: Path) -> dict[str, Any]:
    return {"one": _server(folder, "one", []), "two": _server(folder, "two", ["--data-parallel-size", "2"])}


def _server(folder: Path, name: str, more: list[str]) -> dict[str, Any]:
    """A server just started, each of its ranks asked once."""
    server = start_replica(folder, name, DEMO_TEMPLATE, Ports.free(), more)
    try:
        server.wait_ready("/health", START_SECONDS)
        with httpx.Client(base_url=server.url, timeout=120.0) as client:
            sources = client.get("/kv_event_sources").json()
            for rank in sources:
                body = {"model": MODEL, "prompt": prose(int(rank), 5), "max_tokens": 1}
                client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": rank}).raise_for_status()
            page = client.get("/metrics").text
            version = client.get("/version").json()["version"]
        replayed = {rank: _replay(source["replay_endpoint"]) for rank, source in sources.items()}
    finally:
        server.stop()
    return {
        "engine": f"vLLM {version}",
        "more_flags": more,
        "kv_event_sources": sources,
        "replay": replayed,
        "metrics": [line for line in page.splitlines() if line.removeprefix("# HELP ").startswith(_METRICS)],
    }


def _replay(endpoint: str) -> list[list[str]]:
    """All that a rank has published, as its replay socket gives it, base64."""
    answer = []
    with zmq.Context.instance().socket(zmq.DEALER) as asking:
        asking.connect(endpoint.replace("*", "127.0.0.1"))
        asking.send_multipart([b"", bytes(8)])
        while asking.poll(_REPLAY_SECONDS * 1000):
            frames = asking.recv_multipart()
            answer.append([base64.b64encode(frame).decode() for frame in frames])
            if frames[2] == b"\xff" * 8:
                return answer
    raise SystemExit(f"{endpoint}: the replay did not end")


def _write(name: str, document: dict[str, Any]) -> None:
    version = document.get("one", document)["engine"].removeprefix("vLLM ")
    text = json.dumps({"written_by": "python -m tests.engine.capture_events", **document}, separators=(",", ":"))
    target = TARGET / f"vllm-{version}-{name}.json.gz"
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{target.name}: {target.stat().st_size // 1024} KiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
