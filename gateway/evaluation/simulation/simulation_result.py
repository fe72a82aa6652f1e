"""What a simulation of one policy found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.evaluation.simulation.simulation_workload import FleetShape

QUANTILES = (0.5, 0.9, 0.99)
"""Those of the time to first token that are reported."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One policy on one fleet.

    Attributes:
        policy: Its name.
        fleet: The fleet.
        requests: Requests that were answered.
        refused: Requests left out, because a replica's cache is too small for them.
        rejected: Requests left out, because the gateway's queue was full or they waited there too long.
        blocks: Blocks of all answered prompts, the incomplete last ones included.
        hit_blocks: Those that were in the cache. For ``ideal`` all that an earlier prompt has, as workload traces are
            described: also the block of a prompt's last token, which engines always compute.
        prompt_tokens: Of all answered prompts.
        cached_tokens: Those that were in the cache.
        ttft_seconds: Time to first token at each of ``QUANTILES``, waiting included; nan without requests.
        busy_share: Share of the time in which the replicas compute prompts, until the last first token.
        largest_share: Share of the requests that the replica with the most of them got.
        backlog_seconds: From the last arrival to the last first token.
    """

    policy: str
    fleet: FleetShape
    requests: int
    refused: int
    rejected: int
    blocks: int
    hit_blocks: int
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds: tuple[float, ...]
    busy_share: float
    largest_share: float
    backlog_seconds: float

    @property
    def block_share(self) -> float:
        """Share of the blocks that were hits."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_share(self) -> float:
        """Share of the prompt tokens that were hits: what engines report as cached tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """The values at ``QUANTILES``, by nearest rank."""
    ranked = sorted(values)
    if not ranked:
        return tuple(math.nan for _ in QUANTILES)
    return tuple(ranked[max(math.ceil(share * len(ranked)) - 1, 0)] for share in QUANTILES)
