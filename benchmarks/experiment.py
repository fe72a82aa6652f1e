"""Whether the experiment's intervals cover a gain that is planted: ``python -m benchmarks.experiment``.

One gateway in front of one simulated engine, whose prefill rate is known. Half of the requests get a random salt, so
that their whole prompt is computed; of the others the shared beginning is cached. The difference of their mean total
latencies is therefore known: the cached tokens divided by the prefill rate. Prompts are of random length, and their
ends are new. Each run has its own requests, and starts a new experiment; counted is how many of the intervals, at a
confidence level of 95 %, cover the planted difference, and how wide they are.
"""

import argparse
import asyncio
import logging
import random
import socket
from statistics import fmean

import httpx
import structlog
import uvloop

from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.http_client.open_files import FileLimits
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.http_server import HttpServer
from gateway.server.port import PortOptions
from gateway.server.public_handler import PublicHandler
from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

PREFILL_RATE = 20_000.0
"""Tokens per second of the simulated engine."""

BLOCK = 16


def quiet() -> None:
    """The gateway's log would drown the result."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


async def measured(runs: int, requests: int, seed: int) -> None:
    chance = random.Random(seed)
    engine = SimulatedEngine(EngineConfig(prefill_rate=PREFILL_RATE, decode_ms=0.0, block_size=BLOCK, blocks=60_000))
    await engine.start()
    shares = [0.5, 0.4999]
    gateway = Gateway(settings(engine.url, shares[0]))
    await gateway.start()
    public, admin = await served(gateway, gateway.public), await served(gateway, gateway.admin)
    shared = [chance.randrange(200, 1200) for _ in range(40 * BLOCK)]
    async with httpx.AsyncClient(base_url=public) as client, httpx.AsyncClient(base_url=admin) as operator:
        await send(client, [*shared, 1], "start")
        covered = 0
        widths, found_means = [], []
        for run in range(runs):
            # Another share begins a new experiment.
            await gateway.reload(settings(engine.url, shares[(run + 1) % 2]))
            prompts = [
                [*shared, *(chance.randrange(200, 1200) for _ in range(chance.randrange(BLOCK, 30 * BLOCK)))]
                for _ in range(requests)
            ]
            for number, prompt in enumerate(prompts):
                await send(client, prompt, f"run-{run}-{number}")
            found = await compared(operator, requests)
            interval = found["difference"]["total_mean"]
            covered += interval["low"] <= len(shared) / PREFILL_RATE <= interval["high"]
            widths.append(interval["high"] - interval["low"])
            found_means.append(interval["value"])
    print(f"planted: {1000 * len(shared) / PREFILL_RATE:.1f} ms; found on average: {1000 * fmean(found_means):.2f} ms")
    print(f"width of the intervals: {1000 * fmean(widths):.1f} ms")
    print(f"covered: {covered} of {runs} intervals of the mean total latency")
    await gateway.stop()
    await engine.kill()


def settings(url: str, share: float) -> Settings:
    return Settings.model_validate(
        {
            "models": [{"id": "demo", "tokenizer": "builtin:demo", "replicas": [url]}],
            "experiment": {"cold_share": share, "by": "request", "held_out": "salt"},
            "log": {"requests": False, "level": "error"},
        }
    )


async def served(gateway: Gateway, app: object) -> str:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    is_public = app is gateway.public
    handler = PublicHandler(app) if is_public else AsgiHandler(app)
    server = HttpServer(handler, PortOptions.of(settings("http://127.0.0.1:1", 0), FileLimits.of_public_port))
    await server.listen([listener])
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def send(client: httpx.AsyncClient, prompt: list[int], name: str) -> None:
    body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
    answer = await client.post("/v1/completions", json=body, headers={"x-request-id": name})
    assert answer.status_code == 200, answer.text


async def compared(operator: httpx.AsyncClient, requests: int) -> dict:
    for _ in range(500):
        found = (await operator.get("/admin/api/experiment")).json()
        if sum(group["requests"] for group in found["groups"].values()) == requests:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"the samples did not arrive: {found['groups']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--requests", type=int, default=80, help="requests of each run (default 80)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    quiet()
    uvloop.run(measured(args.runs, args.requests, args.seed))


if __name__ == "__main__":
    main()
