"""Follows one source: asks it again when it failed, and tells what is believed of it."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence

import structlog

from gateway.config.discovery_settings import DiscoverSettings
from gateway.core.ids import ModelId
from gateway.discovery.discovered import Condition, DiscoveredReplica, ReplicaSource, SourceFailed
from gateway.discovery.empty_guard import EmptyGuard
from gateway.tasks import TaskGroupOwner

_AGAIN_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_JITTER = 0.25

_log = structlog.get_logger("gateway.discovery")


class Follower:
    """Follows the source of one model.

    Args:
        model: The model.
        settings: Where its replicas are found.
        source: The same, to be asked.
        take: Told of all replicas whenever what is believed of them may be another than before.
        failed: Told of every time that the source failed.

    Attributes:
        settings: As above.
        answered: Set once the source has answered or failed.
    """

    def __init__(
        self,
        model: ModelId,
        settings: DiscoverSettings,
        source: ReplicaSource,
        take: Callable[[Sequence[DiscoveredReplica]], None],
        failed: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.answered = asyncio.Event()
        self._model = model
        self._source = source
        self._take = take
        self._failed = failed
        self._belief = EmptyGuard(settings.empty_after_seconds)
        self._doubting: asyncio.TimerHandle | None = None
        self._failures = 0
        self._tasks = TaskGroupOwner()
        self._tasks.spawn(self._follow(), name=f"discovery-{model}")

    async def stop(self) -> None:
        """End following."""
        self._end_doubt()
        await self._tasks.cancel()

    async def _follow(self) -> None:
        while True:
            problem = "it ended"
            try:
                async with contextlib.aclosing(self._source.answers()) as answers:
                    async for found in answers:
                        self._answered(found)
            except SourceFailed as failure:
                problem = str(failure)
            except Exception:  # noqa: BLE001 - whatever it is, replicas have to go on being found
                problem = "the gateway failed"
                _log.exception("discovery_broke", model=self._model, source=self.settings.source)
            pause = _AGAIN_SECONDS[min(self._failures, len(_AGAIN_SECONDS) - 1)]
            self._note_failure(problem)
            await asyncio.sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311

    def _answered(self, found: Sequence[DiscoveredReplica]) -> None:
        if self._failures:
            _log.info("discovery_recovered", model=self._model, source=self.settings.source)
        self._failures = 0
        self._end_doubt()
        now = time.monotonic()
        self._take(self._belief.answered(found, now))
        if self._belief.due < float("inf"):
            ready = sum(each.condition is Condition.READY for each in found)
            _log.warning(
                "discovery_doubted",
                model=self._model,
                source=self.settings.source,
                found=len(found),
                ready=ready,
                instead=f"the replicas stay until this has lasted {self.settings.empty_after_seconds:g} seconds",
            )
            self._doubting = asyncio.get_running_loop().call_later(max(self._belief.due - now, 0), self._believe)
        self.answered.set()

    def _believe(self) -> None:
        """Nothing else came."""
        self._doubting = None
        self._take(self._belief.at(time.monotonic()))

    def _note_failure(self, problem: str) -> None:
        self._failures += 1
        self._end_doubt()
        self._belief.failed()
        self._failed()
        if self._failures == 1:
            _log.error(
                "discovery_failed",
                model=self._model,
                source=self.settings.source,
                problem=problem,
                instead="the replicas stay as they are",
            )
        self.answered.set()

    def _end_doubt(self) -> None:
        if self._doubting is not None:
            self._doubting.cancel()
            self._doubting = None
