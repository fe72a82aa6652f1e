"""``prefix-gateway simulate TRACE``: hit shares and times to first token of policies, fleets and cache sizes."""

import argparse
import contextlib
import gzip
import json
import math
import os
import signal
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from io import BufferedReader
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gateway.commands.argument_types import above_zero, not_negative, whole_number
from gateway.commands.printing import printed
from gateway.config.routing_settings import PlacementSettings, QueueSettings
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.simulation import LIMITS, POLICIES, QUANTILES, FleetShape, SimulationResult, Workload, simulate
from gateway.evaluation.simulation.trace_file import WorkloadReader

_DONE = 0
_BAD_INPUT = 2
_GIB = 1 << 30
_KV_BYTES_PER_TOKEN = 131_072
_TOKENS = 500_000
_GZIP = b"\x1f\x8b"
_MAX_JOBS = 64
_REQUESTS_PER_JOB = 20_000
"""Simulated requests for which another process is worth its start: about two seconds of work."""

DESCRIPTION = """\
Replay a workload trace against simulated replicas, without sockets or engines, and show what share of the prompts is
found in their caches, and the time to first token: for the gateway's policies, and for the limits above them. TRACE
is a file of JSON lines with timestamp, input_length, output_length and hash_ids (Mooncake's format, also .gz);
`prefix-gateway analyze --anonymize` writes one from recorded requests. It has lengths and hashes, no text."""

EPILOG = """\
the ladder, from top to bottom:
  ideal          one cache without a limit, shared by all replicas: what the traffic repeats
  capacity       one shared cache as large as all caches together: less because of the caches' size
  perfect        a cache for each replica, every request sent to the one that holds most, loads ignored: less because
                 the caches are separate
  expected_ttft, round_robin, least_load, session
                 the gateway's policies (placement.policy in its configuration)
  load_gate      affinity with a load gate, as other routers have it: the replica that holds most while loads are even

examples:
  prefix-gateway simulate trace.jsonl
  prefix-gateway simulate trace.jsonl --replicas 2,4,8 --gib 20,40 --prefill-rate 12000
  prefix-gateway simulate trace.jsonl --replicas 8 --blocks 2000 --policy expected_ttft --rate 5 --json

exit code: 0 simulated, 2 bad usage, or TRACE cannot be simulated"""

_T = TypeVar("_T", int, float)
_SATURATED_SHARE = 0.1
_SATURATED_SECONDS = 60.0
"""A fleet that needs longer than both, this share of the trace and so many seconds, behind the last arrival is
overloaded."""

_WIDTH = 80
_NAMES = {"ideal": "ideal (unbounded)", "capacity": "capacity (shared)", "perfect": "perfect routing"}
_HEADS = [f"p{100 * share:.0f}" for share in QUANTILES]


@dataclass(frozen=True, slots=True)
class Simulated:
    """What was simulated.

    Attributes:
        trace: Name of the trace.
        workload: Its requests, at the speed of the simulation.
        speed: How many times faster than in the trace they arrive.
        ladders: The rungs of each fleet.
        has_sessions: Whether the trace names sessions.
    """

    trace: str
    workload: Workload
    speed: float
    ladders: Sequence[Sequence[SimulationResult]]
    has_sessions: bool


def as_lines(simulated: Simulated) -> Iterator[str]:
    """The report as text."""
    workload = simulated.workload
    rate = f", {len(workload) / workload.seconds:.3g} a second" if workload.seconds else ""
    speed = f" at {simulated.speed:.3g} times the speed of the trace" if simulated.speed != 1.0 else ""
    yield f"{simulated.trace}: {len(workload):,} requests in {_duration(workload.seconds)}{rate}{speed}"
    yield (
        f"{workload.prompt_tokens / len(workload):,.0f} prompt tokens on average, in blocks of "
        f"{workload.block_size} tokens"
    )
    for rungs in simulated.ladders:
        yield ""
        yield from _ladder(rungs, workload.block_size)
        for note in _notes(rungs, simulated):
            yield from textwrap.wrap(note, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def as_document(simulated: Simulated) -> str:
    """The report as JSON, with a line end."""
    workload = simulated.workload
    document = {
        "trace": simulated.trace,
        "requests": len(workload),
        "seconds": workload.seconds,
        "speed": simulated.speed,
        "block_size": workload.block_size,
        "prompt_tokens": workload.prompt_tokens,
        "ideal_block_share": workload.seen_blocks / workload.blocks,
        "fleets": [
            {
                **asdict(rungs[0].fleet),
                "rungs": [_rung(rung) for rung in rungs],
                "notes": list(_notes(rungs, simulated)),
            }
            for rungs in simulated.ladders
        ],
    }
    return json.dumps(document) + "\n"


def _rung(rung: SimulationResult) -> dict[str, Any]:
    fields = asdict(rung)
    del fields["fleet"]
    seconds = [None if math.isnan(value) else value for value in fields.pop("ttft_seconds")]
    return fields | {
        "block_share": rung.block_share,
        "token_share": rung.token_share,
        "ttft_seconds": dict(zip(_HEADS, seconds, strict=True)),
    }


def _ladder(rungs: Sequence[SimulationResult], block_size: int) -> Iterator[str]:
    fleet = rungs[0].fleet
    yield (
        f"{fleet.replicas} {'replica' if fleet.replicas == 1 else 'replicas'} with {fleet.blocks:,} blocks "
        f"({fleet.blocks * block_size:,} tokens) each, {fleet.prefill_rate:,g} prefill tokens/s, "
        f"{fleet.decode_seconds * 1000:g} ms per token, {fleet.slots} slots"
    )
    heads = "".join(f"{head:>9}" for head in _HEADS)
    yield f"  {'':18}{'hits, share of':>18}{'TTFT, s':>25}{'prefill':>11}"
    yield f"  {'':18}{'blocks':>9}{'tokens':>9}{heads}{'busy':>9}"
    for number, rung in enumerate(rungs):
        if number == len(LIMITS):
            yield ""
        times = "".join(f"{_seconds(value):>9}" for value in rung.ttft_seconds)
        yield (
            f"  {_NAMES.get(rung.policy, rung.policy):18}{100 * rung.block_share:7.2f} %{100 * rung.token_share:7.2f} %"
            f"{times}{100 * rung.busy_share:7.0f} %"
        )


def _notes(rungs: Sequence[SimulationResult], simulated: Simulated) -> Iterator[str]:
    limits, policies = rungs[: len(LIMITS)], rungs[len(LIMITS) :]
    ideal, capacity, perfect = limits
    first = policies[0]
    yield (
        f"Tokens that repeat: {_share(ideal)}. Caches of this size, shared: {_share(capacity)}; one for each replica: "
        f"{_share(perfect)}; with {first.policy}: {_share(first)}."
    )
    if len(policies) > 1:
        fastest = min(policies, key=lambda rung: rung.ttft_seconds)
        yield f"Shortest median TTFT: {fastest.policy}."
    refused = max(rung.refused for rung in rungs)
    if refused:
        yield (
            f"{refused:,} requests are longer than the cache of a replica: they are left out, except where caches are"
            " shared."
        )
    rejected = [f"{rung.policy} {rung.rejected:,}" for rung in rungs if rung.rejected]
    if rejected:
        yield f"Rejected by the gateway's queue and left out: {', '.join(rejected)}."
    longest = max(_SATURATED_SHARE * simulated.workload.seconds, _SATURATED_SECONDS)
    overloaded = [rung.policy for rung in rungs if rung.backlog_seconds > longest]
    if overloaded:
        yield (
            f"Overloaded: {', '.join(overloaded)}: more work arrives than is computed, and the times grow with the "
            "length of the trace."
        )
    if not simulated.has_sessions and any(rung.policy == "session" for rung in policies):
        yield "The trace names no sessions: `session` goes by the first block of the prompt."


def _share(rung: SimulationResult) -> str:
    return f"{100 * rung.token_share:.2f} %"


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    for name, length in (("hours", 7200.0), ("minutes", 120.0)):
        if seconds >= length:
            return f"{seconds / (length / 2):,.0f} {name}"
    return f"{seconds:,.3g} seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("trace", metavar="TRACE", help="the trace; - reads standard input")
    _add_fleet(parser)
    traffic = parser.add_mutually_exclusive_group()
    traffic.add_argument(
        "--speed", type=above_zero, default=1.0, metavar="F", help="requests arrive F times faster (default: 1)"
    )
    traffic.add_argument("--rate", type=above_zero, metavar="R", help="requests arrive at R a second on average")
    parser.add_argument(
        "--policy",
        type=_policies,
        default=POLICIES,
        metavar="NAMES",
        help=f"only these policies, separated by commas: {', '.join(POLICIES)}",
    )
    parser.add_argument(
        "--miss-weight",
        type=not_negative,
        default=PlacementSettings().miss_weight,
        metavar="W",
        help="weight of expected_ttft, as placement.miss_weight (default: %(default)s)",
    )
    parser.add_argument(
        "--queue",
        action="store_true",
        help="with the gateway's queue at its default settings, for the gateway's policies (default: none)",
    )
    parser.add_argument("--gaps", action="store_true", help="take a trace that was interrupted as it is")
    parser.add_argument(
        "--jobs",
        type=whole_number(),
        default=min(os.cpu_count() or 1, _MAX_JOBS),
        metavar="N",
        help="processes (default: cores)",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON document")


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    shape = FleetShape(1, 1)
    group = parser.add_argument_group("fleet", "lists are separated by commas; every combination is simulated")
    group.add_argument(
        "--replicas", type=_counts, default=[4], metavar="N,...", help="numbers of replicas (default: 4)"
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--blocks", type=_counts, metavar="N,...", help="cache of each replica, in blocks of the trace")
    size.add_argument("--tokens", type=_counts, metavar="N,...", help=f"the same in tokens (default: {_TOKENS:,})")
    size.add_argument("--gib", type=_sizes, metavar="G,...", help="the same in GiB")
    group.add_argument(
        "--kv-bytes-per-token",
        type=whole_number(),
        default=_KV_BYTES_PER_TOKEN,
        metavar="B",
        help="for --gib: layers x 2 x KV heads x head size x bytes (default: %(default)s, Llama 3.1 8B in 16 bits)",
    )
    group.add_argument(
        "--prefill-rate",
        type=above_zero,
        default=shape.prefill_rate,
        metavar="R",
        help="prompt tokens that a replica computes per second (default: %(default)g)",
    )
    group.add_argument(
        "--decode-ms",
        type=not_negative,
        default=shape.decode_seconds * 1000,
        metavar="MS",
        help="milliseconds for each generated token (default: %(default)g)",
    )
    group.add_argument(
        "--slots",
        type=whole_number(),
        default=shape.slots,
        metavar="N",
        help="sequences that a replica computes at once, as --max-num-seqs of vLLM (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        simulated = _simulated(args)
    except BadInput as problem:
        print(f"prefix-gateway simulate: {problem}", file=sys.stderr)
        return _BAD_INPUT
    printed(as_document(simulated) if args.json else "\n".join(as_lines(simulated)) + "\n")
    return _DONE


def _simulated(args: argparse.Namespace) -> Simulated:
    name = "standard input" if args.trace == "-" else args.trace
    with _opened(args.trace, name) as source:
        reader = WorkloadReader(source, name)
        workload = reader.read(allow_gaps=args.gaps)
    speed = args.speed if args.rate is None else _speed(workload, args.rate, name)
    if speed != 1.0:
        workload = workload.faster(speed)
    fleets = _fleets(args, workload.block_size)
    settings = PlacementSettings(miss_weight=args.miss_weight)
    options = _Options(workload, settings, QueueSettings() if args.queue else None)
    found = _results(options, fleets, (*LIMITS, *args.policy), args.jobs)
    return Simulated(name, workload, speed, found, has_sessions=reader.has_sessions)


@contextlib.contextmanager
def _opened(file: str, name: str) -> Iterator[BinaryIO]:
    try:
        with contextlib.ExitStack() as stack:
            plain = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            packed = cast(BufferedReader, plain).peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            yield cast(BinaryIO, stack.enter_context(gzip.open(plain))) if packed else plain
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _speed(workload: Workload, rate: float, name: str) -> float:
    if not workload.seconds:
        raise BadInput(f"{name}: all requests arrive at one moment, so that --rate has nothing to scale: leave it out")
    return rate * workload.seconds / len(workload)


def _fleets(args: argparse.Namespace, block_size: int) -> list[FleetShape]:
    if args.blocks is not None:
        sizes = args.blocks
    elif args.gib is not None:
        sizes = [int(gib * _GIB / args.kv_bytes_per_token / block_size) for gib in args.gib]
    else:
        sizes = [tokens // block_size for tokens in args.tokens or [_TOKENS]]
    if min(sizes) < 1:
        raise BadInput(f"a cache is smaller than one block of {block_size} tokens of this trace: give it more room")
    return [
        FleetShape(replicas, blocks, args.prefill_rate, args.decode_ms / 1000, args.slots)
        for replicas in args.replicas
        for blocks in sizes
    ]


class _Options(NamedTuple):
    """What all simulations of one call have in common."""

    workload: Workload
    settings: PlacementSettings
    queue: QueueSettings | None

    def simulate(
        self, fleet: FleetShape, rung: str, on_progress: Callable[[int], None] | None = None
    ) -> SimulationResult:
        """One rung of one fleet."""
        return simulate(self.workload, fleet, rung, settings=self.settings, queue=self.queue, on_progress=on_progress)


def _results(
    options: _Options, fleets: Sequence[FleetShape], rungs: Sequence[str], jobs: int
) -> list[list[SimulationResult]]:
    """The rungs of each fleet, computed in several processes if that is worth their start."""
    tasks = [(fleet, rung) for fleet in fleets for rung in rungs]
    requests = len(options.workload)
    jobs = min(jobs, len(tasks), len(tasks) * requests // _REQUESTS_PER_JOB)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        advance = partial(progress.advance, progress.add_task("simulating", total=len(tasks) * requests))
        if jobs <= 1:
            found = [options.simulate(fleet, rung, advance) for fleet, rung in tasks]
        else:
            found = _in_processes(options, tasks, jobs, advance)
    return [found[start : start + len(rungs)] for start in range(0, len(found), len(rungs))]


def _in_processes(
    options: _Options, tasks: Sequence[tuple[FleetShape, str]], jobs: int, on_progress: Callable[[int], None]
) -> list[SimulationResult]:
    # Started anew rather than forked: the progress display has a thread.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _keep, (options,)) as pool:
        futures = [pool.submit(_one, fleet, rung) for fleet, rung in tasks]
        try:
            for _ in as_completed(futures):
                on_progress(len(options.workload))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


_kept: list[_Options] = []
"""In a process of the pool: what all of its tasks use."""


def _keep(options: _Options) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback
    _kept[:] = [options]


def _one(fleet: FleetShape, rung: str) -> SimulationResult:
    return _kept[0].simulate(fleet, rung)


def _counts(text: str) -> list[int]:
    return _listed(text, whole_number())


def _sizes(text: str) -> list[float]:
    return _listed(text, above_zero)


def _listed(text: str, convert: Callable[[str], _T]) -> list[_T]:
    return list(dict.fromkeys(convert(part.strip()) for part in text.split(",")))


def _policies(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"no policy {name!r}; choose from {', '.join(POLICIES)}")
    return tuple(dict.fromkeys(names))
