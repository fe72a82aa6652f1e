"""A workload trace over sockets against its simulation: does ``prefix-gateway simulate`` predict the hit share?

    python -m benchmarks.replay TRACE [--requests 3000] [--replicas 8] [--blocks 2000] [--policy expected_ttft,…]

The first requests of a trace are sent to a real gateway in front of simulated engines that publish KV events, all of
them processes of their own, through `/v1/completions` with prompts as token ids; the same requests are simulated
without sockets. Both hit shares are shown side by side, and the times to first token in the time of the trace. To fit
into minutes, time runs faster (`--compress`): requests come that much closer, and the engines are that much faster. An
answer of the trace's length would be some hundred events for every request, which this machine could not send in
time: answers have one token for every 64 of the trace, each of which takes as long as 64, in both.

`sent late` shows whether this machine kept up, in seconds of the trace; if not, take a smaller `--compress`. The times
over sockets include what gateway, engines and this process take, multiplied by `--compress`.

Exit code 0 if all answers are right and the hit shares differ by at most 2 points, else 1; 2 for bad input.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks.replay.client import Replayed, replay
from benchmarks.replay.stage import MODEL, Stage
from benchmarks.replay.token_prompts import TokenPrompts
from gateway.config.routing_settings import PlacementSettings, QueueSettings
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.simulation import FleetShape, SimulationResult, Workload, simulate
from gateway.evaluation.simulation.simulation_workload import quantiles
from gateway.evaluation.workload_trace import TraceReader, TraceRequest

_TOKENS_PER_TOKEN = 64
_MOST_POINTS = 2.0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=3000, help="how many of the trace, the first ones")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2000, help="of each engine's cache, of the trace's size")
    parser.add_argument("--prefill-rate", type=float, default=6000.0, help="tokens a second that an engine computes")
    parser.add_argument("--decode-ms", type=float, default=10.0, help="for a token of an answer")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--policy", default="expected_ttft", help="one or several, separated by commas")
    parser.add_argument("--compress", type=float, default=10.0)
    parser.add_argument("--queue", action="store_true", help="with the gateway's queue at its default settings")
    parser.add_argument("--keep", type=Path, help="folder for configurations and logs")
    args = parser.parse_args()
    try:
        with args.trace.open("rb") as source:
            reader = TraceReader(source, str(args.trace))
            requests = [_shortened(each) for each in itertools.islice(reader, args.requests)]
    except (BadInput, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    decode_seconds = _TOKENS_PER_TOKEN * args.decode_ms / 1000
    fleet = FleetShape(args.replicas, args.blocks, args.prefill_rate, decode_seconds, args.slots)
    fitting = [each for each in requests if _fits(each, fleet, reader.block_size)]
    print(
        f"{len(fitting):,} requests, {fleet.replicas} replicas x {fleet.blocks:,} blocks of {reader.block_size} tokens"
    )
    far = False
    for policy in args.policy.split(","):
        queue = QueueSettings() if args.queue else None
        found = simulate(Workload.of(fitting, reader.block_size), fleet, policy, queue=queue)
        replayed = asyncio.run(_replay(fitting, fleet, reader.block_size, policy, args.compress, queue, args.keep))
        _show(policy, found, replayed, args.compress)
        points = 100 * abs(found.token_share - replayed.token_share)
        far |= points > _MOST_POINTS or bool(replayed.problems)
    return 1 if far else 0


async def _replay(
    requests: Sequence[TraceRequest],
    fleet: FleetShape,
    block_size: int,
    policy: str,
    compress: float,
    queue: QueueSettings | None,
    keep: Path | None,
) -> Replayed:
    with tempfile.TemporaryDirectory() as folder:
        place = (keep or Path(folder)) / policy
        weight = PlacementSettings().miss_weight
        async with Stage(place, fleet, block_size, policy, weight, compress, queue) as stage:
            began = time.monotonic()
            found = await replay(stage.gateway.url, requests, TokenPrompts(MODEL, block_size), compress)
            print(f"{policy}: replayed in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _show(policy: str, found: SimulationResult, replayed: Replayed, compress: float) -> None:
    print(f"\n{policy:20}{'hits':>9}{'p50':>9}{'p90':>9}{'p99':>9} s  most at one replica")
    times = tuple(compress * seconds for seconds in quantiles(replayed.ttft))
    for name, share, seconds, largest in (
        ("simulated", found.token_share, found.ttft_seconds, found.largest_share),
        ("over sockets", replayed.token_share, times, replayed.largest_share),
    ):
        shown = "".join(f"{value:9.2f}" for value in seconds)
        print(f"{name:20}{100 * share:7.2f} %{shown}    {100 * largest:.0f} %")
    late = [compress * seconds for seconds in quantiles(replayed.late)]
    print(f"{'sent late':29}{late[0]:9.2f}{late[1]:9.2f}{late[2]:9.2f} s")
    print(f"difference: {100 * (found.token_share - replayed.token_share):+.2f} points of the hit share")
    for problem in replayed.problems[:5]:
        print(f"NOT RIGHT  {problem}")
    if len(replayed.problems) > 5:
        print(f"NOT RIGHT  and {len(replayed.problems) - 5} more", flush=True)


def _shortened(request: TraceRequest) -> TraceRequest:
    return replace(request, output_tokens=-(-max(request.output_tokens, 1) // _TOKENS_PER_TOKEN))


def _fits(request: TraceRequest, fleet: FleetShape, block_size: int) -> bool:
    return 0 < request.prompt_tokens < fleet.blocks * block_size - request.output_tokens


if __name__ == "__main__":
    sys.exit(main())
