"""Sends the requests of a job.

A declared prefix as a request on its way through the house, and what stands in for its client.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import orjson
import structlog

from gateway.core.errors import GatewayError
from gateway.core.ids import ReplicaId, RequestId
from gateway.core.ports import Grant, Sink
from gateway.core.request import ChatRequest
from gateway.core.tenant import Caller
from gateway.warmup.job import Job
from gateway.warmup.rate_limit import Clock, RateLimit, ReplicaSlots, Sleep
from gateway.warmup.warmup_plan import WarmupStep

_KEPT_BYTES = 65536
_SHOWN_CHARS = 300


def warm_request(step: WarmupStep, request_id: RequestId, now: float) -> ChatRequest:
    """The request of a step; ``now`` is monotonic seconds."""
    prefix = step.prefix
    return ChatRequest(
        endpoint=prefix.endpoint,
        query=b"",
        body=prefix.body,
        fields=prefix.fields,
        headers=((b"content-type", b"application/json"),),
        model=prefix.model,
        stream=False,
        usage_wanted=False,
        request_id=request_id,
        session=None,
        received_at=now,
        caller=step.caller,
        warms=step.target,
    )


class Discarded:
    """A ``Sink`` that keeps of an answer only whether it was one.

    Attributes:
        status: HTTP status; None as long as there is none.
    """

    gone = False
    interrupted = False

    def __init__(self) -> None:
        self.status: int | None = None
        self._body = b""

    @property
    def succeeded(self) -> bool:
        """Whether the engine did what it was asked for."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def message(self) -> str:
        """What the engine said when it did not, in one line."""
        if self.status is None:
            return "no answer"
        said = _said(self._body) or self._body.decode("utf-8", "replace")
        line = " ".join(said.split())
        return (line[:_SHOWN_CHARS] + "…" if len(line) > _SHOWN_CHARS else line) or "no message"

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:  # noqa: ARG002
        """See ``Sink``."""
        self.status = status

    async def write(self, data: bytes, *, more: bool) -> None:  # noqa: ARG002
        """See ``Sink``."""
        if not self.succeeded and len(self._body) < _KEPT_BYTES:
            self._body += data


class Unlimited:
    """A ``Grant`` that counts nothing: what the operator sends is not the tenant's doing."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def charge(self, prompt_tokens: int, now: float) -> None:
        """See ``Grant``."""

    def correct(self, prompt_tokens: int) -> None:
        """See ``Grant``."""

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:  # noqa: ARG002
        """See ``Grant``."""
        return ()

    def release(self) -> None:
        """See ``Grant``."""


def _said(body: bytes) -> str | None:
    """The message of an error body: OpenAI's shape, the older one without ``error`` around it, or FastAPI's own."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict):
        return None
    error = answer.get("error")
    for holder, name in ((error, "message"), (answer, "message"), (answer, "detail"), (answer, "error")):
        if isinstance(holder, dict) and isinstance(said := holder.get(name), str):
            return said
    return None


_log = structlog.get_logger("gateway.warmup")


class WarmupService(Protocol):
    """What answers generation requests."""

    async def serve(self, request: ChatRequest, sink: Sink, grant: Grant) -> None:
        """Answer one request, or raise the ``GatewayError`` that a client should be told."""
        ...


class Runner:
    """Sends requests at a bounded rate, a few at a time at each replica, however many jobs there are.

    Args:
        service: What answers them.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(self, service: WarmupService, clock: Clock, sleep: Sleep) -> None:
        self._service = service
        self._clock = clock
        self._sleep = sleep
        self._slots = ReplicaSlots()

    async def run(self, job: Job, steps: Sequence[WarmupStep], per_second: float) -> None:
        """Send everything and wait for the answers. No failure ends it; cancelling it ends what is in flight."""
        waiting: dict[ReplicaId, deque[WarmupStep]] = {}
        for step in steps:
            waiting.setdefault(step.target.replica, deque()).append(step)
        pace = RateLimit(per_second, self._clock, self._sleep)
        number = 0
        async with asyncio.TaskGroup() as in_flight:
            while waiting:
                await pace.wait()
                step = await self._next(waiting)
                pace.took()
                number += 1
                request_id = RequestId(f"warm-{job.id}-{number}")
                task = in_flight.create_task(self._send(job, step, request_id), name=request_id)
                # A task that is cancelled before its first step never gets to a `finally` of its own.
                task.add_done_callback(functools.partial(self._sent, step.target.replica))

    async def _next(self, waiting: dict[ReplicaId, deque[WarmupStep]]) -> WarmupStep:
        """Take the next step, and a slot for it; replicas take turns, and none waits for a slower one."""
        while True:
            freed = self._slots.freed()
            for replica in waiting:
                if self._slots.take(replica):
                    steps = waiting.pop(replica)
                    step = steps.popleft()
                    if steps:
                        waiting[replica] = steps
                    return step
            await freed.wait()

    def _sent(self, replica: ReplicaId, _task: asyncio.Task[None]) -> None:
        self._slots.free(replica)

    async def _send(self, job: Job, step: WarmupStep, request_id: RequestId) -> None:
        sink = Discarded()
        request = warm_request(step, request_id, self._clock())
        try:
            await self._service.serve(request, sink, Unlimited(step.caller))
        except GatewayError as error:
            job.step_failed(step, error.status, error.message)
        except Exception:  # noqa: BLE001 - the others have nothing to do with it
            _log.exception("warming_request_failed", request_id=request_id)
            job.step_failed(step, None, f"The gateway failed; its log has the reason under request id {request_id}.")
        else:
            if sink.succeeded:
                job.step_done()
            else:
                job.step_failed(step, sink.status, sink.message)
