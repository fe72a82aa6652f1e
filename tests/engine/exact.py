"""Check: with KV events, what is predicted is what the engine reports, with any failure of the engines.

The requests of ``workload.py`` over two replicas with small caches, which others use as well; at one point a replica's
cache is reset, at a later one a replica is killed and another started in its place, both while requests are under way.
Then a second gateway comes late to the warm engines. The same requests go through a gateway without events, for
comparison.
``python -m tests.engine.exact`` runs this check alone.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.engine.cases import CHAT, COMPLETIONS
from tests.engine.client import TIMEOUT, Seen, post
from tests.engine.findings import Finding
from tests.engine.gateway import Gateway, start_gateway
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.small_fleet import TOKENS, SmallFleet
from tests.engine.workload import REQUESTS, Session, from_others, parts

LEAST_SHARE = 0.99

_AT_ONCE = 3
_RESET_AT = 45
_KILL_AT = 72
_BACK_AT = 150
"""Requests sent before a cache is reset, a replica killed, and its successor waited for."""

_WITHIN_SECONDS = 30.0


@dataclass
class Answer:
    """One request and what came of it; times in monotonic seconds."""

    name: str
    seen: Seen
    sent: float
    done: float


class Run:
    """All requests, sent through one gateway.

    Args:
        fleet: The replicas behind it.
        gateway: Where to send them.

    Attributes:
        answers: What came.
        sent_again: Requests that broke with the replica that was killed.
    """

    def __init__(self, fleet: SmallFleet, gateway: Gateway) -> None:
        self.answers: list[Answer] = []
        self.sent_again = 0
        self._fleet = fleet
        self._gateway = gateway
        self._sent = 0
        self._reset_between = (0.0, 0.0)
        self._resetting: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Send everything; returns when all is answered."""
        gate = asyncio.Semaphore(_AT_ONCE)
        async with httpx.AsyncClient(base_url=self._gateway.url, timeout=TIMEOUT) as client:

            async def hold(session: Session) -> None:
                async with gate:
                    for turn in range(session.turns):
                        await self._ask(client, session, turn)

            for number, part in enumerate(parts()):
                if number:
                    await asyncio.gather(*(self._others(number, replica) for replica in range(2)))
                async with asyncio.TaskGroup() as group:
                    for session in part:
                        group.create_task(hold(session))

    @property
    def counted(self) -> list[Answer]:
        """Those that were not in flight at the reset."""
        begin, end = self._reset_between
        return [answer for answer in self.answers if answer.done < begin or answer.sent > end]

    @property
    def wrong(self) -> list[Answer]:
        """Of those counted, the ones whose prediction was not what the engine reports."""
        return [answer for answer in self.counted if answer.seen.predicted != answer.seen.confirmed]

    async def _ask(self, client: httpx.AsyncClient, session: Session, turn: int) -> None:
        self._sent += 1
        number = self._sent
        if number == _RESET_AT:
            self._resetting = asyncio.create_task(self._reset())
        elif number == _KILL_AT:
            self._replacing = asyncio.create_task(self._replace())
        elif number >= _BACK_AT and self._replacing is not None:
            await asyncio.shield(self._replacing)
        body = session.next_request(turn)
        path = COMPLETIONS if "prompt" in body else CHAT
        sent = time.monotonic()
        seen = await post(client, path, body)
        if seen.status == 502 and self._replacing is not None:
            # Under way at the replica that was killed; the answer says to send it again.
            self.sent_again += 1
            sent = time.monotonic()
            seen = await post(client, path, body)
        name = f"request {number} ({session.name}, turn {turn + 1})"
        if seen.status != 200:
            raise RuntimeError(f"{name}: {seen.status} {seen.error}")
        session.take(seen.text)
        self.answers.append(Answer(name, seen, sent, time.monotonic()))

    async def _others(self, part: int, replica: int) -> None:
        """Another client's requests, past the gateway."""
        if self._replacing is not None:
            await asyncio.shield(self._replacing)
        async with httpx.AsyncClient(base_url=self._fleet.replicas[replica].url, timeout=TIMEOUT) as client:
            for body in from_others(part, replica):
                seen = await post(client, CHAT, body)
                if seen.status != 200:
                    raise RuntimeError(f"a request past the gateway: {seen.status} {seen.error}")

    async def _reset(self) -> None:
        begin = time.monotonic()
        await self._fleet.reset(0)
        self._reset_between = (begin, time.monotonic())

    async def _replace(self) -> None:
        await self._fleet.replace(1)
        name = self._fleet.replicas[1].name
        deadline = time.monotonic() + _WITHIN_SECONDS
        while self._gateway.replicas()[name]["state"] != "ready" and time.monotonic() < deadline:
            await asyncio.sleep(0.2)


async def exact(folder: Path) -> AsyncIterator[Finding]:
    """Start the replicas and everything else, and compare."""
    fleet = SmallFleet(folder)
    try:
        fleet.wait_ready()
        gateway = start_gateway(folder, fleet.replicas, DEMO_TEMPLATE, "gateway-events")
        try:
            followed = await _run(fleet, gateway)
            states = gateway.replicas()
            removed = gateway.total("gateway_kv_events_total", type="removed")
            late = await _late(folder, fleet, gateway)
        finally:
            gateway.stop()
        for number in range(len(fleet.replicas)):
            await fleet.reset(number)
        gateway = start_gateway(folder, fleet.replicas, DEMO_TEMPLATE, "gateway-without-events", "off")
        try:
            guessed = await _run(fleet, gateway)
        finally:
            gateway.stop()
    finally:
        fleet.stop()
    yield _compared(followed, guessed)
    yield _spread(followed, removed, {name: state["index"]["source"] for name, state in states.items()})
    yield late


async def _run(fleet: SmallFleet, gateway: Gateway) -> Run:
    gateway.wait_ready("/readyz", _WITHIN_SECONDS)
    run = Run(fleet, gateway)
    await run()
    return run


async def _late(folder: Path, fleet: SmallFleet, first: Gateway) -> Finding:
    """A second gateway, started when the engines are warm and at rest."""
    second = start_gateway(folder, fleet.replicas, DEMO_TEMPLATE, "gateway-late")
    try:
        second.wait_ready("/readyz", _WITHIN_SECONDS)
        started = time.monotonic()
        while not (same := _held(first) == _held(second)) and time.monotonic() < started + _WITHIN_SECONDS:
            await asyncio.sleep(0.1)
        seconds = time.monotonic() - started
        mine, others = _held(first), _held(second)
    finally:
        second.stop()
    return Finding(
        "a second gateway, started late, holds what the first holds",
        "; ".join(f"{name}: {_reported(mine[name])} and {_reported(others[name])}" for name in mine)
        + f", {seconds:.1f} s after it was ready",
        "the same blocks and digests, more than none, by events",
        same and all(state[1] > 0 and state[0] == "events" for state in mine.values()),
    )


def _held(gateway: Gateway) -> dict[str, tuple[str, int, str]]:
    """Source, blocks and digest of every replica's part of the index."""
    return {
        name: (state["index"]["source"], state["index"]["blocks"], str(state["index"]["digest"]))
        for name, state in gateway.replicas().items()
    }


def _reported(held: tuple[str, int, str]) -> str:
    return f"{held[1]} blocks {held[2]} by {held[0]}"


def _compared(followed: Run, guessed: Run) -> Finding:
    share = 1 - len(followed.wrong) / len(followed.counted)
    return Finding(
        f"predicted equals reported, {REQUESTS} requests over two caches of {TOKENS} tokens that others use as well,"
        " one reset, one replica killed and replaced",
        f"with events {_share(followed)}, without {_share(guessed)}",
        f"with events at least {LEAST_SHARE:.0%}",
        share >= LEAST_SHARE and len(followed.answers) == REQUESTS,
        [*_explained("with events", followed), *_explained("without", guessed)],
    )


def _share(run: Run) -> str:
    right = len(run.counted) - len(run.wrong)
    reported = f"{right} of {len(run.counted)} ({right / len(run.counted):.1%})"
    return f"{reported}, {len(run.answers) - len(run.counted)} in flight at the reset left out"


def _explained(title: str, run: Run) -> list[str]:
    return [
        f"{title}: {answer.name}: {answer.seen.predicted} predicted, {answer.seen.confirmed} reported, of"
        f" {answer.seen.counted} tokens ({answer.seen.decision} at {answer.seen.replica})"
        for answer in run.wrong
    ]


def _spread(run: Run, removed: int, sources: dict[str, str]) -> Finding:
    cached = sum(answer.seen.confirmed for answer in run.answers)
    prompts = sum(answer.seen.counted for answer in run.answers)
    names = sorted({answer.seen.replica for answer in run.answers})
    places = ", ".join(f"{sum(answer.seen.replica == name for answer in run.answers)} at {name}" for name in names)
    return Finding(
        "the same requests with events: where they went, and what was cached",
        f"{places}, {run.sent_again} of them twice as their replica was killed; {cached} of {prompts} tokens cached"
        f" ({cached / prompts:.0%}), {removed} blocks evicted; the prediction rests on"
        f" {', '.join(f'{source} for {name}' for name, source in sources.items())}",
        "both replicas used, blocks evicted, events for both",
        len(names) == 2 and removed > 0 and set(sources.values()) == {"events"},
    )


async def _main(folder: Path) -> int:
    met = True
    async for finding in exact(folder):
        print(f"{'ok' if finding.met else 'NOT MET'}: {finding.check}: {finding.measured}")
        print(*(f"  {line}" for line in finding.exceptions), sep="\n")
        met = met and finding.met
    return 0 if met else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(asyncio.run(_main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))))
