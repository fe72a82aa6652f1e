"""The report of ``prefix-gateway simulate``, as text and as JSON."""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.evaluation.simulation import LIMITS, QUANTILES, SimulationResult, Workload

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
