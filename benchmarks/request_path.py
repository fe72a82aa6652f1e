"""What one warm chat request executes inside the gateway: files, calls, and changes from one file to another.

    python -m benchmarks.request_path [--requests 20] [--json]

A gateway runs in this process in front of a simulated engine in another one, with all defaults on (explanations
included). After ten requests that warm every cache, each request of the measured ones is traced alone: every call of a
Python function or resumption of a coroutine whose code lies in `gateway/` counts as one call, and two consecutive
calls in different files as one switch. What runs in other tasks at the time (health checks, event feeds) counts too, so
the median over the requests is shown. `plain` is a request that is not streamed; `streamed` one with eight chunks.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

import gateway
from benchmarks.free_ports import free_port
from benchmarks.isolation import wait_for
from gateway.app import Gateway
from gateway.config.settings import load_settings
from gateway.http_client.open_files import FileLimits
from gateway.server.http_server import HttpServer, bound
from gateway.server.port import PortOptions
from gateway.server.public_handler import PublicHandler

PACKAGE = str(Path(gateway.__file__).parent) + os.sep
CHUNKS = 8


@dataclass
class Executed:
    """What was executed while it was in force.

    Attributes:
        calls: Calls of functions, and resumptions of coroutines, in the gateway's own code.
        switches: Consecutive ones in different files.
        files: The files.
    """

    calls: int = 0
    switches: int = 0
    files: set[str] = field(default_factory=set)
    _last: str = ""

    def trace(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function (``sys.setprofile``)."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        self.calls += 1
        self.switches += name != self._last
        self._last = name
        self.files.add(name[len(PACKAGE) :])


def chat(*, stream: bool) -> bytes:
    """A request of about 10 KB whose text is the same every time."""
    system = " ".join(f"Guideline {n}: stay friendly and quote paragraph {n * 7} when asked." for n in range(130))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "How do I cancel a booking?"}]
    body = {"model": "m", "messages": messages, "max_tokens": CHUNKS, "stream": stream}
    return json.dumps(body).encode()


async def ask(port: int, body: bytes) -> None:
    """Send one request on a connection of its own, and read the response to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    response = await reader.read()
    writer.close()
    assert response.startswith(b"HTTP/1.1 200"), response[:300]


async def measured(send: Callable[[], Awaitable[None]], requests: int) -> list[Executed]:
    """What each of some requests executes."""
    for _ in range(10):
        await send()
        await asyncio.sleep(0.05)
    results = []
    for _ in range(requests):
        await asyncio.sleep(0.2)  # what follows the request before is over
        executed = Executed()
        sys.setprofile(executed.trace)
        await send()
        await asyncio.sleep(0.1)  # what follows the response belongs to the request
        sys.setprofile(None)
        results.append(executed)
    return results


def shown(name: str, results: list[Executed]) -> dict[str, Any]:
    """The median of each figure."""
    typical = min(results, key=lambda each: (abs(each.calls - statistics.median(r.calls for r in results)), each.calls))
    return {
        "request": name,
        "files": len(typical.files),
        "calls": typical.calls,
        "file switches": typical.switches,
        "names": sorted(typical.files),
    }


async def run(requests: int, engine: str) -> list[dict[str, Any]]:
    """Both kinds of request, through a gateway in this process."""
    port, admin_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.yaml"
        config.write_text(
            f"server: {{port: {port}, admin_port: {admin_port}}}\n"
            f"models: [{{id: m, tokenizer: 'builtin:demo', replicas: ['{engine}']}}]\n"
        )
        settings = load_settings(config)
    built = Gateway(settings)
    await built.start()
    server = HttpServer(PublicHandler(built.public), PortOptions.of(settings, FileLimits.of_public_port))
    serving = asyncio.create_task(server.serve([bound("server.port", "127.0.0.1", port)]))
    await server.listens(serving)
    try:
        return [
            shown(name, await measured(partial(ask, port, chat(stream=stream)), requests))
            for name, stream in (("plain", False), ("streamed", True))
        ]
    finally:
        server.stop()
        await serving
        await built.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20, help="requests of each kind (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the names of the files")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    port = free_port()
    command = [sys.executable, "-m", "gateway", "engine", "--port", str(port), "--model", "m", "--decode-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as engine:
        try:
            wait_for(f"http://127.0.0.1:{port}/health")
            results = asyncio.run(run(options.requests, f"http://127.0.0.1:{port}"))
        finally:
            engine.terminate()
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'request':10}{'files':>8}{'calls':>8}{'file switches':>16}")
    for each in results:
        print(f"{each['request']:10}{each['files']:8}{each['calls']:8}{each['file switches']:16}")


if __name__ == "__main__":
    main()
