"""What a simulation starts from, the requests of a trace and the shape of a fleet; and what it found."""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gateway.evaluation.workload_trace import TraceRequest

QUANTILES = (0.5, 0.9, 0.99)
"""Those of the time to first token that are reported."""


@dataclass(frozen=True, slots=True)
class FleetShape:
    """A fleet of equal replicas.

    Attributes:
        replicas: How many, at least 1.
        blocks: Blocks that the cache of each one can hold, each as large as a block of the trace; at least 1.
        prefill_rate: Uncached prompt tokens that each computes per second, one prompt after the other.
        decode_seconds: Time of each generated token after the first.
        slots: Sequences that each computes at once.
    """

    replicas: int
    blocks: int
    prefill_rate: float = 8000.0
    decode_seconds: float = 0.01
    slots: int = 256

    def __post_init__(self) -> None:
        for name in ("replicas", "blocks", "prefill_rate", "slots"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.decode_seconds >= 0:
            raise ValueError(f"decode_seconds must not be negative, not {self.decode_seconds}")


class WorkloadRequest(msgspec.Struct, frozen=True, gc=False):
    """One request, prepared.

    Attributes:
        at: Arrival in seconds.
        prompt_tokens: Length of the prompt, at least 1.
        output_tokens: Length of the answer, at least 1.
        full: Numbers of the full blocks of the prompt, from 0 on; equal numbers for equal ids. Only full blocks can be
            reused.
        reusable: How many of them can be hits: the last token of a prompt is always computed, and so is its block.
        beginning: The trace's id of the first block.
        session: The client's session; None if it is not known.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    full: Sequence[int]
    reusable: int
    beginning: int
    session: str | None


class Workload:
    """The requests of a trace.

    Args:
        requests: In order of arrival.
        block_size: Tokens per block.

    Attributes:
        block_size: The same.
        requests: The requests, prepared; those with an empty prompt are left out.
        prompt_tokens: Of all of them.
        blocks: Blocks of all prompts, the incomplete last ones included.
        seen_blocks: Those of them at the beginning of a prompt that an earlier prompt has, too. An incomplete last
            block counts where the whole prompt is repeated.
    """

    def __init__(self, requests: Sequence[WorkloadRequest], block_size: int, *, blocks: int, seen_blocks: int) -> None:
        self.requests = requests
        self.block_size = block_size
        self.prompt_tokens = sum(request.prompt_tokens for request in requests)
        self.blocks = blocks
        self.seen_blocks = seen_blocks

    @classmethod
    def of(cls, requests: Iterable[TraceRequest], block_size: int, *, speed: float = 1.0) -> "Workload":
        """Prepare the requests of a trace.

        Args:
            requests: In order of arrival.
            block_size: Tokens per block.
            speed: The requests arrive so many times faster.
        """
        numbers: dict[int, int] = {}
        blocks = seen_blocks = 0
        prepared = []
        for request in requests:
            if request.prompt_tokens < 1:
                continue
            blocks += len(request.blocks)
            seen_blocks += _leading(request.blocks, numbers)
            numbered = [numbers.setdefault(block, len(numbers)) for block in request.blocks]
            full = tuple(numbered[: request.prompt_tokens // block_size])
            prepared.append(
                WorkloadRequest(
                    request.at / speed,
                    request.prompt_tokens,
                    max(request.output_tokens, 1),
                    full,
                    (request.prompt_tokens - 1) // block_size,
                    request.blocks[0],
                    request.session or None,
                )
            )
        return cls(prepared, block_size, blocks=blocks, seen_blocks=seen_blocks)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last one."""
        return self.requests[-1].at - self.requests[0].at if self.requests else 0.0

    def faster(self, speed: float) -> "Workload":
        """The same requests, arriving ``speed`` times faster."""
        requests = [msgspec.structs.replace(request, at=request.at / speed) for request in self.requests]
        return Workload(requests, self.block_size, blocks=self.blocks, seen_blocks=self.seen_blocks)


def _leading(blocks: Sequence[int], seen: Container[int]) -> int:
    """How many blocks at the beginning were seen before."""
    for depth, block in enumerate(blocks):
        if block not in seen:
            return depth
    return len(blocks)


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
