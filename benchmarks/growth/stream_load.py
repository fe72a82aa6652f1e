"""Opens streams and counts their chunks: ``stream_load PORT BODY STREAMS SECONDS PID...``.

Once all streams are open, the CPU time of the processes and the chunks that arrive are counted for some seconds.
Prints what it counted as JSON, and breaks the connections off.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from benchmarks.overhead.load import HEAD
from benchmarks.overhead.processes import cpu_seconds

_OPENING = 64
"""Streams that are being opened at the same time."""
_SETTLE_SECONDS = 2.0


class Stream(asyncio.Protocol):
    """One stream.

    Attributes:
        chunks: Chunks received by all streams.
        failed: Streams that were answered with an error or broken off.
    """

    chunks = 0
    failed = 0

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.open = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        transport.write(self._request)

    def data_received(self, data):
        Stream.chunks += data.count(b"data: ")
        if not self.open.done():
            Stream.failed += not data.startswith(b"HTTP/1.1 200")
            self.open.set_result(None)

    def connection_lost(self, exc):
        Stream.failed += 1
        if not self.open.done():
            self.open.set_result(None)


async def main(port: int, body: bytes, streams: int, seconds: float, pids: list[int]) -> None:
    request = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    loop = asyncio.get_running_loop()
    opening = asyncio.Semaphore(_OPENING)

    async def opened() -> None:
        async with opening:
            _, stream = await loop.create_connection(lambda: Stream(request), "127.0.0.1", port)
            await stream.open

    await asyncio.gather(*(opened() for _ in range(streams)))
    await asyncio.sleep(_SETTLE_SECONDS)
    began, chunks, cpu = time.perf_counter(), Stream.chunks, cpu_seconds(*pids)
    await asyncio.sleep(seconds)
    counted = {
        "chunks": Stream.chunks - chunks,
        "cpu": cpu_seconds(*pids) - cpu,
        "seconds": time.perf_counter() - began,
        "failed": Stream.failed,
    }
    print(json.dumps(counted), flush=True)


if __name__ == "__main__":
    port, file, count, duration, *pids = sys.argv[1:]
    uvloop.run(main(int(port), Path(file).read_bytes(), int(count), float(duration), list(map(int, pids))))
