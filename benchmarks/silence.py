"""What clients notice of a replica that hangs behind passing health checks, and whether slow ones are left alone.

    python -m benchmarks.silence [--rate 20] [--client-seconds 20]

Four simulated engines and a gateway, as processes of their own; streams and whole answers in turn, each prompt new.

* **hang**: after eight seconds one engine takes requests and answers none; 25 seconds later it answers again.
* **slow**: all engines answer ten times as late.

Shown are the requests without an answer (also those that took longer than a client waits), when after the fault they
were sent, when the replica was taken out and was back, and how long the longest answer took. Exits with 1 if more than
three requests are lost, or one that was sent ten seconds after the fault, if the replica is not back within 30 seconds,
or if a slow one is taken out.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.free_ports import free_port
from benchmarks.isolation import prompt, running, wait_for

ENGINES = 4
CALM_SECONDS, FAULT_SECONDS, AFTER_SECONDS = 8.0, 25.0, 35.0
TIMES_SLOWER = 10
FAULT_PATH = "/simulator/fault"


@dataclass
class Seen:
    """What was seen of one fault; times are seconds since it began.

    Attributes:
        answers: Seconds that each answer took.
        lost: When the requests without an answer were sent.
        states: The states of the faulty replicas, and when each was first seen after another one.
        over: When the fault was over.
    """

    answers: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    over: float = 0.0

    def back(self) -> float | None:
        """Seconds from the end of the fault until the replica was ready for good; None if it is not."""
        if self.states[-1][1] != "ready":
            return None
        return max(self.states[-1][0] - self.over, 0.0)


async def measure(fault: str, faulty: int, client_seconds: float, rate: float) -> Seen:
    """Load four engines, of which some have a fault for a while."""
    seen = Seen()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports, port, admin = [free_port() for _ in range(ENGINES)], free_port(), free_port()
        for each in ports:
            stack.enter_context(running("engine", "--port", str(each), "--prefill-rate", "4000", "--decode-ms", "10"))
        config = {
            "server": {"port": port, "admin_port": admin},
            "log": {"requests": False},
            "models": [
                {
                    "id": "demo",
                    "tokenizer": "builtin:demo",
                    "replicas": [{"url": f"http://127.0.0.1:{each}", "id": f"r{n}"} for n, each in enumerate(ports)],
                }
            ],
            "explain": {"enabled": False},
        }
        file = folder / "gateway.yaml"
        file.write_text(json.dumps(config))
        stack.enter_context(running("serve", "--config", str(file)))
        for each in ports:
            wait_for(f"http://127.0.0.1:{each}/health")
        wait_for(f"http://127.0.0.1:{port}/readyz")
        limits = httpx.Limits(max_connections=1000)
        async with httpx.AsyncClient(timeout=client_seconds, limits=limits, trust_env=False) as client:
            began = time.monotonic() + CALM_SECONDS
            end = began + FAULT_SECONDS + AFTER_SECONDS
            asking = asyncio.create_task(_load(client, f"http://127.0.0.1:{port}", began, end, rate, seen))
            watching = asyncio.create_task(_watch(client, f"http://127.0.0.1:{admin}", began, faulty, seen))
            await asyncio.sleep(began - time.monotonic())
            await _set(client, ports[:faulty], fault)
            await asyncio.sleep(began + FAULT_SECONDS - time.monotonic())
            await _set(client, ports[:faulty], "")
            seen.over = time.monotonic() - began
            await asking
            watching.cancel()
    return seen


async def _set(client: httpx.AsyncClient, ports: list[int], fault: str) -> None:
    for port in ports:
        (await client.post(f"http://127.0.0.1:{port}{FAULT_PATH}", json={"spec": fault})).raise_for_status()


async def _load(client: httpx.AsyncClient, url: str, began: float, end: float, rate: float, seen: Seen) -> None:
    tasks = set()

    async def ask(number: int) -> None:
        sent = time.monotonic()
        messages = [{"role": "user", "content": prompt(str(number), 100 + number * 37 % 200)}]
        body = {"model": "demo", "messages": messages, "max_tokens": 20, "stream": number % 2 == 0}
        try:
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            is_answered = answer.status_code == 200 and b'"error"' not in answer.content[-400:]
        except httpx.HTTPError:
            is_answered = False
        if is_answered:
            seen.answers.append(time.monotonic() - sent)
        else:
            seen.lost.append(sent - began)

    for number in itertools.count():
        if time.monotonic() >= end:
            break
        tasks.add(asyncio.create_task(ask(number)))
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*tasks)


async def _watch(client: httpx.AsyncClient, url: str, began: float, faulty: int, seen: Seen) -> None:
    while True:
        rows = (await client.get(f"{url}/admin/api/replicas")).json()["replicas"]
        states = "+".join(sorted({row["state"] for row in rows[:faulty]}))
        if not seen.states or seen.states[-1][1] != states:
            seen.states.append((time.monotonic() - began, states))
        await asyncio.sleep(0.1)


def report(name: str, seen: Seen) -> None:
    """Print what was seen."""
    lost = f"{len(seen.lost)} of {len(seen.lost) + len(seen.answers)} lost"
    when = f", sent at {', '.join(f'{each:.1f}' for each in sorted(seen.lost))} s" if seen.lost else ""
    states = ", ".join(f"{state} at {at:.1f} s" for at, state in seen.states)
    print(f"{name}: {lost}{when}; longest answer {max(seen.answers):.1f} s; {states}; over at {seen.over:.1f} s")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--client-seconds", type=float, default=20.0, help="how long a client waits for its answer")
    given = parser.parse_args()
    hang = await measure("hang", 1, given.client_seconds, given.rate)
    report("one of four hangs", hang)
    calm = sorted(hang.answers)[len(hang.answers) // 2]
    slow = await measure(f"slow={(TIMES_SLOWER - 1) * calm:.1f}", ENGINES, 3 * given.client_seconds, given.rate)
    report("all slow", slow)
    back = hang.back()
    print(f"back after {'-' if back is None else f'{back:.1f} s'}")
    kept = len(hang.lost) <= 3 and max(hang.lost, default=0.0) <= 10 and back is not None and back <= 30
    return 0 if kept and not slow.lost and all("stuck" not in state for _, state in slow.states) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
