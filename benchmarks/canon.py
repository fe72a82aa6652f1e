"""What the rules of canonicalization cost: each alone, all together, and a whole gateway with them.

    python -m benchmarks.canon [--rounds 5] [--seconds 40] [--slice 5] [--only rules,gateway]

* `rules`: CPU time of one thread for one request, by rule, with the body written anew where something was changed;
  beside it, in the same run, what it takes to parse the body (`orjson.loads`). Chats of 10 and 100 KB: `clean` ones in
  which no rule finds anything, `dirty` ones in which every rule does. `known`: the next turns of one application, its
  texts were seen before (another time stands in the dirty ones all the same); `new`: no text was ever seen before.
* `gateway`: three whole gateways at their limit in turn, slice by slice: every rule `off`, all in `observe` (the
  default), all in `apply`. Each runs pinned to one core; load, engines and the explaining processes run on the others.
  Shown are CPU time per request of the gateway's process and of the one beside it, and the stages' own time.

The machine's speed changes: what counts are the ratios of one run, and medians over the rounds.
"""

import argparse
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
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import orjson

from benchmarks.explain import Side, children, one_slice, wait_until_serving
from benchmarks.free_ports import free_port
from benchmarks.overhead.bodies import WORDS
from gateway.canon.rewrite import rewritten
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import rulebook
from gateway.config.canon_settings import CanonSettings, OwnPatternSettings
from gateway.core.canonical import RuleName

SIZES = {"10 KB": 1, "100 KB": 10}
"""How many times the text of a 10 KB chat."""
TURNS = 6
TOOLS = 4
CONTEXT_LIMIT = 4000
"""So small that `history-trim` has to work at 10 KB; ten times that at 100 KB."""
PATTERN = OwnPatternSettings(name="build", regex=r"^Build: \S+$")
NOISE = "\u200b"
CANDIDATES: dict[str, Collection[RuleName]] = {rule.value: {rule} for rule in RuleName} | {"all": set(RuleName)}


class Texts:
    """Sentences: of an application, the same in all its requests; new ones, none of which was ever seen."""

    def __init__(self, *, known: bool) -> None:
        self._known = known
        self._random = random.Random(17)
        self._number = 0

    def begin(self) -> None:
        """The next request."""
        self._number += 1
        if self._known:
            self._random = random.Random(17)

    def words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))

    @property
    def number(self) -> int:
        return self._number


def tools(texts: Texts, *, dirty: bool) -> list[dict[str, Any]]:
    made = []
    for number in range(TOOLS):
        properties = {
            name: {"type": "string", "description": texts.words(8)} for name in ("account", "branch", "customer")
        }
        function = {
            "name": f"tool_{number:02}",
            "description": texts.words(14),
            "parameters": {"type": "object", "properties": properties, "required": ["account"]},
        }
        made.append({"type": "function", "function": function})
    if dirty:
        random.Random(texts.number).shuffle(made)
        made = [{"function": dict(reversed(each["function"].items())), "type": "function"} for each in made]
    return made


def chat(texts: Texts, times: int, *, dirty: bool) -> dict[str, Any]:
    """One request. With ``dirty`` there is something for every rule."""
    texts.begin()
    end = "  \r\n" if dirty else "\n"
    lines = [f"{n}. Stay friendly: {texts.words(14)}." for n in range(35 * times)]
    rules = end.join(lines)
    if dirty:
        now = datetime.now(UTC) + timedelta(seconds=texts.number)
        front = f"Current time: {now:%Y-%m-%d %H:%M:%S}{end}Request ID: {random.Random(texts.number).getrandbits(64):x}"
        rules = f"{front}{end}Build: {texts.number}{end}Cafe\u0301{NOISE}{end}\n\n\n{rules}"
    messages: list[dict[str, Any]] = [{"role": "system", "content": rules}]
    for turn in range(TURNS * times):
        messages.append({"role": "user", "content": f"Point {turn}: {texts.words(9)}{end if dirty else ''}"})
        arguments = {"account": texts.words(1), "branch": texts.words(1)}
        if dirty:
            arguments = dict(reversed(arguments.items()))
        call = {"name": f"tool_{turn % TOOLS:02}", "arguments": json.dumps(arguments)}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": json.dumps({"answer": texts.words(20)})},
            {"role": "assistant", "content": f"Re {turn}: {texts.words(40)}"},
        ]
    if dirty:
        messages.insert(1, {"role": "user", "content": "Hello"})
        messages.insert(2, {"role": "system", "content": "Be brief."})
    messages.append({"role": "user", "content": f"At last {texts.words(6)} {texts.number}"})
    return {"model": "m", "messages": messages, "tools": tools(texts, dirty=dirty), "max_tokens": 8}


def forms(times: int, *, dirty: bool, known: bool, count: int) -> list[bytes]:
    texts = Texts(known=known)
    return [json.dumps(chat(texts, times, dirty=dirty), ensure_ascii=False).encode() for _ in range(count)]


def rules(rounds: int) -> None:
    settings = CanonSettings(patterns=(PATTERN,))
    print("CPU time per request, one thread; in brackets: times what parsing the body takes\n")
    for size, times in SIZES.items():
        columns = [(state, seen) for state in ("clean", "dirty") for seen in ("known", "new")]
        figures: dict[str, list[float]] = {}
        lengths = []
        for state, seen in columns:
            bodies = forms(
                times,
                dirty=state == "dirty",
                known=seen == "known",
                count=(rounds + 1) * len(CANDIDATES) * (40 // times),
            )
            lengths.append(statistics.mean(map(len, bodies)) / 1000)
            for name, seconds in measured(settings, bodies, rounds, CONTEXT_LIMIT * times).items():
                figures.setdefault(name, []).append(seconds)
        print(f"{size + ' chat':16}" + "".join(f"{f'{a}, {b}':>20}" for a, b in columns))
        print(f"{'  KB':16}" + "".join(f"{length:20.1f}" for length in lengths))
        for name, values in figures.items():
            cells = (f"{v * 1e6:9.1f} us ({v / p:5.2f})" for v, p in zip(values, figures["parsing"], strict=True))
            print(f"  {name:14}" + "".join(f"{cell:>20}" for cell in cells))
        print(flush=True)


def measured(settings: CanonSettings, bodies: list[bytes], rounds: int, limit: int) -> dict[str, float]:
    """Median over the rounds of the mean CPU seconds per request: parsing, every rule, all of them.

    Each has requests of its own: what one has seen is new to none of the others.
    """
    book = rulebook(settings)
    kept: dict[bytes, str] = {}
    given = RuleContext(now=time.time(), recall=kept.get, context_limit=limit)
    share = len(bodies) // (rounds + 1) // len(CANDIDATES)
    batches = (bodies[start : start + share] for start in range(0, len(bodies), share))
    figures: dict[str, list[float]] = {name: [] for name in ("parsing", *CANDIDATES)}
    for number in range(rounds + 1):
        found = {}
        for name, chosen in CANDIDATES.items():
            batch = next(batches)
            began = time.thread_time()
            for body in batch:
                orjson.loads(body)
            found["parsing"] = (time.thread_time() - began) / share
            parsed: list[Mapping[str, Any]] = [orjson.loads(body) for body in batch]
            now = msgspec.structs.replace(given, now=time.time())
            began = time.thread_time()
            for body, fields in zip(batch, parsed, strict=True):
                canonical = book.canonical(fields, chosen, now)
                kept.update(canonical.remember)
                if canonical.fields is not fields:
                    rewritten(body, fields, canonical.fields)
            found[name] = (time.thread_time() - began) / share
        if number:  # the first round is to get warm
            for name, seconds in found.items():
                figures[name].append(seconds)
    return {name: statistics.median(values) for name, values in figures.items()}


def started(name: str, folder: Path, engines: list[str], core: int) -> Side:
    port, admin_port = free_port(), free_port()
    config = folder / f"{name}.yaml"
    config.write_text(
        json.dumps(
            {
                "server": {"port": port, "admin_port": admin_port},
                "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": engines}],
                "canon": {"rules": {rule.value: name for rule in RuleName}, "patterns": [PATTERN.model_dump()]},
                "log": {"requests": False},
            }
        )
    )
    command = ["taskset", "-c", str(core), sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
    return Side(name, port, admin_port, process)


@contextlib.contextmanager
def gateways(folder: Path, core: int, rest: list[int]) -> Iterator[list[Side]]:
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
        sides = [started(name, folder, engines, core) for name in ("off", "observe", "apply")]
        for side in sides:
            wait_until_serving(side)
            side.child = child_of(side)
            os.sched_setaffinity(side.child, rest)
        yield sides
    finally:
        for process in [side.process for side in sides] + [engine]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(40)


def child_of(side: Side) -> int:
    for _ in range(100):
        if found := children(side.process.pid):
            return found[0]
        time.sleep(0.1)
    raise SystemExit("there is no explaining process")


def whole(args: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    core, rest = cores[0], cores[1:] or cores
    folder = Path(tempfile.mkdtemp(prefix="canon-"))
    kinds = {}
    for state in ("clean", "dirty"):
        kinds[state] = folder / f"{state}.jsonl"
        kinds[state].write_bytes(b"\n".join(forms(1, dirty=state == "dirty", known=True, count=1500)))
    with gateways(folder, core, rest) as sides:
        print(f"{'10 KB chat':18}{'cpu ms/req':>14}{'beside ms/req':>16}{'own mean ms':>14}{'req/s':>10}")
        for state, bodies in kinds.items():
            began = time.monotonic()
            for side in sides:
                one_slice(side, bodies, args.connections, 2, rest, began)
                side.figures.clear()
            for number in range(max(round(args.seconds / args.slice), 1)):
                for side in sides if number % 2 else reversed(sides):
                    one_slice(side, bodies, args.connections, args.slice, rest, began)
            for side in sides:
                print(f"  {state + ', ' + side.name:16}" + "".join(cells(side, sides[0])), flush=True)


def cells(side: Side, base: Side) -> Iterator[str]:
    for name, width in (("cpu", 14), ("child_cpu", 16), ("own_mean", 14), ("rate", 10)):
        value = statistics.median(side.figures[name])
        yield f"{value:{width}.3f}" if name != "rate" else f"{value:{width}.0f}"
    pairs = zip(side.figures["cpu"], base.figures["cpu"], strict=True)
    yield f"   cpu {statistics.median(a / b for a, b in pairs):.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40, help="of load, for each gateway and kind of prompt")
    parser.add_argument("--slice", type=float, default=5, help="seconds of load before it is the next one's turn")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--only", default="rules,gateway", metavar="PARTS")
    args = parser.parse_args()
    parts = args.only.split(",")
    if "rules" in parts:
        rules(args.rounds)
    if "gateway" in parts:
        whole(args)


if __name__ == "__main__":
    main()
