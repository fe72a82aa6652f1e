"""What the client of ``prefix-gateway measure`` adds to a TTFT: the same requests, in turn with two other clients.

    python -m benchmarks.measuring_client [--requests 300]

A blocking socket that does nothing else is the floor. httpx is what a script would use. The simulated engine, in a
process of its own, takes no time for prompts.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from statistics import quantiles

import httpx
import uvloop

from gateway.evaluation.measurement.stream_timing import StreamTimer
from gateway.http_client import Origin

PATH = "/v1/chat/completions"
BODY = json.dumps(
    {
        "model": "demo",
        "messages": [{"role": "user", "content": "Where is the parcel that was sent? " * 20}],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
).encode()
JSON = {"content-type": "application/json"}
LEFT_OUT = 10
"""First requests of each client: connections are made, and code is run for the first time."""


def has_text(data: bytes) -> bool:
    """Whether the bytes hold an event with text."""
    return any(piece[:1] not in (b"", b'"') for piece in data.split(b'"content":"')[1:])


def with_socket(sock: socket.socket) -> float:
    """TTFT with a blocking socket."""
    request = (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    data, first = b"", None
    began = time.perf_counter()
    sock.sendall(request.encode() + BODY)
    while not data.endswith(b"\r\n0\r\n\r\n"):
        data += sock.recv(65536)
        if first is None and has_text(data):
            first = time.perf_counter() - began
    assert first is not None
    return first


async def with_httpx(client: httpx.AsyncClient) -> float:
    """TTFT with httpx."""
    first = None
    began = time.perf_counter()
    async with client.stream("POST", PATH, content=BODY, headers=JSON) as response:
        async for data in response.aiter_raw():
            if first is None and has_text(data):
                first = time.perf_counter() - began
    assert first is not None
    return first


async def compare(url: str, requests: int) -> dict[str, list[float]]:
    """TTFT in seconds of every request, by client."""
    timer, origin = StreamTimer(10, 60), Origin.parse(url)
    found: dict[str, list[float]] = {"measure": [], "blocking socket": [], "httpx": []}
    with socket.create_connection((origin.host, origin.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for _ in range(requests):
                timing = await timer.send(origin, PATH, BODY)
                assert not timing.error, timing.error
                assert timing.first_token_at is not None
                found["measure"].append(timing.first_token_at - timing.sent_at)
                found["blocking socket"].append(with_socket(sock))
                found["httpx"].append(await with_httpx(client))
    timer.close()
    return found


def main() -> int:
    """Start an engine, compare, and print the quantiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "gateway", "engine", "--port", "0", "--prefill-rate", "inf", "--decode-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        try:
            found = uvloop.run(compare(url, arguments.requests))
        finally:
            os.kill(process.pid, signal.SIGTERM)
    for name, seconds in found.items():
        cuts = quantiles(seconds[LEFT_OUT:], n=20)
        print(f"{name:16} TTFT p50 {cuts[9] * 1000:5.2f} ms   p95 {cuts[18] * 1000:5.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
