"""Sends the requests of warm-up jobs through the gateway's own request path, and discards the answers.

``RateLimit`` bounds the rate of a job, ``ReplicaSlots`` the requests in flight per replica.

A warm-up job: its state, counts and failures.
"""

import asyncio
import functools
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

import msgspec
import orjson
import structlog

from gateway.core.errors import GatewayError
from gateway.core.ids import ReplicaId, RequestId
from gateway.core.request import ChatRequest
from gateway.core.tenant import Caller
from gateway.flow import Flow
from gateway.warmup.ledger import WarmCause, WarmLedger
from gateway.warmup.warmup_plan import WarmupStep

_MAX_LISTED_FAILURES = 50
"""Failures that a job lists; further ones are only counted."""


class JobState(StrEnum):
    """State of a job."""

    RUNNING = "running"
    DONE = "done"
    """All requests were sent; some may have failed."""
    CANCELLED = "cancelled"
    """It ended before all requests were sent; see ``reason``."""


class Job:
    """One order of an operator, the warm-up of a joined replica, or what is sent again.

    Attributes:
        id: Random id.
        state: Its state.
        reason: Reason of a cancellation; else empty.
        total: Requests to send.
        done: Successful requests.
        failed: Failed requests.
        left_out: Requests that were not sent, by reason.
        cause: Why it was made.
        joined: The joined replica; None for an order.
    """

    def __init__(
        self,
        total: int,
        now: float,
        *,
        requests_per_second: float,
        cause: WarmCause,
        by: str = "",
        joined: ReplicaId | None = None,
        down: Sequence[ReplicaId] = (),
    ) -> None:
        self.id = secrets.token_hex(8)
        self.state = JobState.RUNNING
        self.reason = ""
        self.total = total
        self.done = 0
        self.failed = 0
        self.left_out: dict[str, int] = {}
        self.cause = cause
        self.joined = joined
        self._requests_per_second = requests_per_second
        self._by = by
        self._down = down
        self._failures: list[dict[str, object]] = []
        self._began_at = now
        self._ended_at: float | None = None

    def step_done(self) -> None:
        """Count a successful request."""
        self.done += 1

    def step_failed(self, step: WarmupStep, status: int | None, message: str) -> None:
        """Count a failed request; ``status`` is None without an answer."""
        self.failed += 1
        if len(self._failures) < _MAX_LISTED_FAILURES:
            self._failures.append(
                {
                    "index": step.index,
                    "replica": step.target.replica,
                    "rank": step.target.rank,
                    "status": status,
                    "message": message,
                }
            )

    def end(self, state: JobState, now: float, reason: str = "") -> None:
        """End the job; only the first call has an effect."""
        if self._ended_at is None:
            self.state, self.reason, self._ended_at = state, reason, now

    def seconds(self, now: float) -> float:
        """Duration of the job so far."""
        return (now if self._ended_at is None else self._ended_at) - self._began_at

    def shown(self, now: float) -> dict[str, object]:
        """The job, JSON-ready."""
        return {
            "id": self.id,
            "state": self.state,
            "reason": self.reason,
            "cause": str(self.cause),
            "by": self._by,
            "joined": self.joined,
            "requests_per_second": self._requests_per_second,
            "total": self.total,
            "done": self.done,
            "failed": self.failed,
            "left_out": dict(self.left_out),
            "seconds": round(self.seconds(now), 3),
            "down": list(self._down),
            "failures": list(self._failures),
        }


MAX_IN_FLIGHT = 2
"""Maximum number of requests in flight at one replica: one to compute, one to follow without a gap. More would delay
clients' requests."""

Clock = Callable[[], float]
"""Monotonic seconds."""

Sleep = Callable[[float], Awaitable[object]]
"""Waits for a number of seconds."""


class RateLimit:
    """Spaces events evenly, without bursts after pauses.

    Args:
        per_second: Events per second.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(self, per_second: float, clock: Clock, sleep: Sleep) -> None:
        self._apart = 1 / per_second
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    async def wait(self) -> None:
        """Wait until the next event is due."""
        while (left := self._next - self._clock()) > 0:
            await self._sleep(left)

    def record(self) -> None:
        """Record that the event has happened."""
        self._next = self._clock() + self._apart


class ReplicaSlots:
    """Bounds the requests in flight at each replica, across all jobs."""

    def __init__(self) -> None:
        self._taken: dict[ReplicaId, int] = {}
        self._released = asyncio.Event()

    def take(self, replica: ReplicaId) -> bool:
        """Take a slot, if one is free."""
        taken = self._taken.get(replica, 0)
        if taken >= MAX_IN_FLIGHT:
            return False
        self._taken[replica] = taken + 1
        return True

    def release(self, replica: ReplicaId) -> None:
        """Release a slot."""
        left = self._taken.pop(replica) - 1
        if left:
            self._taken[replica] = left
        released, self._released = self._released, asyncio.Event()
        released.set()

    def next_release(self) -> asyncio.Event:
        """An event that is set when the next slot is released, at any replica."""
        return self._released


_KEPT_BYTES = 65536
_SHOWN_CHARS = 300


def warm_request(step: WarmupStep, request_id: RequestId, now: float) -> ChatRequest:
    """The request of a step; ``now`` is monotonic seconds."""
    prefix = step.prefix
    if step.like is not None:
        return msgspec.structs.replace(
            step.like,
            endpoint=prefix.endpoint,
            body=prefix.body,
            fields=prefix.fields,
            stream=False,
            usage_wanted=False,
            request_id=request_id,
            received_at=now,
            caller=step.caller,
            size=len(prefix.body),
            warmup_target=step.target,
        )
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
        warmup_target=step.target,
    )


class Discarded:
    """A ``Sink`` that discards an answer, except its status and error message.

    Attributes:
        status: HTTP status; None before the answer begins.
    """

    gone = False
    interrupted = False
    congested = False

    def __init__(self) -> None:
        self.status: int | None = None
        self._body = b""

    @property
    def succeeded(self) -> bool:
        """Whether the status is 2xx."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The engine's error message in one line."""
        if self.status is None:
            return "no answer"
        message = _error_message(self._body) or self._body.decode("utf-8", "replace")
        line = " ".join(message.split())
        return (line[:_SHOWN_CHARS] + "…" if len(line) > _SHOWN_CHARS else line) or "no message"

    def on_writable(self, callback: Callable[[], None]) -> None:
        """See ``Sink``."""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:  # noqa: ARG002
        """See ``Sink``."""
        self.status = status

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:  # noqa: ARG002
        """See ``Sink``."""
        if not self.succeeded and len(self._body) < _KEPT_BYTES:
            self._body += data


class Unlimited:
    """A ``Grant`` that counts nothing: warm-up does not use the tenant's limits."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.counts_tokens = False

    def charge(self, prompt_tokens: int, now: float) -> None:
        """See ``Grant``."""

    def correct(self, prompt_tokens: int) -> None:
        """See ``Grant``."""

    def refuse(self, now: float) -> None:
        """See ``Grant``."""

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:  # noqa: ARG002
        """See ``Grant``."""
        return ()

    def release(self) -> None:
        """See ``Grant``."""


def _error_message(body: bytes) -> str | None:
    """The message of an error body: OpenAI's shape, the older one without ``error`` around it, or FastAPI's own."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict):
        return None
    error = answer.get("error")
    for holder, name in ((error, "message"), (answer, "message"), (answer, "detail"), (answer, "error")):
        if isinstance(holder, dict) and isinstance(message := holder.get(name), str):
            return message
    return None


_log = structlog.get_logger("gateway.warmup")


class Runner:
    """Sends requests at a bounded rate per job, and with bounded concurrency per replica across all jobs.

    Args:
        service: Answers the requests.
        ledger: Counts what requests cost.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(self, service: Flow, ledger: WarmLedger, clock: Clock, sleep: Sleep) -> None:
        self._service = service
        self._ledger = ledger
        self._clock = clock
        self._sleep = sleep
        self._slots = ReplicaSlots()

    async def run(self, job: Job, steps: Sequence[WarmupStep], per_second: float) -> None:
        """Send all requests and wait for the answers. Failures do not end it; cancellation ends all requests."""
        waiting: dict[ReplicaId, deque[WarmupStep]] = {}
        for step in steps:
            waiting.setdefault(step.target.replica, deque()).append(step)
        rate_limit = RateLimit(per_second, self._clock, self._sleep)
        number = 0
        async with asyncio.TaskGroup() as in_flight:
            while waiting:
                await rate_limit.wait()
                step = await self._next(waiting)
                rate_limit.record()
                number += 1
                request_id = RequestId(f"warm-{job.id}-{number}")
                task = in_flight.create_task(self.send(job, step, request_id), name=request_id)
                # A callback, because a task that is cancelled before its first step does not run its `finally`.
                task.add_done_callback(functools.partial(self._sent, step.target.replica))

    async def _next(self, waiting: dict[ReplicaId, deque[WarmupStep]]) -> WarmupStep:
        """Take the next step and a slot for it, round robin over the replicas with a free slot."""
        while True:
            released = self._slots.next_release()
            for replica in waiting:
                if self._slots.take(replica):
                    steps = waiting.pop(replica)
                    step = steps.popleft()
                    if steps:
                        waiting[replica] = steps
                    return step
            await released.wait()

    def _sent(self, replica: ReplicaId, _task: asyncio.Task[None]) -> None:
        self._slots.release(replica)

    async def send(self, job: Job, step: WarmupStep, request_id: RequestId) -> int:
        """Send one request, and count its success or failure in the job. Returns the prompt tokens it computed."""
        sink = Discarded()
        request = warm_request(step, request_id, self._clock())
        self._ledger.begin(request_id, job.cause)
        try:
            await self._service.serve(request, sink, Unlimited(step.caller))
        except GatewayError as error:
            job.step_failed(step, error.status, error.message)
        except Exception:  # noqa: BLE001 - one failure must not end the job
            _log.exception("warming_request_failed", request_id=request_id)
            job.step_failed(step, None, f"The gateway failed; its log has the reason under request id {request_id}.")
        else:
            if sink.succeeded:
                job.step_done()
            else:
                job.step_failed(step, sink.status, sink.message)
        finally:
            computed = self._ledger.end(request_id)
        return computed
