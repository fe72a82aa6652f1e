"""One replica in simulated time: first come, first served, one prefill at a time, decoding in parallel.

The times and the order are those of ``simulator/engine_scheduler.py``. A sequence is scheduled when no other one is in
prefill, a slot is free, and enough blocks are free for it and for the tokens that running ones will still generate.
"""

from collections import deque
from collections.abc import Callable
from enum import IntEnum

from gateway.evaluation.simulation.cache_model import PrefixCacheModel
from gateway.evaluation.simulation.simulation_workload import WorkloadRequest


class Step(IntEnum):
    """What happens to a call at a moment; in this order if several happen at the same one."""

    FIRST_TOKEN = 0
    """Its prompt is computed."""
    BLOCK = 1
    """Its next generated token needs another block."""
    END = 2
    """Its answer is complete."""


class SimulatedCall:
    """One request at a replica.

    Args:
        request: The request.
        sent_at: When it was sent to the replica.

    Attributes:
        request: The same.
        sent_at: The same.
        first_at: When its prompt is computed; known from scheduling on.
        end_at: When its answer is complete; known from scheduling on.
        hits: Blocks that were hits; known from scheduling on.
        prefill_tokens: Uncached tokens as expected when it was sent.
        prefill_ahead: Those left to compute at the replica then, as the gateway's policies expect.
        prefill_number: Its number among the prefills in flight there.
        blocks: Blocks that it holds.
        final_blocks: Blocks that it will hold at the end.
    """

    __slots__ = (
        "blocks",
        "end_at",
        "final_blocks",
        "first_at",
        "hits",
        "prefill_ahead",
        "prefill_number",
        "prefill_tokens",
        "request",
        "sent_at",
    )

    def __init__(self, request: WorkloadRequest, sent_at: float) -> None:
        self.request = request
        self.sent_at = sent_at
        self.first_at = self.end_at = 0.0
        self.hits = self.prefill_tokens = self.prefill_ahead = self.prefill_number = 0
        self.blocks = self.final_blocks = 0


class ReplicaModel:
    """A replica, or several that share one cache.

    Args:
        cache: Its cache.
        block_size: Tokens per block.
        prefill_rate: Prompt tokens computed per second by one prefill.
        decode_seconds: Time of each generated token after the first.
        slots: Sequences at the same time.
        lanes: Prefills at the same time; 1 for a real replica.
        at: Asks for a call of ``on_step`` at a time.

    Attributes:
        prefill_seconds: Time spent in prefill.
        calls: Calls that it was sent.
    """

    def __init__(
        self,
        cache: PrefixCacheModel,
        *,
        block_size: int,
        prefill_rate: float,
        decode_seconds: float,
        slots: int,
        lanes: int,
        at: Callable[[float, Step, SimulatedCall], None],
    ) -> None:
        self._cache = cache
        self._block_size = block_size
        self._prefill_rate = prefill_rate
        self._decode_seconds = decode_seconds
        self._slots = slots
        self._lanes = lanes
        self._at = at
        self._waiting: deque[SimulatedCall] = deque()
        self._running = 0
        self._prefilling = 0
        self._promised = 0
        self.prefill_seconds = 0.0
        self.calls = 0

    def fits(self, request: WorkloadRequest) -> bool:
        """Whether an empty cache can hold the request with its answer."""
        return self._cache.blocks is None or self._final_blocks(request) <= self._cache.blocks

    def send(self, call: SimulatedCall, now: float) -> list[SimulatedCall]:
        """A call arrives; it has to fit. Returns the calls that are scheduled now."""
        self.calls += 1
        call.final_blocks = self._final_blocks(call.request)
        self._waiting.append(call)
        return self._schedule(now)

    def on_step(self, step: Step, call: SimulatedCall, now: float) -> list[SimulatedCall]:
        """A moment that was asked for. Returns the calls that are scheduled now."""
        if step is Step.BLOCK:
            self._cache.grow()
            call.blocks += 1
            self._promised -= 1
            self._ask_for_block(call, now + self._block_size * self._decode_seconds)
            return []
        if step is Step.FIRST_TOKEN:
            self._prefilling -= 1
        else:
            self._end(call)
        return self._schedule(now)

    def _final_blocks(self, request: WorkloadRequest) -> int:
        # The last generated token is never fed back into the model, so it needs no space.
        return -(-(request.prompt_tokens + request.output_tokens - 1) // self._block_size)

    def _schedule(self, now: float) -> list[SimulatedCall]:
        scheduled = []
        while self._waiting and self._prefilling < self._lanes and self._running < self._slots:
            call = self._waiting[0]
            request = call.request
            needed = -(-request.prompt_tokens // self._block_size)
            growth = call.final_blocks - needed
            hits = self._cache.begin(request.full, request.reusable, needed, self._promised + growth)
            if hits is None:
                break
            self._waiting.popleft()
            self._running += 1
            self._prefilling += 1
            self._promised += growth
            call.hits, call.blocks = hits, needed
            self._plan(call, now)
            scheduled.append(call)
        return scheduled

    def _plan(self, call: SimulatedCall, now: float) -> None:
        """Ask for the steps of a call whose prefill starts now."""
        request = call.request
        seconds = (request.prompt_tokens - call.hits * self._block_size) / self._prefill_rate
        self.prefill_seconds += seconds
        call.first_at = now + seconds
        self._at(call.first_at, Step.FIRST_TOKEN, call)
        call.end_at = call.first_at + (request.output_tokens - 1) * self._decode_seconds
        # The first generated token that is fed back needs a block if the prompt leaves no room in its last one.
        room = call.blocks * self._block_size - request.prompt_tokens
        self._ask_for_block(call, call.first_at + (room + 1) * self._decode_seconds)
        self._at(call.end_at, Step.END, call)

    def _ask_for_block(self, call: SimulatedCall, moment: float) -> None:
        if call.blocks < call.final_blocks:
            self._at(min(moment, call.end_at), Step.BLOCK, call)

    def _end(self, call: SimulatedCall) -> None:
        self._running -= 1
        request = call.request
        tokens = request.prompt_tokens + request.output_tokens - 1
        full = tokens // self._block_size
        generated = full - len(request.full)
        self._cache.end(request.full, generated, call.blocks - full)
