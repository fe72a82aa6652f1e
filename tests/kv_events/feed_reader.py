"""A feed over real sockets with all it needs, for tests."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import zmq
from index.event_index import HASHER, MODEL, WORTH, digest

from gateway.config.index_settings import IngestSettings
from gateway.core.ids import ReplicaId, Target
from gateway.core.kv_events import EventSource, FeedState
from gateway.index import ReplicaIndex
from gateway.kv_events.feed import Feed
from gateway.kv_events.work_scheduler import WorkScheduler

LIVE, REBUILDING, CONNECTING, SILENT = FeedState.LIVE, FeedState.REBUILDING, FeedState.CONNECTING, FeedState.SILENT
TARGET = Target(ReplicaId("engine"))
SETTINGS = IngestSettings()
SIZE = 16


class Counts:
    """An ``EventObserver``."""

    def __init__(self):
        self.events = Counter()
        self.gaps = 0
        self.unmatched = Counter()

    def on_kv_events(self, replica, kind, count):
        self.events[kind] += count

    def on_kv_gap(self, replica):
        self.gaps += 1

    def on_kv_unmatched(self, replica, kind, blocks):
        self.unmatched[kind] += blocks


class Reader:
    """A feed with all it needs. Its clock is the real one plus ``later``."""

    def __init__(self, source, index=None, pump=None, settings=SETTINGS):
        self.context = zmq.Context()
        self.pump = pump or WorkScheduler()
        self.counts = Counts()
        self.index = index or ReplicaIndex(
            HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0
        )
        self.later = 0.0
        self.feed = Feed(
            TARGET,
            source,
            context=self.context,
            scheduler=self.pump,
            index=self.index,
            observer=self.counts,
            settings=settings,
            fix="do something about it",
        )

    @property
    def report(self):
        return self.feed.report(time.monotonic())

    @property
    def state(self):
        return self.report.state

    def tick(self, seconds=0.0):
        """Time passes, and all that is queued before and by that is done."""
        self.later += seconds
        self._work()
        self.feed.tick(time.monotonic() + self.later)
        self._work()

    def _work(self):
        while self.feed._next_action():
            pass

    async def until(self, condition):
        """Wait for something to become true."""
        while not condition():
            await asyncio.sleep(0.005)

    def equals(self, engine):
        """Whether it claims to know all, and does."""
        known = self.index.state(TARGET)
        return self.state is LIVE and known.digest == digest(engine.pool) and known.blocks == len(engine.pool.copies())

    def close(self):
        self.feed.close()
        self.context.destroy(0)


@asynccontextmanager
async def following(engine, *, replay=True, index=None):
    source = EventSource(0, engine.events, engine.replay if replay else None)
    reader = Reader(source, index)
    try:
        if engine.is_open:
            await engine.subscribed()
        yield reader
    finally:
        reader.close()
        engine.end()


async def fill(engine, count, start=0):
    for number in range(start, start + count):
        engine.ask(*range(number, number + 40))
