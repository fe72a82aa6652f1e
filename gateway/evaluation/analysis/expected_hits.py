"""Expected hit rates for fleets of several sizes, simulated on the requests of a log.

The log's block ids stand in a temporary file meanwhile: they are needed as a whole only when all requests are read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from gateway.evaluation.analysis.log_analysis import ExpectedHits
from gateway.evaluation.simulation import FleetShape, Workload, simulate
from gateway.evaluation.workload_trace import TraceReader, TraceRequest

POLICIES = {"expected_ttft": "this gateway", "round_robin": "round robin"}
"""The simulated policies, and what they are called."""

MAX_REQUESTS = 20_000
_MAX_BLOCKS = 1_000_000
"""Requests that are simulated, from the first one on, and their blocks: some seconds for each fleet and policy."""


def expected_hits(
    trace: BinaryIO,
    block_size: int,
    *,
    replicas: Sequence[int],
    cache_tokens: Sequence[int],
    on_progress: Callable[[float], None],
) -> tuple[list[ExpectedHits], int]:
    """Simulate every number of replicas with every cache size.

    Args:
        trace: The requests as a workload trace, at its beginning.
        block_size: Tokens per block of it.
        replicas: Numbers of replicas.
        cache_tokens: Tokens that the cache of a replica holds.
        on_progress: Called with the share of the work that is done.

    Returns:
        The hit rates, and the number of requests that were simulated.
    """
    workload = Workload.of(_first(TraceReader(trace, "trace")), block_size)
    found: list[ExpectedHits] = []
    runs = len(replicas) * len(cache_tokens)
    for number, (tokens, count) in enumerate((tokens, count) for tokens in cache_tokens for count in replicas):
        fleet = FleetShape(count, max(tokens // block_size, 1))
        shares = {policy: round(simulate(workload, fleet, policy).token_share, 6) for policy in POLICIES}
        found.append(ExpectedHits(count, tokens, shares))
        on_progress((number + 1) / runs)
    return found, len(workload)


def _first(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """As many requests as are simulated."""
    blocks = 0
    for number, request in enumerate(requests):
        blocks += len(request.blocks)
        if number >= MAX_REQUESTS or blocks > _MAX_BLOCKS:
            return
        yield request
