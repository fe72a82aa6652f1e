"""The process of an attack: builds its bodies, says so, and attacks from a line on standard input to SIGTERM.

``python -m benchmarks.hostile.attacker NAME JSON``, with a ``Target``. It ends by printing how its requests ended.
"""

import asyncio
import gc
import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict

from benchmarks.hostile.attacks import CATALOG
from benchmarks.hostile.attacks.attack import Target
from gateway.http_client.open_files import raise_open_files

_LONGEST_BUILD = 120.0
_END_SECONDS = 30.0
_MOST_KINDS = 6


class Attacker:
    """An attack in a process of its own, from where it is ready to where it has ended."""

    def __init__(self, name: str, target: Target) -> None:
        self._command = (sys.executable, "-m", "benchmarks.hostile.attacker", name, json.dumps(asdict(target)))

    async def ready(self) -> None:
        """Start the process, and wait until its bodies are built."""
        pipe = subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        assert self._process.stdout is not None
        async with asyncio.timeout(_LONGEST_BUILD):
            if await self._process.stdout.readline() != b"ready\n":
                raise SystemExit(f"the attack failed to start: {' '.join(self._command)}")

    def go(self) -> None:
        """Attack."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def end(self) -> Counter[str]:
        """Stop attacking; how requests ended."""
        assert self._process.stdout is not None
        self._process.terminate()
        try:
            async with asyncio.timeout(_END_SECONDS):
                said = await self._process.stdout.read()
        except TimeoutError:
            said = b""
            self._process.kill()
        await self._process.wait()
        return Counter[str](json.loads(said or b"{}"))


async def _attack(name: str, target: Target) -> None:
    run = CATALOG[name].make(target)
    gc.freeze()
    ends: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if not await reader.readline():
        return
    orphaned = asyncio.ensure_future(reader.read())  # ends with the process that measures
    task = asyncio.ensure_future(run(target, ends))
    ended = asyncio.ensure_future(over.wait())
    await asyncio.wait([task, ended, orphaned], return_when=asyncio.FIRST_COMPLETED)
    for each in (ended, orphaned):
        each.cancel()
    if task.done():
        task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    most = Counter(dict(ends.most_common(_MOST_KINDS)))
    most["other"] += ends.total() - most.total()
    print(json.dumps(+most), flush=True)


if __name__ == "__main__":
    raise_open_files()
    asyncio.run(_attack(sys.argv[1], Target(**json.loads(sys.argv[2]))))
