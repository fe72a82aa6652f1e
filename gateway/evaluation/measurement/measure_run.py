"""Carries out a plan: closed loop (so many requests at a time) or open loop (so many a second, however long they take).

In the open loop a latency counts from the moment at which a request was due, not from when it was sent: a client that
falls behind would otherwise hide the time that its requests waited for it.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.evaluation.measurement.measure_plan import MeasuredVariant, Pass, PlannedRequest, ReadyRequests, poisson
from gateway.evaluation.measurement.measured_prompts import PromptBody, PromptSource, mark, marked, salted
from gateway.evaluation.measurement.stream_timing import StreamTimer, StreamTiming
from gateway.http_client import Origin

_MOST_UNDER_WAY = 1000
"""Requests under way in the open loop; what is due beyond it waits, and its wait counts."""

_PROBE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class SendingLoad:
    """How requests are sent.

    Attributes:
        concurrency: Requests at a time, in the closed loop.
        rate: Requests a second in the open loop, or None.
        speed: For a pass with times of its own: how many times faster it is sent.
        seconds: After so many no more requests are sent; over all passes, which get equal parts.
        seed: Of the arrivals.
    """

    concurrency: int = 1
    rate: float | None = None
    speed: float = 1.0
    seconds: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """What every body gets.

    Attributes:
        output_tokens: Length of the answers; None leaves it to the prompt's source.
        plain: Without ``ignore_eos``, which makes all answers equally long and is not part of OpenAI's API.
        salt: Whether marks are a ``cache_salt`` instead of words at the beginning.
    """

    output_tokens: int | None
    plain: bool = False
    salt: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """A request that is over.

    Attributes:
        planned: Which one it is.
        due_at: When it was due, by ``time.perf_counter``; in the closed loop when it was sent.
        timing: How it went.
    """

    planned: PlannedRequest
    due_at: float
    timing: StreamTiming

    @property
    def ttft_seconds(self) -> float | None:
        """From when it was due to its first token; None if it failed."""
        first = self.timing.first_token_at
        return None if self.timing.error or first is None else first - self.due_at

    @property
    def total_seconds(self) -> float | None:
        """From when it was due to its end; None if it failed."""
        return None if self.timing.error else self.timing.ended_at - self.due_at


@dataclass(slots=True)
class RunRecord:
    """All that a run brought.

    Attributes:
        requests: Those that were sent, in the order of their ends.
        left_out: Warm requests that were not sent because the same prompt failed cold.
        unsent: Requests that were not sent because the time was over.
        loop_late_seconds: How late the client's own timers were, sampled.
        seconds: Length of the run.
    """

    requests: list[MeasuredRequest] = field(default_factory=list)
    left_out: int = 0
    unsent: int = 0
    loop_late_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0


def encoded_body(prompt: PromptBody, model: str, said: str, options: BodyOptions) -> bytes:
    """The bytes of a request.

    Args:
        prompt: The prompt.
        model: Id of the model.
        said: The mark.
        options: What every body gets.
    """
    fields = salted(prompt.fields, said) if options.salt else marked(prompt.fields, said)
    body: dict[str, Any] = {**(fields or prompt.fields), "model": model, "stream": True}
    body["stream_options"] = {"include_usage": True}
    length = options.output_tokens or prompt.output_tokens
    if length is not None:
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = length
        if not options.plain:
            body["ignore_eos"] = True
    return orjson.dumps(body)


class MeasureRun:
    """One run of a plan.

    Args:
        timer: Sends the requests.
        variants: What is compared.
        prompts: The prompts.
        options: What every body gets.
        load: How requests are sent.
        on_progress: Called after each request.
    """

    def __init__(
        self,
        timer: StreamTimer,
        variants: Sequence[MeasuredVariant],
        prompts: PromptSource,
        *,
        options: BodyOptions,
        load: SendingLoad,
        on_progress: Callable[[MeasuredRequest], None] = lambda _: None,
    ) -> None:
        self._timer = timer
        self._variants = variants
        self._origins = [Origin.parse(variant.url) for variant in variants]
        self._prompts = prompts
        self._options = options
        self._load = load
        self._on_progress = on_progress
        self._record = RunRecord()
        self._progress = asyncio.Event()

    async def run(self, passes: Sequence[Pass]) -> RunRecord:
        """Send everything, and wait for the answers."""
        began = time.perf_counter()
        part = None if self._load.seconds is None else self._load.seconds / len(passes)
        async with self._probe():
            for each in passes:
                ready = ReadyRequests(each.requests)
                end = None if part is None else time.perf_counter() + part
                if each.times is None and self._load.rate is None:
                    workers = (self._closed(ready, end) for _ in range(self._load.concurrency))
                    await asyncio.gather(*workers)
                else:
                    await self._open(ready, end, self._arrivals(each))
                self._record.left_out += ready.left_out
                self._record.unsent += len(ready)
        self._record.seconds = time.perf_counter() - began
        return self._record

    async def warm_up(self, variant: int, prompt: int, said: str) -> StreamTiming:
        """Send one request that is not measured."""
        planned = PlannedRequest(-1, variant, None, prompt, said)
        return await self._timed(planned, *self._content(planned))

    def _arrivals(self, each: Pass) -> Iterator[float]:
        if self._load.rate is not None:
            return poisson(self._load.rate, self._load.seed)
        assert each.times is not None
        return (at / self._load.speed for at in each.times)

    async def _closed(self, ready: ReadyRequests, end: float | None) -> None:
        while end is None or time.perf_counter() < end:
            planned = await self._next(ready)
            if planned is None:
                return
            await self._measure(ready, planned, self._content(planned), None)

    async def _open(self, ready: ReadyRequests, end: float | None, arrivals: Iterator[float]) -> None:
        room = asyncio.Semaphore(_MOST_UNDER_WAY)
        began = time.perf_counter()

        async def measure(planned: PlannedRequest, content: tuple[str, bytes], due_at: float) -> None:
            try:
                await self._measure(ready, planned, content, due_at)
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            for arrival in itertools.chain(arrivals, itertools.repeat(0.0)):
                due_at = began + arrival
                if end is not None and max(due_at, time.perf_counter()) >= end:
                    return
                planned = ready.take()
                if planned is None:
                    planned = await self._next(ready)
                    # It was not due before the answer that it waited for.
                    due_at = max(due_at, time.perf_counter())
                if planned is None:
                    return
                content = self._content(planned)  # takes its time before the request is due
                await asyncio.sleep(due_at - time.perf_counter())
                await room.acquire()
                group.create_task(measure(planned, content, due_at))

    async def _next(self, ready: ReadyRequests) -> PlannedRequest | None:
        """The next request, as soon as there is one; None if there are no more."""
        while len(ready):
            self._progress.clear()
            planned = ready.take()
            if planned is not None:
                return planned
            if len(ready):
                await self._progress.wait()
        return None

    async def _measure(
        self, ready: ReadyRequests, planned: PlannedRequest, content: tuple[str, bytes], due_at: float | None
    ) -> None:
        timing = await self._timed(planned, *content)
        measured = MeasuredRequest(planned, timing.sent_at if due_at is None else due_at, timing)
        self._record.requests.append(measured)
        ready.answered(planned, succeeded=not timing.error)
        self._progress.set()
        self._on_progress(measured)

    async def _timed(self, planned: PlannedRequest, path: str, body: bytes) -> StreamTiming:
        headers = self._variants[planned.variant].headers
        return await self._timer.send(self._origins[planned.variant], path, body, headers)

    def _content(self, planned: PlannedRequest) -> tuple[str, bytes]:
        """Path and body of a request."""
        prompt, model = self._prompts.body(planned.prompt), self._variants[planned.variant].model
        return prompt.endpoint, encoded_body(prompt, model, mark(planned.mark), self._options)

    @contextlib.asynccontextmanager
    async def _probe(self) -> AsyncIterator[None]:
        """While it lasts, measures how late the event loop wakes up: as late are the times of answers."""

        async def look() -> None:
            while True:
                due = time.perf_counter() + _PROBE_SECONDS
                await asyncio.sleep(_PROBE_SECONDS)
                self._record.loop_late_seconds.append(max(0.0, time.perf_counter() - due))

        probe = asyncio.ensure_future(look())
        try:
            yield
        finally:
            probe.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probe
