"""Where the journal's history is kept: nothing is lost by a failed read, and nothing counts twice after an outage."""

import pytest

from gateway.explain.worker.history_keeper import GONE_SECONDS, FileHistory, SharedHistory
from gateway.stats import Stats

DAY = 86_400


def history(name: bytes) -> bytes:
    return Stats(DAY, name=name).answer("history", {}, DAY)


class Records:
    """Shared records in memory, which may be unreachable."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.is_down = False

    def _check(self) -> None:
        if self.is_down:
            raise ConnectionError

    async def read(self):
        self._check()
        return dict(self.values)

    async def write(self, changes):
        self._check()
        for name, value in changes.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        return True

    async def take(self, name):
        self._check()
        return self.values.pop(name, None)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def two():
    """Two workers with shared records, and their clock."""
    records, clock = Records(), Clock()
    return SharedHistory(records, clock, clock), SharedHistory(records, clock, clock), records, clock


async def test_a_crashed_worker_is_taken_over_once_it_was_seen_not_to_write(two):
    one, other, _, clock = two
    await one.save(history(b"one"))
    await other.save(history(b"other"))
    for _ in range(3):
        assert await other.take() == []
        clock.now += 60
        await other.save(history(b"other"))
    assert GONE_SECONDS == 180
    assert len(await other.take()) == 1
    assert await other.take() == []


async def test_a_worker_that_ended_is_taken_over_at_once(two):
    one, other, _, _ = two
    await one.save(history(b"one"), is_last=True)

    assert await other.take() == [history(b"one")]


async def test_after_an_outage_a_living_worker_is_not_taken_over(two):
    one, other, records, clock = two
    await one.save(history(b"one"))
    await other.save(history(b"other"))
    assert await one.take() == []
    records.is_down = True
    for _ in range(5):
        clock.now += 60
        with pytest.raises(ConnectionError):
            await one.take()
    records.is_down = False

    assert await one.take() == []
    clock.now += 60
    await other.save(history(b"other"))
    for _ in range(4):
        clock.now += 60
        await other.save(history(b"other"))
        assert await one.take() == []


async def test_clocks_that_differ_take_no_one_over():
    records, behind, ahead = Records(), Clock(), Clock()
    ahead.now += 3600
    one, other = SharedHistory(records, behind, behind), SharedHistory(records, ahead, ahead)
    await other.save(history(b"other"))
    for _ in range(5):
        assert await one.take() == []
        behind.now += 60
        ahead.now += 60
        await other.save(history(b"other"))


async def test_a_file_that_cannot_be_read_now_is_read_again(tmp_path, monkeypatch):
    file = tmp_path / "history"
    file.write_bytes(history(b"one"))
    store = FileHistory(file)
    with monkeypatch.context() as patch:
        patch.setattr(type(file), "read_bytes", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            await store.take()

    assert await store.take() == (history(b"one"),)
    assert await store.take() == ()
