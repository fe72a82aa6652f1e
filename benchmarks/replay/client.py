"""Sends the requests of a trace to a gateway, each at its time, and notes hits and times to first token."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx
import orjson

from benchmarks.replay.token_prompts import TokenPrompts
from gateway.engines import payloads
from gateway.evaluation.workload_trace import TraceRequest

_TIMEOUT_SECONDS = 600.0
_MAX_IN_FLIGHT = 1024
"""Requests in flight, which bounds the memory for bodies."""


@dataclass
class Replayed:
    """The answers.

    Attributes:
        prompt_tokens: As the engines counted them.
        cached_tokens: Those of them that were in a cache, as the engines report it.
        ttft: Seconds to each first token.
        late: Seconds that each request was sent behind its time.
        problems: What came instead of an answer.
        replicas: Requests by replica.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)

    @property
    def token_share(self) -> float:
        """Share of the prompt tokens that were in a cache."""
        return self.cached_tokens / max(self.prompt_tokens, 1)

    @property
    def largest_share(self) -> float:
        """Share of the requests at the replica with the most of them."""
        return max(self.replicas.values(), default=0) / max(len(self.ttft), 1)


async def replay(url: str, requests: Iterable[TraceRequest], prompts: TokenPrompts, compress: float) -> Replayed:
    """Send requests; those of the trace's first second begin at once.

    Args:
        url: The gateway.
        requests: In order of arrival.
        prompts: Writes the bodies.
        compress: How many times faster than in the trace they are sent.
    """
    found = Replayed()
    room = asyncio.Semaphore(_MAX_IN_FLIGHT)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=_TIMEOUT_SECONDS, limits=limits) as http,
        asyncio.TaskGroup() as group,
    ):
        began, first = time.perf_counter(), None
        for request in requests:
            first = request.at if first is None else first
            due = began + (request.at - first) / compress
            await asyncio.sleep(due - time.perf_counter())
            await room.acquire()
            asked = group.create_task(_ask(http, request, prompts, found, due))
            asked.add_done_callback(lambda _: room.release())
    return found


async def _ask(
    http: httpx.AsyncClient, request: TraceRequest, prompts: TokenPrompts, found: Replayed, due: float
) -> None:
    body = prompts.body(request)
    sent = time.perf_counter()
    first, usage, rest = None, None, b""
    headers = {"content-type": "application/json"} | ({"x-session-id": request.session} if request.session else {})
    try:
        async with http.stream("POST", "/v1/completions", content=body, headers=headers) as response:
            del body
            if response.status_code != 200:
                text = (await response.aread())[:200].decode(errors="replace")
                found.problems.append(f"status {response.status_code}: {text}")
                return
            async for chunk in response.aiter_raw():
                first = first or time.perf_counter()
                events, separator, rest = (rest + chunk).rpartition(b"\n\n")
                for payload in payloads(events) if separator else ():
                    usage = orjson.loads(payload).get("usage") or usage
    except httpx.HTTPError as error:
        found.problems.append(f"{type(error).__name__}: {error}")
        return
    if usage is None or first is None:
        found.problems.append("a stream ended without usage")
        return
    found.prompt_tokens += usage["prompt_tokens"]
    found.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    found.ttft.append(first - sent)
    found.late.append(max(sent - due, 0.0))
    replica = response.headers["x-gateway-replica"]
    found.replicas[replica] = found.replicas.get(replica, 0) + 1
