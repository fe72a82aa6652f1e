"""Schedules sequences in time: slots, one prefill at a time, decoding in parallel.

Every time is computed from the one before, not from when the event loop woke up, so late wake-ups do not accumulate.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.prompt import TOKEN_BYTES
from gateway.simulator.block_cache import BlockCache, SequenceBlocks


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer to compute.

    Attributes:
        prompt: Little-endian u32 ids, at least one.
        answer: Ids to generate, at least one.
        salt: Cache salt, empty for none.
        adapter: LoRA adapter, empty for none.
        reuse: Whether the cache may be read.
        cached_tokens: Prompt tokens found in the cache; known from the first token on.
    """

    prompt: bytes
    answer: tuple[int, ...]
    salt: str = ""
    adapter: str = ""
    reuse: bool = True
    cached_tokens: int = 0


@dataclass(slots=True)
class SchedulerTotals:
    """Counters since the start, in tokens and sequences."""

    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0


@dataclass(slots=True, eq=False)
class _Turn:
    """A sequence on its way through the engine."""

    sequence: Sequence
    table: SequenceBlocks
    arrived: float
    prefilled_at: asyncio.Future[float]
    final_blocks: int


class Scheduler:
    """Decides when each sequence is computed. First come, first served.

    A sequence is scheduled when no other one is in prefill, a slot is free, and enough blocks are free for it and
    for the tokens that running ones will still generate. The answers' lengths are known beforehand, so no sequence is
    ever preempted.

    Args:
        cache: The blocks it gives to sequences.
        slots: Sequences at the same time.
        prefill_rate: Prompt tokens computed per second.
        decode_seconds: Time of each generated token.
        on_step: Called after each step that changed the cache: a prefill that was scheduled, or the tokens decoded at
            one moment.
    """

    def __init__(
        self,
        cache: BlockCache,
        *,
        slots: int,
        prefill_rate: float,
        decode_seconds: float,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._cache = cache
        self._slots = slots
        self._prefill_rate = prefill_rate
        self._decode_seconds = decode_seconds
        self._waiting: deque[_Turn] = deque()
        self._running: set[_Turn] = set()
        self._prefilling: _Turn | None = None
        self._prefill_free_at = 0.0
        self._held_up = False
        self._on_step = on_step
        self._step_ending = False
        self.totals = SchedulerTotals()

    @property
    def running(self) -> int:
        """Sequences in prefill or decoding."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences not scheduled yet."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the sequences not scheduled yet."""
        return sum(turn.table.length for turn in self._waiting)

    async def run(self, sequence: Sequence, on_token: Callable[[int], None] | None = None) -> None:
        """Compute a sequence. Cancelling it frees its slot and its blocks at once.

        Args:
            sequence: Must fit into an empty cache.
            on_token: Called after each token with the number of tokens so far; None for no calls.
        """
        loop = asyncio.get_running_loop()
        length = len(sequence.prompt) // TOKEN_BYTES
        # The last generated token is never fed back into the model, so it needs no space.
        final_blocks = self._cache.blocks_for(length + len(sequence.answer) - 1)
        table = self._cache.table(sequence.prompt, sequence.salt, sequence.adapter)
        turn = _Turn(sequence, table, loop.time(), loop.create_future(), final_blocks)
        self._waiting.append(turn)
        try:
            self._schedule()
            first = await turn.prefilled_at
            await _sleep_until(first)
            self._end_prefill(turn)
            await self._decode(turn, first, on_token)
            self.totals.finished += 1
        except asyncio.CancelledError:
            self.totals.aborted += 1
            raise
        finally:
            self._leave(turn)

    async def _decode(self, turn: _Turn, first: float, on_token: Callable[[int], None] | None) -> None:
        answer = turn.sequence.answer
        for index in range(len(answer)):
            if index:
                # Without a callback only the times matter at which a block is allocated or becomes full.
                edge = turn.table.length % self._cache.block_size in {0, self._cache.block_size - 1}
                if on_token is not None or edge or index == len(answer) - 1:
                    await _sleep_until(first + index * self._decode_seconds)
                self._cache.append(turn.table, answer[index - 1])
                if self._cache.changed and not self._step_ending:
                    # Other sequences' tokens at this time belong to the same step.
                    self._step_ending = True
                    asyncio.get_running_loop().call_soon(self._end_step)
            self.totals.generated_tokens += 1
            if on_token is not None:
                on_token(index + 1)

    def _schedule(self) -> None:
        # A sequence that was cancelled at this moment is still in the queue, and removes itself.
        turn = next((turn for turn in self._waiting if not turn.prefilled_at.cancelled()), None)
        if turn is None or self._prefilling is not None:
            return
        promised = sum(other.final_blocks - len(other.table.blocks) for other in self._running)
        own = turn.final_blocks - self._cache.blocks_for(turn.table.length)
        if len(self._running) >= self._slots or not self._cache.begin(
            turn.table, reuse=turn.sequence.reuse, spare=promised + own
        ):
            self._held_up = True
            return
        self._waiting.remove(turn)
        self._running.add(turn)
        self._prefilling = turn
        self._count(turn)
        self._end_step()
        now = asyncio.get_running_loop().time()
        start = now if self._held_up else max(turn.arrived, self._prefill_free_at)
        self._held_up = False
        self._prefill_free_at = start + (turn.table.length - turn.table.cached_tokens) / self._prefill_rate
        turn.prefilled_at.set_result(self._prefill_free_at)

    def _end_step(self) -> None:
        self._step_ending = False
        if self._cache.changed:
            self._on_step()

    def _count(self, turn: _Turn) -> None:
        turn.sequence.cached_tokens = turn.table.cached_tokens
        self.totals.prompt_tokens += turn.table.length
        if turn.sequence.reuse and self._cache.caching:
            self.totals.queries += turn.table.length
            self.totals.hits += turn.table.cached_tokens

    def _end_prefill(self, turn: _Turn) -> None:
        if self._prefilling is turn:
            self._prefilling = None
            self._schedule()

    def _leave(self, turn: _Turn) -> None:
        if turn in self._running:
            self._running.discard(turn)
            self._cache.end(turn.table)
            if self._prefilling is turn:
                self._prefilling = None
                self._prefill_free_at = asyncio.get_running_loop().time()
        else:
            self._waiting.remove(turn)
        self._schedule()


async def _sleep_until(moment: float) -> None:
    delay = moment - asyncio.get_running_loop().time()
    if delay > 0:
        await asyncio.sleep(delay)
