"""``prefix-gateway serve`` as a process."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from patience import HANG_SECONDS
from running_gateway import eventually

COMMAND = [sys.executable, "-m", "gateway"]


class Serving:
    """A running ``prefix-gateway serve``."""

    def __init__(self, process: asyncio.subprocess.Process, config: Path) -> None:
        self.process = process
        self.config = config
        self.lines: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))

    async def read_to_the_end(self) -> None:
        """Wait until no process can write any more: the process that explains ends a moment after a killed gateway."""
        async with asyncio.timeout(HANG_SECONDS):
            await self._reader

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self.lines) if event["event"] == name]

    async def ready(self) -> "Serving":
        await eventually(lambda: any("gateway_ready" in line for line in self.lines) or self._reader.done())
        (event,) = self.events("gateway_ready")
        self.url, self.admin_url = (event[side].replace("0.0.0.0", "127.0.0.1") for side in ("public", "admin"))
        return self

    async def exit_code(self, seconds: float = HANG_SECONDS) -> int:
        async with asyncio.timeout(seconds):
            code = await self.process.wait()
            await self._reader
        return code
