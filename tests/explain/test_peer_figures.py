"""What gateways write down of their figures, and read of the others'."""

import asyncio

import pytest
from patience import HANG_SECONDS

from gateway.explain.worker.explain_replication import WRITTEN_SECONDS, PeerFigures


class Records:
    """Values that several have together; as Redis, they can be away or slow."""

    def __init__(self):
        self.values = {}
        self.away = False
        self.slow = False
        self.writes = 0

    async def read(self):
        if self.slow:
            await asyncio.sleep(60)
        if self.away:
            raise ConnectionError
        return dict(self.values)

    async def write(self, changes):
        if self.away:
            raise ConnectionError
        self.writes += 1
        for name, value in changes.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        return True


class Group:
    def __init__(self):
        self.records = Records()
        self.now = 1000.0
        self.peers = 1

    def gateway(self, figures, **how):
        async def own():
            return figures

        return PeerFigures(self.records, own, lambda: self.peers, wall=lambda: self.now, write_seconds=0.01, **how)


@pytest.fixture
def group():
    return Group()


async def until(holds):
    async with asyncio.timeout(HANG_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


async def test_each_gateway_reads_the_records_of_all(group):
    one, other = group.gateway(b"one"), group.gateway(b"other")
    one.start()
    other.start()
    await until(lambda: len(group.records.values) == 2)
    assert set(await one.read()) == {b"one", b"other"}
    await other.stop()
    assert await one.read() == (b"one",)
    await one.stop()
    assert not group.records.values


async def test_a_gateway_without_peers_writes_nothing(group):
    group.peers = 0
    one, other = group.gateway(b"one"), group.gateway(b"other", writes=False)
    one.start()
    other.start()
    await asyncio.sleep(0.1)
    assert group.records.writes == 0
    group.peers = 1
    await until(lambda: group.records.writes > 3)
    assert len(group.records.values) == 1
    await one.stop()
    await other.stop()


async def test_expired_records_are_ignored_and_removed(group):
    dead, one = group.gateway(b"dead"), group.gateway(b"one")
    await dead.write()
    group.now += WRITTEN_SECONDS - 1
    assert await one.read() == (b"dead",)
    group.now += 2
    assert await one.read() == ()
    for _ in range(40):
        await one.write()
    assert len(group.records.values) == 1
    assert await one.read() == (b"one",)


async def test_invalid_records_are_ignored(group):
    one = group.gateway(b"one")
    await one.write()
    group.records.values["odd"] = b"\xc1"
    assert await one.read() == (b"one",)


async def test_without_redis_reads_return_in_time(group):
    one = group.gateway(b"one")
    one.start()
    await until(lambda: group.records.writes > 0)
    group.records.away = True
    assert await one.read() is None
    writes = group.records.writes
    group.records.away = False
    await until(lambda: group.records.writes > writes)
    group.records.slow = True
    async with asyncio.timeout(HANG_SECONDS):
        assert await one.read() is None
    await one.stop()
