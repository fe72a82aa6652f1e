"""What a tenant notices of another one's flood, and what the queue costs otherwise.

    python -m benchmarks.overload [--rounds 3] [--conversations 60]

Two gateways in front of the same simulated engines, as processes of their own: one with the queue, one without
(`queue.max_seconds: 0`). They take turns in one run, so that a change of the machine's speed meets both alike.

* **Flood**: tenant `flood` keeps 100 streams open, each a new prompt; tenant `quiet` asks something new now and then.
  Shown is quiet's time to the first token: alone, beside the flood with the queue, and beside it without.
* **Saturation**: conversations that share beginnings, replayed turn by turn at about what the engines can do, and
  beyond. Shown are the share of prompt tokens that the engines had cached, the prompt tokens a second that were
  answered, and times to the first token. The queue must make neither of the first two worse.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.free_ports import free_port
from benchmarks.isolation import SECRET, prompt, running, wait_for
from gateway.core.api_keys import hash_key, new_key

PREFILL_RATE = 8000
FLOOD_STREAMS = 100


@dataclass
class Answers:
    """What came of requests.

    Attributes:
        ttfts: Seconds to the first token, of each that was answered.
        prompt_tokens: As the engines counted them.
        cached_tokens: Those of them that were cached.
        refused: Answers of 429.
    """

    ttfts: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    refused: int = 0

    def quantile(self, share: float) -> float:
        """Of the times to the first token."""
        ranked = sorted(self.ttfts)
        return ranked[min(math.floor(share * len(ranked)), len(ranked) - 1)] if ranked else math.nan


class Client:
    """A tenant's client of one gateway."""

    def __init__(self, port: int, key: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {key}"},
            timeout=300,
            limits=httpx.Limits(max_connections=None),
        )

    async def ask(self, messages: Sequence[object], answers: Answers, tokens: int = 8) -> str:
        """One stream; returns the text of the answer."""
        body = {
            "model": "m",
            "messages": messages,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, text, first = time.perf_counter(), "", None
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code == 429:
                answers.refused += 1
                return ""
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                first = first or time.perf_counter() - began
                event = json.loads(line[6:])
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                if usage := event.get("usage"):
                    answers.prompt_tokens += usage["prompt_tokens"]
                    answers.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        if first is not None:
            answers.ttfts.append(first)
        return text

    async def close(self) -> None:
        await self._http.aclose()


class Stage:
    """Engines, and a gateway with the queue and one without in front of them. A context manager.

    Attributes:
        ports: Of the gateways: with the queue, without.
        keys: By tenant.
    """

    def __init__(self, engines: int, blocks: int) -> None:
        self.keys = {name: new_key() for name in ("flood", "quiet")}
        self.ports: dict[str, int] = {}
        self._engines = engines
        self._blocks = blocks
        self._stack = ExitStack()

    def __enter__(self) -> "Stage":
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        engines = [free_port() for _ in range(self._engines)]
        for port in engines:
            speed = ["--prefill-rate", str(PREFILL_RATE), "--decode-ms", "15", "--blocks", str(self._blocks)]
            more = ["--slots", "256", "--max-model-len", "32000"]
            self._stack.enter_context(running("engine", "--port", str(port), "--model", "m", *speed, *more))
        for name, queue in (("with", {}), ("without", {"max_seconds": 0})):
            port = self.ports[name] = free_port()
            replicas = [f"http://127.0.0.1:{engine}" for engine in engines]
            config = {
                "server": {"port": port, "admin_port": 0},
                "log": {"requests": False},
                "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": replicas}],
                "spaces": {"secret": SECRET},
                "tenants": [{"id": tenant, "keys": [hash_key(key)]} for tenant, key in self.keys.items()],
                "explain": {"enabled": False},
                "placement": {"prefill_tokens_per_second": PREFILL_RATE},
                "queue": queue,
            }
            file = folder / f"{name}.yaml"
            file.write_text(json.dumps(config))
            self._stack.enter_context(running("serve", "--config", str(file)))
        for port in engines:
            wait_for(f"http://127.0.0.1:{port}/health")
        for port in self.ports.values():
            wait_for(f"http://127.0.0.1:{port}/readyz")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self, gateway: str, tenant: str) -> Client:
        return Client(self.ports[gateway], self.keys[tenant])


def new_prompt(words: int) -> list[dict[str, str]]:
    """Something that was never sent."""
    return [{"role": "user", "content": prompt(str(random.random()), words)}]


@asynccontextmanager
async def flooded(client: Client, answers: Answers) -> AsyncIterator[None]:
    """Inside of it there is a flood."""

    async def one() -> None:
        while True:
            await client.ask(new_prompt(400), answers)

    streams = [asyncio.create_task(one()) for _ in range(FLOOD_STREAMS)]
    try:
        await asyncio.sleep(4)  # until it is at its height
        yield
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await asyncio.sleep(1)


async def ask_now_and_then(client: Client, answers: Answers, seconds: float) -> None:
    """The next one a moment after the answer to the one before; the last one's answer is waited for."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await client.ask(new_prompt(100), answers)
        await asyncio.sleep(random.uniform(0.1, 0.4))


async def flood(rounds: int) -> None:
    quiet = {name: Answers() for name in ("alone", "with", "without")}
    served: dict[str, tuple[int, float]] = {}
    with Stage(2, 8192) as stage:
        for _ in range(rounds):
            calm = stage.client("with", "quiet")
            await ask_now_and_then(calm, quiet["alone"], 4)
            await calm.close()
            for gateway in random.sample(["with", "without"], 2):
                flooding, asking = stage.client(gateway, "flood"), stage.client(gateway, "quiet")
                answers = Answers()
                async with flooded(flooding, answers):
                    before, began = answers.prompt_tokens, time.perf_counter()
                    await ask_now_and_then(asking, quiet[gateway], 12)
                    tokens, seconds = served.get(gateway, (0, 0.0))
                    more = answers.prompt_tokens - before, time.perf_counter() - began
                    served[gateway] = tokens + more[0], seconds + more[1]
                await flooding.close()
                await asking.close()
    print(f"{'quiet: seconds to the first token':44} {'requests':>8} {'median':>8} {'p90':>8} {'flood tokens/s':>15}")
    names = {"alone": "alone", "with": "beside a flood, with the queue", "without": "beside a flood, without it"}
    for name, title in names.items():
        found = quiet[name]
        beside = f"{served[name][0] / served[name][1]:.0f}" if name in served else ""
        median = statistics.median(found.ttfts)
        print(f"{title:44} {len(found.ttfts):8} {median:8.3f} {found.quantile(0.9):8.3f} {beside:>15}", flush=True)


async def replay(client: Client, conversations: int, per_second: float) -> tuple[Answers, float]:
    """Conversations begin at random moments, so many a second; returns what came of them and how long it took."""
    answers, began = Answers(), time.perf_counter()
    run = str(random.random())
    systems = [prompt(f"{run} {number}", 150) for number in range(6)]

    async def converse(number: int) -> None:
        messages: list[dict[str, str]] = [{"role": "system", "content": systems[number % len(systems)]}]
        for turn in range(5):
            messages.append({"role": "user", "content": prompt(f"{run} {number} {turn}", 60)})
            messages.append({"role": "assistant", "content": await client.ask(messages, answers, 16)})
            await asyncio.sleep(random.uniform(0.2, 0.6))

    async with asyncio.TaskGroup() as talks:
        for number in range(conversations):
            talks.create_task(converse(number))
            await asyncio.sleep(random.expovariate(per_second))
    return answers, time.perf_counter() - began


async def saturation(rounds: int, conversations: int) -> None:
    head = f"{'cached':>8} {'tokens/s':>9} {'median':>8} {'p90':>8} {'p99':>8} {'refused':>8}"
    print(f"\n{'conversations a second':44} {head}")
    with Stage(3, 2048) as stage:
        for per_second in (2.0, 6.0, 12.0):
            found: dict[str, list[tuple[Answers, float]]] = {"with": [], "without": []}
            for _ in range(rounds):
                for gateway in random.sample(["with", "without"], 2):
                    client = stage.client(gateway, "quiet")
                    found[gateway].append(await replay(client, conversations, per_second))
                    await client.close()
            for gateway, runs in found.items():
                total = Answers(
                    [ttft for answers, _ in runs for ttft in answers.ttfts],
                    sum(answers.prompt_tokens for answers, _ in runs),
                    sum(answers.cached_tokens for answers, _ in runs),
                    sum(answers.refused for answers, _ in runs),
                )
                title = f"{per_second:4.0f}, {gateway} the queue"
                share = total.cached_tokens / total.prompt_tokens
                speed = total.prompt_tokens / sum(seconds for _, seconds in runs)
                times = " ".join(f"{total.quantile(share):8.3f}" for share in (0.5, 0.9, 0.99))
                print(f"{title:44} {share:8.3f} {speed:9.0f} {times} {total.refused:8}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is done")
    parser.add_argument("--conversations", type=int, default=60, help="of each replay")
    parser.add_argument("--only", choices=("flood", "saturation"), help="one of the two")
    args = parser.parse_args()
    if args.only != "saturation":
        asyncio.run(flood(args.rounds))
    if args.only != "flood":
        asyncio.run(saturation(args.rounds, args.conversations))


if __name__ == "__main__":
    main()
