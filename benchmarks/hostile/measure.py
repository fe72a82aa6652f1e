"""One attack, measured from its begin until the gateway is at rest again."""

import asyncio
import gc
import time
from collections import Counter
from dataclasses import dataclass

from benchmarks.hostile.attacker import Attacker
from benchmarks.hostile.attacks.attack import Target
from benchmarks.hostile.client import Watch
from benchmarks.hostile.stage import Stage

NOTHING = "nothing"
"""Name of the measurement without an attack: the noise floor."""

_SAMPLE_SECONDS = 0.02
_REST_STEP_SECONDS = 0.5
_RESTING_SHARE = 0.5
"""Share of a core that the gateway takes at most, with the normal client and the probes, when it is at rest."""
_LONGEST_REST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Result:
    """What an attack did. Times are in milliseconds, memory in MiB.

    Attributes:
        name: The attack's.
        freeze: Longest answer to ``/healthz`` on either port, less the control's overlapping ones.
        public: Longest answer to ``/healthz`` on the public port.
        admin: The same on the admin port.
        control: The same of a process that has nothing else to do: what the machine adds.
        median: Of the normal client's small chats during the attack.
        p99: Of the same.
        large: Longest answer to one of its 40 KB chats.
        errors: Its requests that failed.
        ends: How the attacker's requests ended.
        memory: Before the attack, at most, and at rest again.
        calls: Generation requests that the attack caused at the engine, and other requests with a body.
        rest: Seconds from the attack's end until the gateway was at rest.
        problems: Events that the gateway logged.
        died: Whether the gateway's process ended.
        stuck: Whether it was not at rest after half a minute: times are then what had passed by that time.
    """

    name: str
    freeze: float
    public: float
    admin: float
    control: float
    median: float
    p99: float
    large: float
    errors: Counter[str]
    ends: Counter[str]
    memory: tuple[float, float, float]
    calls: tuple[int, int]
    rest: float
    problems: Counter[str]
    died: bool
    stuck: bool


async def measured(name: str, stage: Stage, target: Target, seconds: float) -> Result:
    """Measure an attack, or nothing."""
    attacker = None if name == NOTHING else Attacker(name, target)
    if attacker is not None:
        await attacker.ready()
    calls, problems = stage.calls(), stage.problems()
    watch = Watch(stage)
    gc.collect()
    gc.disable()
    watch.start()
    await asyncio.sleep(0.5)
    before = most = stage.gateway.memory()
    if attacker is not None:
        attacker.go()
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        await asyncio.sleep(_SAMPLE_SECONDS)
        most = max(most, stage.gateway.memory())
    attacked_until = time.monotonic()
    ending = asyncio.ensure_future(attacker.end()) if attacker is not None else None
    rested, most_after = await _rested(stage)
    rest = time.monotonic() - attacked_until
    ends = await ending if ending is not None else Counter[str]()
    await watch.stop()
    gc.enable()
    caused = stage.calls() - calls
    control = watch.control
    return Result(
        name=name,
        freeze=1000 * max(watch.public.longest_beyond(control), watch.admin.longest_beyond(control)),
        public=1000 * watch.public.longest,
        admin=1000 * watch.admin.longest,
        control=1000 * control.longest,
        median=1000 * watch.small.quantile(0.5, attacked_until),
        p99=1000 * watch.small.quantile(0.99, attacked_until),
        large=1000 * watch.large.longest,
        errors=watch.errors,
        ends=ends,
        memory=(before, max(most, most_after), stage.gateway.memory()),
        calls=(caused["attack"], caused["other"]),
        rest=rest,
        problems=stage.problems() - problems,
        died=stage.gateway.ended,
        stuck=not rested,
    )


async def _rested(stage: Stage) -> tuple[bool, float]:
    """Wait until the gateway's processes take little CPU time; whether they do, and the most memory meanwhile."""
    most, until = 0.0, time.monotonic() + _LONGEST_REST_SECONDS
    while time.monotonic() < until and not stage.gateway.ended:
        used, began = stage.gateway.cpu_seconds(), time.monotonic()
        for _ in range(int(_REST_STEP_SECONDS / _SAMPLE_SECONDS)):
            await asyncio.sleep(_SAMPLE_SECONDS)
            most = max(most, stage.gateway.memory())
        if stage.gateway.cpu_seconds() - used < _RESTING_SHARE * (time.monotonic() - began):
            return True, most
    return stage.gateway.ended, most
