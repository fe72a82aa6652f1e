"""Finds the replicas of every model that says where they are found."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gateway.config.discovery_settings import DiscoverSettings
from gateway.core.ids import ModelId
from gateway.discovery.discovered import DiscoveredReplica
from gateway.discovery.follower import Follower
from gateway.discovery.sources import source_of
from gateway.tasks import TaskGroupOwner

_FIRST_SECONDS = 10.0
"""How long the start waits for the first answers; a source that takes longer is heard later."""


class Discovery:
    """Follows the sources.

    Args:
        take: Told of all replicas found for a model whenever they may be others than before.
        failed: Told the model and the kind of a source that failed.
    """

    def __init__(
        self, take: Callable[[ModelId, Sequence[DiscoveredReplica]], None], failed: Callable[[ModelId, str], None]
    ) -> None:
        self._take = take
        self._failed = failed
        self._followers: dict[ModelId, Follower] = {}
        self._ending = TaskGroupOwner()

    def configure(self, wanted: Mapping[ModelId, DiscoverSettings | None]) -> None:
        """Follow these from now on; those that are followed already go on as they are. Wants a running event loop."""
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
            _, late = await asyncio.wait(waiting, timeout=_FIRST_SECONDS)
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
