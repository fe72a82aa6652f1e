"""Sends the recorded traffic, each request at its time, and notes what came of it."""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import orjson

from benchmarks.several.recording import Conversation, Recording, Turn
from gateway.engines import payloads

_LONGEST_SECONDS = 120.0


@dataclass(frozen=True)
class Answered:
    """One request and its answer.

    Attributes:
        conversation: Its number in the recording.
        turn: Its number in the conversation.
        source: Which application's.
        gateway: Number of the gateway that was asked.
        request_id: As the gateway named it.
        replica: Where it was sent.
        decision: Why, in a word.
        predicted_tokens: What the gateway believed to be cached there.
        prompt_tokens: As the engine counted them.
        cached_tokens: Those of them that it had in its cache.
        sent_at: Seconds from the beginning.
        ttft: Seconds to the first token.
        late: Seconds that it was sent behind its time, because this process or an earlier answer was late.
    """

    conversation: int
    turn: int
    source: str
    gateway: int
    request_id: str
    replica: str
    decision: str
    predicted_tokens: int
    prompt_tokens: int
    cached_tokens: int
    sent_at: float
    ttft: float
    late: float

    def line(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


@dataclass
class Replayed:
    """What came of all of them.

    Attributes:
        answered: Right answers.
        problems: What came instead of others.
    """

    answered: list[Answered] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Of all of them."""
        return sum(each.prompt_tokens for each in self.answered)

    @property
    def hit_rate(self) -> float:
        """Cached tokens of all prompt tokens, as the engines reported them."""
        return sum(each.cached_tokens for each in self.answered) / max(self.prompt_tokens, 1)

    def ttft(self, share: float) -> float:
        """Quantile of the seconds to the first token."""
        return _quantile([each.ttft for each in self.answered], share)

    def late(self, share: float) -> float:
        """Quantile of the seconds that requests were late."""
        return _quantile([each.late for each in self.answered], share)


async def replay(recording: Recording, gateways: Sequence[str], keys: dict[str, str]) -> Replayed:
    """Send a recording, each request to a gateway by chance.

    Args:
        recording: What to send.
        gateways: URLs.
        keys: API keys by tenant.
    """
    replayed = Replayed()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=_LONGEST_SECONDS, limits=limits) as http:
        began = time.perf_counter()

        async def hold(number: int, conversation: Conversation) -> None:
            # Which gateway a request goes to follows from the seed, too, and not from what went before.
            chance = random.Random(f"{recording.seed}, {number}")
            for position, turn in enumerate(conversation.turns):
                place = chance.randrange(len(gateways))
                await asyncio.sleep(began + turn.at - time.perf_counter())
                where = f"conversation {number}, turn {position}"
                try:
                    answered = await _ask(
                        http, gateways[place], keys[conversation.tenant], conversation, turn, began=began
                    )
                except (_Wrong, httpx.HTTPError) as error:
                    replayed.problems.append(f"{where}: {type(error).__name__}: {error}")
                    continue
                replayed.answered.append(Answered(number, position, conversation.source, place, **answered))

        await asyncio.gather(*(hold(number, each) for number, each in enumerate(recording.conversations)))
    return replayed


class _Wrong(Exception):
    """What came is not the answer."""


async def _ask(
    http: httpx.AsyncClient, gateway: str, key: str, conversation: Conversation, turn: Turn, *, began: float
) -> dict[str, Any]:
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "x-client": conversation.source,
    }
    sent = time.perf_counter()
    first, rest, text, usage = math.nan, b"", [], None
    async with http.stream("POST", f"{gateway}/v1/chat/completions", content=turn.body, headers=headers) as response:
        if response.status_code != 200:
            raise _Wrong(f"status {response.status_code}: {(await response.aread())[:200].decode(errors='replace')}")
        async for chunk in response.aiter_raw():
            events, separator, rest = (rest + chunk).rpartition(b"\n\n")
            for payload in payloads(events) if separator else ():
                event = orjson.loads(payload)
                if "error" in event:
                    raise _Wrong(f"the stream broke: {event['error']}")
                usage = event.get("usage") or usage
                said = "".join(_said(choice["delta"]) for choice in event["choices"])
                if said and math.isnan(first):
                    first = time.perf_counter() - sent
                text.append(said)
    if usage is None or "".join(text) != turn.says:
        raise _Wrong(f"wanted {turn.says[:80]!r}, got {''.join(text)[:80]!r} with usage {usage}")
    return {
        "request_id": response.headers["x-request-id"],
        "replica": response.headers["x-gateway-replica"],
        "decision": response.headers["x-gateway-decision"],
        "predicted_tokens": int(response.headers["x-gateway-prefix-tokens"]),
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "sent_at": sent - began,
        "ttft": first,
        "late": max(sent - began - turn.at, 0.0),
    }


def _said(delta: dict[str, Any]) -> str:
    calls = delta.get("tool_calls") or ()
    return (delta.get("content") or "") + "".join(call["function"].get("arguments") or "" for call in calls)


def _quantile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(math.floor(share * len(ranked)), len(ranked) - 1)] if ranked else math.nan
