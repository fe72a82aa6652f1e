"""What others see during an attack: the normal client's requests, ``/healthz`` of both ports, and the control.

All of them send one request after the other on kept connections. A request that is still unanswered at the end counts
with the time it has waited so far.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.hostile.engine import MARK
from benchmarks.hostile.stage import Stage
from benchmarks.hostile.wire import answered, head, opened
from benchmarks.isolation import prompt

_PROBE_SECONDS = 0.01
_SMALL_SECONDS = 0.02
_LARGE_SECONDS = 0.5
_LARGE_BYTES = 40_000
_LONGEST_SECONDS = 30.0
_MOST_SAMPLES = 200_000


@dataclass(slots=True)
class Series:
    """Answers to one kind of request.

    Attributes:
        samples: Begin and end of each, in monotonic seconds.
        ends: How requests ended that were not answered with 200.
    """

    samples: list[tuple[float, float]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def longest(self) -> float:
        """Seconds of the slowest answer."""
        return max((end - begin for begin, end in self.samples), default=0.0)

    def quantile(self, share: float, until: float) -> float:
        """Seconds within which this share of the answers came, of requests sent before a time."""
        ranked = sorted(end - begin for begin, end in self.samples if begin < until)
        return ranked[min(int(share * len(ranked)), len(ranked) - 1)] if ranked else float("nan")

    def worst_beyond(self, control: "Series") -> tuple[float, tuple[float, float]]:
        """Seconds of the slowest answer, less the slowest answer of a control that overlaps it; its begin and end."""
        worst = 0.0, (0.0, 0.0)
        for begin, end in sorted(self.samples, key=lambda sample: sample[0] - sample[1])[:20]:
            other = max((e - b for b, e in control.samples if b < end and e > begin), default=0.0)
            worst = max(worst, (end - begin - other, (begin, end)))
        return worst

    def answered_between(self, begin: float, end: float) -> bool:
        """Whether a request was sent and answered in this time."""
        return any(begin <= b and e <= end for b, e in reversed(self.samples[-100:]))


class Watch:
    """Sends requests from ``start`` to ``stop``.

    Attributes:
        small: Chats of a few bytes.
        large: Chats of 40 KB.
        public: ``/healthz`` of the public port.
        admin: ``/healthz`` of the admin port.
        control: The same question to a process that has nothing else to do.
    """

    def __init__(self, stage: Stage) -> None:
        self.small, self.large, self.public, self.admin, self.control = (Series() for _ in range(5))
        self._stage = stage

    def start(self) -> None:
        """Start."""
        stage = self._stage
        small = self._chat(lambda number: f"Hi {number % 100}")
        long_text = prompt("normal", 6000)[: _LARGE_BYTES - 20]
        large = self._chat(lambda number: f"{number % 10} {long_text}")
        health = b"GET /healthz HTTP/1.1\r\nhost: gateway\r\n\r\n"
        self._tasks = [
            asyncio.create_task(_repeat(*given))
            for given in (
                (stage.port, small, _SMALL_SECONDS, self.small),
                (stage.port, large, _LARGE_SECONDS, self.large),
                (stage.port, lambda _: health, _PROBE_SECONDS, self.public),
                (stage.admin_port, lambda _: health, _PROBE_SECONDS, self.admin),
                (stage.control_port, lambda _: health, _PROBE_SECONDS, self.control),
            )
        ]

    async def stop(self) -> None:
        """Stop, and count what is unanswered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def errors(self) -> Counter[str]:
        """How the normal client's requests failed."""
        return self.small.ends + self.large.ends

    def _chat(self, text: Callable[[int], str]) -> Callable[[int], bytes]:
        key = self._stage.keys["normal"]

        def made(number: int) -> bytes:
            body = b'{"model":"m","max_tokens":1,"messages":[{"role":"system","content":"You answer briefly."},'
            body += b'{"role":"user","content":"%b"}],%b}' % (text(number).encode(), MARK)
            return head(key, len(body)) + body

        return made


async def _repeat(port: int, request: Callable[[int], bytes], pause: float, series: Series) -> None:
    number = 0
    while len(series.samples) < _MOST_SAMPLES:
        begin = time.monotonic()
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                reader, writer = await opened(port)
        except (OSError, TimeoutError) as error:
            series.ends["refused" if isinstance(error, OSError) else "timeout"] += 1
            series.samples.append((begin, time.monotonic()))
            await asyncio.sleep(0.1)
            continue
        ended = "200"
        try:
            while ended == "200" and len(series.samples) < _MOST_SAMPLES:
                raw = request(number)
                number += 1
                begin = time.monotonic()
                try:
                    writer.write(raw)
                    async with asyncio.timeout(_LONGEST_SECONDS):
                        ended = await answered(reader)
                except TimeoutError:
                    ended = "timeout"
                finally:
                    series.samples.append((begin, time.monotonic()))
                await asyncio.sleep(pause)
        finally:
            writer.transport.abort()
        if ended != "200":
            series.ends[ended] += 1
        await asyncio.sleep(0.1)
