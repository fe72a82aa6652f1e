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
_BUSY_SHARE = 0.8
"""Share of the looks at which a thread computes or waits for a core, from which on the gateway is not at rest. CPU time
does not show on a machine that is busy otherwise."""
_LARGE_SECONDS = 1.0
"""In which, at rest, a 40 KB chat was sent and answered: the threads that encode have no work of the attack left."""
_LONGEST_REST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Result:
    """What an attack did. Times are in milliseconds, memory in MiB.

    Attributes:
        name: The attack's.
        freeze: Longest answer to ``/healthz`` on either port, less the control's overlapping ones.
        cpu: CPU time of the gateway's main process during that answer: on a busy machine, the rest of it was spent
            waiting for a core.
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
    cpu: float
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
    watch, usage = Watch(stage), Usage(stage)
    gc.collect()
    gc.disable()
    watch.start()
    await asyncio.sleep(0.5)
    before = usage.look()
    if attacker is not None:
        attacker.go()
    began = time.monotonic()
    await usage.follow(began + seconds)
    attacked_until = time.monotonic()
    ending = asyncio.ensure_future(attacker.end()) if attacker is not None else None
    rested = await _rested(stage, watch, usage)
    rest = time.monotonic() - attacked_until
    ends = await ending if ending is not None else Counter[str]()
    await watch.stop()
    gc.enable()
    caused = stage.calls() - calls
    control = watch.control
    freeze, (frozen_from, frozen_to) = max(watch.public.worst_beyond(control), watch.admin.worst_beyond(control))
    return Result(
        name=name,
        freeze=1000 * freeze,
        cpu=1000 * usage.cpu_between(frozen_from, frozen_to),
        public=1000 * watch.public.longest,
        admin=1000 * watch.admin.longest,
        control=1000 * control.longest,
        median=1000 * watch.small.quantile(0.5, attacked_until),
        p99=1000 * watch.small.quantile(0.99, attacked_until),
        large=1000 * watch.large.longest,
        errors=watch.errors,
        ends=ends,
        memory=(before, usage.most, stage.gateway.memory()),
        calls=(caused["attack"], caused["other"]),
        rest=rest,
        problems=stage.problems() - problems,
        died=stage.gateway.ended,
        stuck=not rested,
    )


class Usage:
    """Memory and CPU time of the gateway, looked at again and again.

    Attributes:
        most: The most memory seen, in MiB.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._cpu: list[tuple[float, float]] = []
        self.most = 0.0

    def look(self) -> float:
        """Look once; the memory."""
        gateway = self._stage.gateway
        memory = gateway.memory()
        self.most = max(self.most, memory)
        self._cpu.append((time.monotonic(), gateway.main_cpu_seconds()))
        return memory

    async def follow(self, until: float) -> None:
        """Look until then."""
        while time.monotonic() < until:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self.look()

    def cpu_between(self, begin: float, end: float) -> float:
        """Seconds of CPU time that the main process took, to the precision of the looks."""
        inside = [used for at, used in self._cpu if begin - _SAMPLE_SECONDS <= at <= end + _SAMPLE_SECONDS]
        return inside[-1] - inside[0] if inside else 0.0


async def _rested(stage: Stage, watch: Watch, usage: Usage) -> bool:
    """Wait until all questions are answered again and no thread is busy all the time; whether that is reached."""
    until = time.monotonic() + _LONGEST_REST_SECONDS
    while time.monotonic() < until and not stage.gateway.ended:
        began, looks, running = time.monotonic(), 0, Counter[int]()
        while time.monotonic() < began + _REST_STEP_SECONDS:
            await usage.follow(time.monotonic() + _SAMPLE_SECONDS)
            running.update(stage.gateway.running_threads())
            looks += 1
        now = time.monotonic()
        answered = all(each.answered_between(began, now) for each in (watch.public, watch.admin, watch.small))
        answered &= watch.large.answered_between(began - _LARGE_SECONDS, now)
        if answered and max(running.values(), default=0) < _BUSY_SHARE * looks:
            return True
    return stage.gateway.ended
