"""An explain client with a real process behind it, and access to what both received."""

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from patience import HANG_SECONDS

from gateway.config.telemetry_settings import ExplainSettings
from gateway.explain.worker.explain_client import ExplainClient
from gateway.explain.worker.explain_messages import CanonOptions
from gateway.explain.worker.explain_supervisor import ExplainTimeouts

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"
QUICK = ExplainTimeouts(
    tick_seconds=0.05, silent_ticks=60, starting_ticks=600, first_pause_seconds=0.05, answer_seconds=10
)
"""A process that is silent for a second hangs."""


class Counts:
    """An ``ExplainObserver``."""

    def __init__(self) -> None:
        self.missed: Counter[str] = Counter()
        self.labels: set[tuple[str, str]] = set()
        self.skipped = 0
        self.canonical: Counter[tuple[str, str, str]] = Counter()

    def on_missed(self, model, tenant, reason, tokens):
        assert tokens > 0
        self.missed[str(reason)] += tokens
        self.labels.add((model, tenant))

    def on_explain_skipped(self, count):
        self.skipped += count

    def on_canonical(self, rule, mode, edits, saved, lost):
        self.canonical += Counter(
            {(rule, mode, "edits"): edits, (rule, mode, "saved"): saved, (rule, mode, "lost"): lost}
        )


class ClientHarness:
    """An explain client, started.

    Attributes:
        counts: What it counted.
    """

    def __init__(
        self,
        folder: Path,
        *,
        timeouts: ExplainTimeouts = QUICK,
        command: list[str] | None = None,
        canon: CanonOptions | None = None,
        **fields: Any,
    ):
        self.counts = Counts()
        self.log_file = folder / "received.jsonl"
        self.settings = ExplainSettings(**fields)
        self.client = ExplainClient(
            self.settings,
            self.counts,
            {"demo": 2},
            canon,
            command=command or (sys.executable, str(FAKE_WORKER), str(self.log_file)),
            timeouts=timeouts,
        )

    async def __aenter__(self) -> "ClientHarness":
        self.client.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.stop()

    async def summary(self, **arguments: str) -> dict[str, Any]:
        return json.loads(await self.client.ask("summary", arguments))

    async def pid(self) -> int:
        return (await self.summary())["pid"]

    def reported(self, kind: str) -> list[dict[str, Any]]:
        """What the process received, over all its restarts."""
        lines = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    async def missed(self, total: int) -> Counter[str]:
        """Wait until so many missed tokens are counted; none may come behind them."""
        await eventually(lambda: self.counts.missed.total() >= total)
        await asyncio.sleep(0.15)
        assert self.counts.missed.total() == total
        return self.counts.missed


async def eventually(holds, seconds: float = HANG_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process is there, dead ones that were not waited for included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
