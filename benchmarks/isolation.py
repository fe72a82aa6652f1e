"""Whether one tenant can measure by the time an answer takes that another one sent the same prompt before.

    python -m benchmarks.isolation [--samples 60] [--own-samples 300]

A real gateway in front of a simulated engine. For every sample, tenant A sends a new prompt; then tenant B sends, in
random order, the very same prompt and one of the same size that was never sent. One token is asked for, so the whole
answer's time is the time to the first token. All pairs are interleaved in one run, so that a change of the machine's
speed meets both sides alike. Shown are the medians, the share of pairs in which the prompt that A had sent was the
faster one, and a rank test (Mann-Whitney, normal approximation; p is two-sided):

* `engine`: an engine that computes 8,000 prompt tokens a second. With isolation there must be no difference; with
  `isolation: none`, the control, it has to be plain, or this benchmark would not see one.
* `gateway`: an engine that takes no time at all, so that only what the gateway itself remembers is left: the tokens of
  text seen before and, with `personal_data: mask`, what was found in it.
"""

import argparse
import http.client
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.free_ports import free_port
from gateway.core.api_keys import hash_key, new_key

PREFILL_RATE = 8000
SECRET = "a secret that is used in this benchmark only"
SYLLABLES = "ba co de fi gu ha jo ke li mo nu pa qui ro se ti vu wa xe yo zi sta bre clo dri fle gra".split()


@dataclass
class Pairs:
    """Seconds of B's requests: for prompts that A had sent, and for prompts that were never sent."""

    sent: list[float] = field(default_factory=list)
    unsent: list[float] = field(default_factory=list)


def mann_whitney(first: list[float], second: list[float]) -> tuple[float, float]:
    """Share of pairs in which the first one is smaller (ties count half), and the two-sided p of no difference."""
    ranked = sorted((value, side) for side, values in enumerate((first, second)) for value in values)
    ranks, at, ties = [0.0, 0.0], 0, 0.0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        for _, side in ranked[at:end]:
            ranks[side] += (at + 1 + end) / 2
        ties += (end - at) ** 3 - (end - at)
        at = end
    n, m = len(first), len(second)
    larger = ranks[0] - n * (n + 1) / 2
    spread = math.sqrt(n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1))))
    z = (abs(larger - n * m / 2) - 0.5) / spread if spread else 0.0
    return 1 - larger / (n * m), math.erfc(max(z, 0.0) / math.sqrt(2))


def prompt(seed: str, words: int) -> str:
    """Text that no other seed gives, of words that recur as they do in a language."""
    language, chance = random.Random(1), random.Random(seed)
    vocabulary = ["".join(language.choices(SYLLABLES, k=language.randint(1, 4))) for _ in range(5000)]
    return " ".join(chance.choices(vocabulary, k=words))


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """A command of the gateway's, as a process of its own."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", "gateway", *arguments], start_new_session=True, **quiet)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def wait_for(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.1)
    raise SystemExit(f"nothing serves at {url}")


class Setup:
    """An engine, a gateway and its two tenants. A context manager.

    Args:
        rate: Prompt tokens that the engine computes per second.
        isolation: As ``spaces.isolation``.
        personal_data: Of both tenants.
    """

    def __init__(self, rate: float, isolation: str, personal_data: str = "report") -> None:
        self.keys = {name: new_key() for name in "ab"}
        self._rate = rate
        self._tenants = [
            {"id": name, "keys": [hash_key(key)], "personal_data": personal_data} for name, key in self.keys.items()
        ]
        self._isolation = isolation
        self._stack = ExitStack()

    def __enter__(self) -> "Setup":
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        engine, port = free_port(), free_port()
        config = {
            "server": {"port": port, "admin_port": 0},
            "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": [f"http://127.0.0.1:{engine}"]}],
            "spaces": {"isolation": self._isolation, "secret": SECRET},
            "tenants": self._tenants,
        }
        file = folder / "gateway.yaml"
        file.write_text(json.dumps(config))
        speed = [
            "--prefill-rate",
            str(self._rate),
            "--decode-ms",
            "0",
            "--blocks",
            "60000",
            "--max-model-len",
            "200000",
        ]
        self._stack.enter_context(running("engine", "--port", str(engine), "--model", "m", *speed))
        wait_for(f"http://127.0.0.1:{engine}/health")
        self._stack.enter_context(running("serve", "--config", str(file)))
        wait_for(f"http://127.0.0.1:{port}/readyz")
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._stack.close()

    def ask(self, tenant: str, text: str) -> tuple[float, int, int]:
        """Seconds until the answer's one token; prompt tokens, and those of them the engine had cached."""
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "Go on."}]
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 1})
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.keys[tenant]}"}
        began = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body, headers)
        answer = self._connection.getresponse()
        found = json.loads(answer.read())
        seconds = time.perf_counter() - began
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {found}")
        usage = found["usage"]
        return seconds, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def measure(setup: Setup, words: int, samples: int, name: str) -> tuple[Pairs, int, int]:
    """The pairs, the prompts' size in tokens, and how many the engine had cached of the prompts that A had sent."""
    pairs, tokens, cached = Pairs(), 0, 0
    for number in range(samples + 5):
        same, other = (prompt(f"{name} {words} {number} {which}", words) for which in ("same", "other"))
        setup.ask("a", same)
        for text, seconds in random.sample([(same, pairs.sent), (other, pairs.unsent)], 2):
            took, tokens, hits = setup.ask("b", text)
            if number >= 5:  # the first ones warm up connections and code
                seconds.append(took)
                cached += hits if text is same else 0
    return pairs, tokens, cached // samples


def show(title: str, pairs: Pairs, tokens: int, cached: int) -> None:
    sent, unsent = statistics.median(pairs.sent) * 1000, statistics.median(pairs.unsent) * 1000
    faster, p = mann_whitney(pairs.sent, pairs.unsent)
    print(
        f"{title:34} {tokens:7} {cached:7} {len(pairs.sent):8} {sent:10.3f} {unsent:10.3f} {sent / unsent:7.3f}"
        f" {faster:8.2f} {p:9.2g}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60, help="pairs with the engine that computes")
    parser.add_argument("--own-samples", type=int, default=300, help="pairs with the engine that takes no time")
    args = parser.parse_args()
    columns = ("tokens", 7), ("cached", 7), ("samples", 8), ("A sent", 10), ("not sent", 10), ("ratio", 7)
    head = " ".join(f"{name:>{width}}" for name, width in (*columns, ("faster", 8), ("p", 9)))
    print(f"{'tenant B, ms to the first token':34} {head}")
    for isolation in ("tenant", "none"):
        with Setup(PREFILL_RATE, isolation) as setup:
            show(f"engine, isolation: {isolation}", *measure(setup, 400, args.samples, isolation))
    for personal_data in ("report", "mask"):
        with Setup(math.inf, "tenant", personal_data) as setup:
            for words in (400, 2500, 12000):
                samples = args.own_samples if words < 10_000 else args.own_samples // 3
                title = f"gateway, personal_data: {personal_data}"
                show(title, *measure(setup, words, samples, personal_data))


if __name__ == "__main__":
    main()
