"""How long the admin port's questions about reasons take with a full journal, and how much memory that has.

    python -m benchmarks.journal [--requests-per-second 1000] [--seconds 30] [--only questions,busy]

The journal: 200 keys (2 models, 10 tenants, 10 client families) with requests in every bucket of every ring, as many as
so many requests a second are, and 200 findings in each stretch of time; 5,000 requests in detail.

* `questions`: the explaining process's work for each question, alone: CPU and wall time, medians and worst, and the
  answer's size. Before it the memory of the journal, once it is full.
* `busy`: the same questions to a real process with such a journal, while so many 10 KB chat requests a second are
  handed over to it: how long each waits for its answer, in the gateway's process. `behind` is what was left out
  meanwhile because the process could not keep up.
"""

import argparse
import asyncio
import json
import random
import resource
import socket
import statistics
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from benchmarks.explain_records import KINDS, answered, prompts, record_of
from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.explanation import Attribution, Difference, Explanation, RequestRecord
from gateway.core.reasons import REASONS, Reason, Rung
from gateway.explain.worker import ExplainClient
from gateway.explain.worker.explain_parts import ExplainParts
from gateway.explain.worker.explain_supervisor import ExplainTimeouts
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.process import Session, run_until_closed
from gateway.stats import Stats
from gateway.stats.findings import findings_of
from gateway.stats.label_limiter import StatsKey
from gateway.stats.totals import Row, add_to, row_of

KEYS = [
    StatsKey(f"model-{model}", f"tenant-{tenant}", f"client-{source}", f"v{model}+d26abd2b6985")
    for model in range(2)
    for tenant in range(10)
    for source in range(10)
]
HOUR, DAY = 3600, 86400
VARIANTS = 12
"""Different rows of each length; the keys take them in turn."""

QUESTIONS = [
    (question, {"window": window} | more)
    for window in ("15m", "1h", "24h", "7d")
    for question, more in (
        ("summary", {}),
        ("summary", {"tenant": "tenant-3"}),
        ("reasons", {}),
        ("reasons", {"by": "source"}),
        ("reasons", {"by": "tenant", "reason": "dynamic_time"}),
    )
] + [("requests", {"limit": "1000"}), ("requests", {"source": "nobody"})]


def explained(rng: random.Random) -> Explanation:
    """Any explanation: hits, and up to four of a dozen reasons."""
    hits = rng.choice((0, 0, *range(160, 2400, 160)))
    missed = {reason: rng.randrange(1, 900) for reason in rng.sample(list(Reason)[:34:3], rng.randrange(1, 5))}
    rungs, length = [], hits
    for rung in Rung:
        length += sum(tokens for reason, tokens in missed.items() if REASONS[reason].rung is rung)
        rungs.append(length)
    return Explanation(
        length,
        hits,
        hits_confirmed=rng.random() < 0.9,
        rungs=tuple(rungs),
        missed=tuple(Attribution(reason, tokens, True) for reason, tokens in missed.items()),
        turn=rng.randrange(1, 14),
    )


def rows(plain: RequestRecord, count: int, rng: random.Random) -> list[Row]:
    """Rows of so many requests each."""
    made = []
    for _ in range(VARIANTS):
        total: Row = {}
        # Beyond some hundreds no more columns come up; the figures are then as large as those of all.
        for _ in range(min(count, 600)):
            finished = msgspec.structs.replace(plain, ttft_seconds=rng.lognormvariate(-1.5, 0.6))
            add_to(total, row_of(finished, explained(rng), 2))
        factor = max(count // 600, 1)
        made.append({column: figure * factor for column, figure in total.items()})
    return made


def fill(journal: Stats, now: float, requests_per_second: float) -> None:
    """A week up to now. Its parts are given what is added up already: a week of requests would take days to explain."""
    rng = random.Random(1)
    context = answered(next(prompts("new prompt", 1)), 0)
    plain = record_of(context, with_text=False)
    per_key = requests_per_second / len(KEYS)
    began = int(now - 7 * DAY) // HOUR * HOUR + HOUR
    for begin, end, step in ((began, now - DAY, HOUR), (now - DAY, now - HOUR, 300), (now - HOUR, now, 10)):
        made = rows(plain, round(per_key * step), rng)
        at = begin
        while at < end:
            for number, key in enumerate(KEYS):
                journal._counts.add(key, at, made[(number + int(at) // step) % VARIANTS])
            at += step
    for begin, end, step in ((began, now - DAY, 7200), (now - DAY, now - HOUR, 900), (now - HOUR, now, 60)):
        at = begin
        while at < end:
            for number, key in enumerate(KEYS):
                difference = Difference(
                    Reason.DYNAMIC_TIME, "iso_datetime", "messages[0].content", 0, "system", number % 7,
                    said=f"messages[0].content, line {number % 7}: a date and time that changes",
                )  # fmt: skip
                missed = (Attribution(Reason.DYNAMIC_TIME, 900 + number, True),)
                explanation = Explanation(2000, 0, True, (0,) * 8, missed, difference=difference)
                finished = msgspec.structs.replace(plain, request_id=f"req-{number}")
                journal._findings.add(findings_of(key, finished, explanation, 2), at)
            at += step
    for number in range(5000):
        key = KEYS[number % len(KEYS)]
        finished = msgspec.structs.replace(
            plain, request_id=f"req-{number}", at=now, model=key.model, tenant=key.tenant, source=key.source,
            where=msgspec.structs.replace(plain.where, template=key.template), ttft_seconds=0.2,
        )  # fmt: skip
        journal.add(finished, explained(rng), 2)


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def questions(requests_per_second: float) -> None:
    now = time.time()
    journal = Stats(now - 8 * DAY)
    before = memory_mib()
    began = time.process_time()
    fill(journal, now, requests_per_second)
    spent = time.process_time() - began
    print(f"a full journal: {memory_mib() - before:.0f} MiB; filled in {spent:.0f} s")
    before = memory_mib()
    print(f"{'question':58} {'KB':>6} {'CPU ms':>8} {'worst':>7} {'wall ms':>8} {'worst':>7}")
    for question, arguments in QUESTIONS:
        spent, waited, size = [], [], 0
        for _ in range(15):
            cpu, wall = time.process_time(), time.perf_counter()
            size = len(journal.answer(question, arguments, now))
            spent.append((time.process_time() - cpu) * 1e3)
            waited.append((time.perf_counter() - wall) * 1e3)
        reported = f"{question} {' '.join(f'{name}={value}' for name, value in arguments.items())}"
        print(
            f"{reported:58} {size / 1e3:6.0f} {statistics.median(spent):8.1f} {max(spent):7.1f} "
            f"{statistics.median(waited):8.1f} {max(waited):7.1f}",
            flush=True,
        )
    print(f"answering takes {memory_mib() - before:.0f} MiB for a moment")


class Filled(ExplainParts):
    """Who does the work in a process whose journal is full."""

    def __init__(self, terms, now):
        super().__init__(terms, now)
        self._journal = Stats(now - 8 * DAY)
        fill(self._journal, now, 1000)


class Tally:
    def __init__(self):
        self.skipped = 0
        self.missed = 0

    def on_missed(self, model, tenant, reason, tokens):
        self.missed += tokens

    def on_explain_skipped(self, count):
        self.skipped += count


def requests_handed() -> Iterator[RequestRecord]:
    """One third each of the kinds of `benchmarks.explain`, for ever; each with the time it is."""
    contexts = [answered(messages, 0) for kind in KINDS for messages in prompts(kind, 400)]
    random.Random(2).shuffle(contexts)
    values = [record_of(context) for context in contexts]
    number = 0
    while True:
        number += 1
        yield msgspec.structs.replace(values[number % len(values)], request_id=f"load-{number}", at=time.time())


async def busy(requests_per_second: float, seconds: float) -> None:
    tally = Tally()
    command = (sys.executable, "-m", "benchmarks.journal", "--child")
    timeouts = ExplainTimeouts(starting_ticks=600, answer_seconds=300)
    front = ExplainClient(ExplainSettings(), tally, {"m": 2}, command=command, timeouts=timeouts)
    front.start()
    await front.ask("requests", {"limit": "1"})
    handed, over = 0, False

    async def load() -> None:
        nonlocal handed
        coming = requests_handed()
        began = time.perf_counter()
        while not over:
            while handed < (time.perf_counter() - began) * requests_per_second:
                finished = next(coming)
                if not front.accepts_text:
                    finished = msgspec.structs.replace(finished, body=b"", parts=(), replies=())
                front.record_request(finished)
                handed += 1
            await asyncio.sleep(0.005)

    loading = asyncio.create_task(load())
    await asyncio.sleep(3)
    waited: dict[str, list[float]] = {}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for question, arguments in QUESTIONS:
            asked = time.perf_counter()
            json.loads(await front.ask(question, arguments))
            reported = f"{question} {' '.join(f'{name}={value}' for name, value in arguments.items())}"
            waited.setdefault(reported, []).append((time.perf_counter() - asked) * 1e3)
            await asyncio.sleep(0.1)
    rate = handed / (time.perf_counter() - began + 3)
    over = True
    await loading
    print(f"{rate:.0f} requests a second handed over; behind: {tally.skipped / handed:.1%} without text")
    print(f"{'question':58} {'asked':>6} {'median ms':>10} {'worst':>8}")
    for reported, times in waited.items():
        print(f"{reported:58} {len(times):6} {statistics.median(times):10.1f} {max(times):8.1f}")
    await front.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests-per-second", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=30, help="of questions to a busy process")
    parser.add_argument("--only", default="questions,busy", metavar="PARTS")
    parser.add_argument("--child", type=int, metavar="FD", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        run_until_closed(Session(socket.socket(fileno=args.child), ExplainWorker(Filled)).run)
        return
    parts = args.only.split(",")
    if "questions" in parts:
        questions(args.requests_per_second)
    if "busy" in parts:
        uvloop.run(busy(args.requests_per_second, args.seconds))


if __name__ == "__main__":
    main()
