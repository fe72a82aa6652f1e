"""What it costs to explain requests: in the gateway's process, in the one beside it, and for the requests.

    python -m benchmarks.explain [--seconds 60] [--slice 10] [--same-core] [--limited]
                                 [--only handing,working,side-by-side,kept]

* `handing`: CPU time of the gateway's process for one 10 KB chat request that is not repeated, and for a repeated one:
  putting together what is sent of it, and handing that over (encoding, writing, reading what was counted), with a real
  process at the other end, ten requests every 20 ms and one every 10 ms.
* `working`: CPU time of the explaining process by kind of request, as a gateway with default settings sends them (real
  tokens, observed rules): sent before, the next turn of a conversation, the first of a new one with a known system
  prompt, a time in front of everything that repeats, a prompt like no other.
* `side-by-side`: two gateways at their limit in turn, slice by slice, one with `explain.enabled: true` and one without.
  Each runs pinned to one core; load, engines and the explaining process run on the others, or, with `--same-core`, the
  explaining process shares the gateway's. Shown are requests per second and CPU time per request of either process, the
  stages' own time from `gateway_overhead_seconds` (the sum over the stages up to the answer of each one's mean, p50 and
  p99, interpolated within the histogram's buckets), the clients' p50 and p99, and memory over time.
* `kept` (only if it is named): how many earlier prompts the default `explain.reference_mib` holds, of 20 applications:
  conversations of one request each, and the last two of five turns of each.

Bodies of the two gateways: one third each of next turns, times in front and new prompts, 10 KB each.
"""

import argparse
import asyncio
import contextlib
import json
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
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.explain_records import (
    KINDS,
    TRAFFIC,
    DefaultRecords,
    answered,
    body_of,
    conversation,
    prompts,
    record_of,
    traffic,
)
from benchmarks.free_ports import free_port
from benchmarks.overhead.bodies import WORDS
from gateway.config.telemetry_settings import ExplainSettings
from gateway.explain.diff import find_difference
from gateway.explain.explainer import Explainer
from gateway.explain.reference import Families, References
from gateway.explain.seen import PromptHashes
from gateway.explain.worker import ExplainClient
from gateway.explain.worker.explain_messages import FrameSplitter, WorkerOptions, encode
from gateway.explain.worker.explain_parts import ExplainParts
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.process import relax_garbage_collection
from gateway.explain.worker.repeats import Repeats
from gateway.tokenize.block_hashes import ChainHasher

_APPLICATIONS = 20

TICK = os.sysconf("SC_CLK_TCK")


class NoObserver:
    def on_missed(self, model, tenant, reason, tokens):
        pass

    def on_canonical(self, rule, mode, edits, saved, lost):
        pass

    def on_explain_skipped(self, count):
        pass


async def handing(count: int) -> None:
    """Both costs by CPU time of this process alone, over many small batches, as requests come in."""
    relax_garbage_collection()
    contexts = [answered(messages, number) for number, (messages, _) in enumerate(traffic("next turn", count)[1])]
    began = time.process_time()
    for context in contexts:
        record_of(context)
    building = (time.process_time() - began) / count
    size = statistics.mean(len(context.encoded.request.body) for context in contexts)
    print(f"handing over a request of {size / 1000:.1f} KB, gateway's process")
    print(f"  putting it together      {building * 1e6:8.1f} us")
    for name, different in (("new", count), ("repeated", 50)):
        for batch, seconds in ((10, 0.02), (1, 0.01)):
            some = contexts[:different]
            off, on = [
                await handed_over(some, count // 2 if batch == 1 else count, batch, seconds, enabled=enabled)
                for enabled in (False, True)
            ]
            rate = batch / seconds
            print(f"  {name:9} {rate:4.0f} a second {(on - off) * 1e6:8.1f} us", flush=True)


async def handed_over(
    contexts: list[SimpleNamespace], count: int, batch: int, seconds: float, *, enabled: bool
) -> float:
    """CPU seconds of this process per request, the event loop's among them."""
    client = ExplainClient(ExplainSettings(enabled=enabled), NoObserver(), {"m": 1})
    client.start()
    if enabled:
        await client.ask("summary", {})
    values = [record_of(context) for context in contexts]
    began = time.process_time()
    for start in range(0, count, batch):
        if enabled and not client.accepts_text:
            raise SystemExit("the explaining process is behind: this machine is too busy to measure this")
        for number in range(start, start + batch):
            client.record_request(values[number % len(values)])
        await asyncio.sleep(seconds)
    spent = (time.process_time() - began) / count
    await client.stop()
    return spent


def working(count: int) -> None:
    relax_garbage_collection()
    print(f"{'explaining a request':24} {'us':>8} {'of it reading':>14} {'most us':>9}")
    for kind in TRAFFIC:
        records, repeats, worker = DefaultRecords(), Repeats(), ExplainWorker(loaded_parts)
        worker.handle(records.options)
        before, measured = traffic(kind, count)
        for record in records.of(before):
            worker.handle(repeats.sent(record)[0])
        stream = bytearray()
        for record in records.of(measured):
            encode(repeats.sent(record)[0], stream)
        frames = list(FrameSplitter().feed(bytes(stream)))
        began = time.process_time()
        messages = [frame.decode() for frame in frames]
        reading = time.process_time() - began
        each = []
        for message in messages:
            start = time.process_time()
            worker.handle(message)
            each.append(time.process_time() - start)
        per = (sum(each) + reading) / len(each)
        print(f"  {kind:22} {per * 1e6:8.0f} {reading / len(each) * 1e6:14.0f} {max(each) * 1e6:9.0f}", flush=True)


def kept() -> None:
    rng = random.Random(3)
    systems = [" ".join(rng.choices(WORDS, k=1000)) for _ in range(_APPLICATIONS)]
    for turns, conversations in (1, 6000), (5, 6000):
        references = References(ExplainSettings().reference_mib << 20, 3600.0)
        explainer = Explainer(PromptHashes(ChainHasher()), references, Families(find_difference), 1_000_000)
        records = DefaultRecords()
        for number in range(conversations):
            whole = conversation(rng, systems[number % _APPLICATIONS], 6)
            exchanges = [(whole[: 2 * turn], whole[2 * turn]["content"]) for turn in range(1, turns + 1)]
            for record in records.of(exchanges if turns > 1 else [(whole, "Hello there.")]):
                explainer.explain(record)
        print(f"{turns} turns: {len(references):,} requests are kept, of {conversations:,} conversations", flush=True)


def loaded_parts(options: WorkerOptions, now: float) -> ExplainParts:
    """With tokenizers: the process loads them in a thread when the first request needs one."""
    parts = ExplainParts(options, now)
    parts.load_tokenizers()
    return parts


@dataclass
class Side:
    """One of the two gateways, and what was measured of it, slice by slice."""

    name: str
    port: int
    admin_port: int
    process: subprocess.Popen
    child: int | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)
    memory: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def page(side: Side) -> dict[str, dict]:
    """A scrape: buckets, sum and count of every stage, and the plain counters."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{side.admin_port}/metrics", timeout=20).read().decode()
    stages: dict[str, dict] = {}
    counters: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name.startswith("gateway_overhead_seconds"):
                stage = stages.setdefault(labels["stage"], {"buckets": {}, "sum": 0.0, "count": 0.0})
                if name.endswith("_bucket"):
                    stage["buckets"][float(labels["le"])] = value
                else:
                    stage[name.rsplit("_", 1)[1]] = value
            else:
                counters[name] = counters.get(name, 0.0) + value
    return {"stages": stages, "counters": counters}


def quantile(before: dict, after: dict, share: float) -> float:
    """Within the bucket it falls into, in proportion."""
    wanted = share * (after["count"] - before["count"])
    low = seen = 0.0
    for edge, value in sorted(after["buckets"].items()):
        until = value - before["buckets"].get(edge, 0.0)
        if until >= wanted:
            return low if edge == float("inf") else low + (edge - low) * (wanted - seen) / max(until - seen, 1e-9)
        low, seen = edge, until
    return low


def overhead(before: dict[str, dict], after: dict[str, dict]) -> dict[str, float]:
    """Sums over the stages that a request passes before its answer; in milliseconds."""
    empty = {"buckets": {}, "sum": 0.0, "count": 0.0}
    sums = {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    for stage, now in after["stages"].items():
        then = before["stages"].get(stage, empty)
        count = now["count"] - then["count"]
        if stage == "settle" or not count:
            continue
        sums["mean"] += (now["sum"] - then["sum"]) / count * 1e3
        sums["p50"] += quantile(then, now, 0.5) * 1e3
        sums["p99"] += quantile(then, now, 0.99) * 1e3
    return sums


def one_slice(side: Side, bodies: Path, connections: int, seconds: float, rest: list[int], began: float) -> None:
    before = page(side)
    cpu = cpu_seconds(side.process.pid)
    child_cpu = cpu_seconds(side.child) if side.child else 0.0
    command = ["benchmarks.explain_load", str(side.port), str(bodies), str(connections), str(seconds)]
    load = subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, rest)), sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True
    )
    result = json.loads(load.communicate()[0])
    if result["errors"]:
        raise SystemExit(f"{side.name}: {result['errors']} requests failed")
    requests = result["requests"]
    spent = cpu_seconds(side.process.pid) - cpu
    # What waits is explained before the other side's slice begins, and belongs to this one.
    settle(side)
    after = page(side)
    side.add(
        rate=requests / result["seconds"],
        cpu=spent / requests * 1e3,
        child_cpu=(cpu_seconds(side.child) - child_cpu) / requests * 1e3 if side.child else 0.0,
        client_p50=result["p50"] * 1e3,
        client_p99=result["p99"] * 1e3,
        skipped=(
            after["counters"].get("gateway_explain_skipped_total", 0)
            - before["counters"].get("gateway_explain_skipped_total", 0)
        )
        / requests,
        requests=requests,
        **{f"own_{name}": value for name, value in overhead(before, after).items()},
    )
    side.memory.append(
        (time.monotonic() - began, memory_mib(side.process.pid), memory_mib(side.child) if side.child else 0.0)
    )


def settle(side: Side) -> None:
    if not side.child:
        return
    for _ in range(600):
        before = cpu_seconds(side.child)
        time.sleep(0.3)
        if cpu_seconds(side.child) - before <= 1 / TICK:
            return


def start(name: str, folder: Path, engines: list[str], core: int, explain: dict[str, object]) -> Side:
    port, admin_port = free_port(), free_port()
    config = folder / f"{name}.yaml"
    config.write_text(
        json.dumps(
            {
                "server": {"port": port, "admin_port": admin_port},
                "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": engines}],
                "explain": explain,
                "log": {"requests": False},
            }
        )
    )
    command = ["taskset", "-c", str(core), sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    # A session of its own, and what it logs is kept for when something goes wrong.
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
    return Side(name, port, admin_port, process)


def wait_until_serving(side: Side) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{side.port}/readyz", timeout=5).read()
            return
        except (OSError, urllib.error.HTTPError):
            if side.process.poll() is not None:
                break
            time.sleep(0.5)
    raise SystemExit(f"the gateway ({side.name}) does not serve")


def side_by_side(args: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    core, rest = cores[0], cores[1:] or cores
    folder = Path(tempfile.mkdtemp(prefix="explain-"))
    bodies = folder / "bodies.jsonl"
    mixed = zip(*(prompts(kind, 1200) for kind in KINDS), strict=False)
    bodies.write_bytes(b"\n".join(body_of(messages) for group in mixed for messages in group))
    ports = [free_port(), free_port()]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    engine_command = [sys.executable, "-m", "benchmarks.overhead.engine", *map(str, ports), "1"]
    engine = subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, rest)), *engine_command], start_new_session=True, **quiet
    )
    sides: list[Side] = []
    try:
        time.sleep(1)
        engines = [f"http://127.0.0.1:{port}" for port in ports]
        on_settings = {} if args.limited else {"max_cpu_share": None}
        settings = {"off": {"enabled": False}, "on": on_settings}
        sides = [start(name, folder, engines, core, explain) for name, explain in settings.items()]
        for side in sides:
            wait_until_serving(side)
        on = sides[1]
        for _ in range(100):
            if found := children(on.process.pid):
                on.child = found[0]
                break
            time.sleep(0.1)
        if on.child is None:
            raise SystemExit("there is no explaining process")
        os.sched_setaffinity(on.child, [core] if args.same_core else rest)
        began = time.monotonic()
        for side in sides:
            one_slice(side, bodies, args.connections, 2, rest, began)
            side.figures.clear()
        for number in range(max(round(args.seconds / args.slice), 1)):
            for side in sides if number % 2 else reversed(sides):
                one_slice(side, bodies, args.connections, args.slice, rest, began)
        report(sides)
    finally:
        for process in [side.process for side in sides] + [engine]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(40)


def report(sides: list[Side]) -> None:
    columns = {
        "req/s": "rate",
        "cpu ms/req": "cpu",
        "beside ms/req": "child_cpu",
        "own mean ms": "own_mean",
        "own p50 ms": "own_p50",
        "own p99 ms": "own_p99",
        "client p50 ms": "client_p50",
        "client p99 ms": "client_p99",
        "skipped": "skipped",
    }
    print(f"{'explain':8}" + "".join(f"{title:>15}" for title in columns))
    for side in sides:
        medians = [statistics.median(side.figures[name]) for name in columns.values()]
        print(f"{side.name:8}" + "".join(f"{value:15.3f}" for value in medians))
    ratios = [
        statistics.median(
            on / off if off else float("nan")
            for off, on in zip(sides[0].figures[name], sides[1].figures[name], strict=True)
        )
        for name in columns.values()
    ]
    print(f"{'on / off':8}" + "".join(f"{value:15.3f}" for value in ratios))
    print(f"\nslices: {len(sides[0].figures['rate'])}; requests: ", end="")
    print(", ".join(f"{side.name} {sum(side.figures['requests']):.0f}" for side in sides))
    print(f"\n{'MiB after s':>12} {'gateway off':>12} {'gateway on':>12} {'beside it':>12}")
    off, on = (side.memory for side in sides)
    step = max(len(on) // 12, 1)
    for (_, alone, _), (at, gateway, child) in list(zip(off, on, strict=True))[::step]:
        print(f"{at:12.0f} {alone:12.1f} {gateway:12.1f} {child:12.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of load, for each of the two gateways")
    parser.add_argument("--slice", type=float, default=10, help="seconds of load before it is the other's turn")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1500, help="handed over; at most 800 of them are explained")
    parser.add_argument(
        "--limited", action="store_true", help="explain.max_cpu_share as by default, instead of no limit"
    )
    parser.add_argument("--same-core", action="store_true", help="the explaining process shares the gateway's core")
    parser.add_argument("--only", default="handing,working,side-by-side", metavar="PARTS")
    args = parser.parse_args()
    parts = args.only.split(",")
    if "handing" in parts:
        uvloop.run(handing(args.requests))
    if "working" in parts:
        working(min(args.requests, 800))
    if "side-by-side" in parts:
        side_by_side(args)
    if "kept" in parts:
        kept()


if __name__ == "__main__":
    main()
