"""Runs the discovery source of every model that has one: DNS, Kubernetes or a file."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from gateway.config.discovery_settings import DiscoverSettings
from gateway.core.ids import ModelId
from gateway.discovery.discovered import Condition, DiscoveredReplica, EmptyGuard, ReplicaSource, SourceFailed
from gateway.tasks import TaskGroupOwner


def source_of(settings: DiscoverSettings) -> ReplicaSource:
    """The source of a configuration."""
    if settings.dns is not None:
        from gateway.discovery.dns_source import DnsSource

        return DnsSource(settings.dns, settings.template)
    if settings.kubernetes is not None:
        from gateway.discovery.kubernetes_source import KubernetesSource

        return KubernetesSource(settings.kubernetes, settings.template)
    from gateway.discovery.file_source import FileSource

    assert settings.file is not None
    return FileSource(settings.file.path)


_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_JITTER = 0.25

_log = structlog.get_logger("gateway.discovery")


class Follower:
    """Follows the source of one model: retries after failures, and reports the accepted answers.

    Args:
        model: The model.
        settings: Its discovery settings.
        source: The source.
        take: Called with all replicas whenever the accepted answer may have changed.
        failed: Called on every failure of the source.

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
        self._guard = EmptyGuard(settings.empty_after_seconds)
        self._accept_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._tasks = TaskGroupOwner()
        self._tasks.spawn(self._follow(), name=f"discovery-{model}")

    async def stop(self) -> None:
        """End following."""
        self._cancel_accept()
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
            except Exception:  # noqa: BLE001 - discovery has to continue
                problem = "the gateway failed"
                _log.exception("discovery_broke", model=self._model, source=self.settings.source)
            pause = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
            self._record_failure(problem)
            await asyncio.sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311

    def _answered(self, found: Sequence[DiscoveredReplica]) -> None:
        if self._failures:
            _log.info("discovery_recovered", model=self._model, source=self.settings.source)
        self._failures = 0
        self._cancel_accept()
        now = time.monotonic()
        self._take(self._guard.answered(found, now))
        if self._guard.due < float("inf"):
            ready = sum(each.condition is Condition.READY for each in found)
            _log.warning(
                "discovery_doubted",
                model=self._model,
                source=self.settings.source,
                found=len(found),
                ready=ready,
                instead=f"the replicas stay until this has lasted {self.settings.empty_after_seconds:g} seconds",
            )
            self._accept_timer = asyncio.get_running_loop().call_later(max(self._guard.due - now, 0), self._accept)
        self.answered.set()

    def _accept(self) -> None:
        """The delayed answer was not replaced: accept it."""
        self._accept_timer = None
        self._take(self._guard.at(time.monotonic()))

    def _record_failure(self, problem: str) -> None:
        self._failures += 1
        self._cancel_accept()
        self._guard.failed()
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

    def _cancel_accept(self) -> None:
        if self._accept_timer is not None:
            self._accept_timer.cancel()
            self._accept_timer = None


_START_SECONDS = 10.0
"""How long the start waits for the first answers; a later answer is applied when it arrives."""


class Discovery:
    """Follows the sources of all models.

    Args:
        take: Called with all discovered replicas of a model whenever they may have changed.
        failed: Called with the model and the kind of a source that failed.
    """

    def __init__(
        self, take: Callable[[ModelId, Sequence[DiscoveredReplica]], None], failed: Callable[[ModelId, str], None]
    ) -> None:
        self._take = take
        self._failed = failed
        self._followers: dict[ModelId, Follower] = {}
        self._ending = TaskGroupOwner()

    def configure(self, wanted: Mapping[ModelId, DiscoverSettings | None]) -> None:
        """Set the sources; unchanged ones continue. Needs a running event loop."""
        for model, settings in wanted.items():
            follower = self._followers.get(model)
            if settings == (None if follower is None else follower.settings):
                continue
            if follower is not None:
                self._ending.spawn(follower.stop(), name=f"discovery-end-{model}")
                del self._followers[model]
            if settings is None:
                self._take(model, ())
            else:
                self._followers[model] = self._follower(model, settings)

    async def wait_for_first_answers(self) -> None:
        """Wait until every source has answered or failed once, but not forever."""
        waiting = [asyncio.ensure_future(follower.answered.wait()) for follower in self._followers.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=_START_SECONDS)
            for each in late:
                each.cancel()

    async def stop(self) -> None:
        """End following."""
        await asyncio.gather(*(follower.stop() for follower in self._followers.values()))
        self._followers.clear()
        await self._ending.cancel()

    def _follower(self, model: ModelId, settings: DiscoverSettings) -> Follower:
        return Follower(
            model,
            settings,
            source_of(settings),
            take=lambda found: self._take(model, found),
            failed=lambda: self._failed(model, settings.source),
        )
