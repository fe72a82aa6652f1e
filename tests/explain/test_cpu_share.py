"""Which conversations are explained, so that explaining keeps to its share of the CPU time."""

import zlib
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from gateway.explain.worker.cpu_share import CpuShare

HASHES = [zlib.crc32(f"conversation {number}".encode()) for number in range(2000)]
TOKENS = 1000


class Traffic:
    """A gateway that is asked ``rate`` times a second, and uses ``own`` CPU seconds a second."""

    def __init__(self, most: float | None = 0.25, *, rate: int = 200, own: float = 0.8) -> None:
        self.now = self.own_seconds = 0.0
        self.rate, self.own = rate, own
        self.share = CpuShare(most, lambda: self.now, lambda: self.own_seconds)
        self.used: list[float] = []

    def run(self, seconds: int, cost: float) -> set[int]:
        """Explain what is admitted, at ``cost`` CPU seconds each; returns the conversations of the last second."""
        admitted: set[int] = set()
        for _ in range(seconds):
            asked = HASHES[: self.rate]
            admitted = {each for each in asked if self.share.admits(TOKENS, lambda each=each: each)}
            self.pass_time(1.0, cost * len(admitted), TOKENS * len(admitted))
        return admitted

    def pass_time(self, seconds: float, used: float, tokens: int) -> None:
        self.now += seconds
        self.own_seconds += self.own * seconds
        self.used.append(used)
        self.share.spent(used, tokens)


def test_all_are_explained_while_that_is_within_the_share():
    assert len(Traffic().run(30, cost=0.0009)) == 200


def test_beyond_it_as_many_conversations_are_left_out_as_have_to_be():
    traffic = Traffic()
    traffic.run(30, cost=0.004)
    # 200 a second would take 0.8 s; 0.25 times 0.8 s are allowed.
    assert sum(traffic.used[-10:]) / 10 == pytest.approx(0.2, rel=0.25)


def test_the_same_conversations_are_explained_as_long_as_the_share_is_the_same():
    traffic = Traffic()
    traffic.run(30, cost=0.004)
    seconds = [traffic.run(1, cost=0.004) for _ in range(10)]
    assert 20 < len(seconds[0]) < 80
    assert all(before == after for before, after in pairwise(seconds))


def test_those_that_are_explained_with_less_to_spare_are_explained_with_more():
    few, many = Traffic(), Traffic()
    assert few.run(30, cost=0.008) < many.run(30, cost=0.004)


def test_with_little_traffic_all_are_explained_at_any_cost():
    traffic = Traffic(rate=10, own=0.01)
    assert len(traffic.run(30, cost=0.009)) == traffic.rate


def test_a_short_burst_after_quiet_minutes_is_explained():
    traffic = Traffic(rate=0, own=0.001)
    traffic.run(60, cost=0)
    traffic.rate = 100
    assert len(traffic.run(3, cost=0.0015)) == traffic.rate


def test_traffic_that_begins_at_once_is_limited_from_its_second_second_on():
    traffic = Traffic(rate=0)
    traffic.run(30, cost=0)
    traffic.rate = 1000
    traffic.run(10, cost=0.003)
    assert sum(traffic.used[-9:]) < 3


def test_costlier_traffic_is_limited_in_the_second_that_follows():
    traffic = Traffic()
    traffic.run(30, cost=0.00005)
    traffic.run(1, cost=0.008)
    assert len(traffic.run(1, cost=0.008)) < traffic.rate / 4


def test_all_are_explained_again_when_there_is_room_again():
    traffic = Traffic()
    traffic.run(30, cost=0.008)
    traffic.rate = 20
    assert len(traffic.run(12, cost=0.004)) == traffic.rate


def test_one_request_at_an_unusual_cost_is_forgotten():
    traffic = Traffic(rate=5, own=0.01)
    assert traffic.share.admits(TOKENS, lambda: 0)
    traffic.pass_time(2.0, 1.5, TOKENS)
    assert len(traffic.run(60, cost=0.003)) == traffic.rate


def test_a_long_prompt_is_no_costlier_by_its_length():
    traffic = Traffic(rate=20)
    traffic.run(30, cost=0.002)
    assert traffic.share.admits(100 * TOKENS, lambda: HASHES[0])
    traffic.pass_time(1.0, 0.2, 100 * TOKENS)
    assert len(traffic.run(5, cost=0.002)) == traffic.rate


def test_requests_at_long_intervals_are_limited_by_what_they_cost():
    traffic = Traffic(own=0.0)
    for _ in range(20):
        admitted = traffic.share.admits(TOKENS, lambda: HASHES[5])
        traffic.pass_time(2.2, 1.0 * admitted, TOKENS * admitted)
    assert sum(traffic.used) < 15


def test_there_is_room_for_comparisons_until_the_limit_is_used():
    traffic = Traffic()
    assert traffic.share.has_room
    traffic.run(2, cost=0.02)
    assert not traffic.share.has_room
    traffic.rate = 0
    traffic.run(12, cost=0)
    assert traffic.share.has_room


def test_without_a_limit_all_are_explained():
    assert len(Traffic(None).run(30, cost=0.1)) == 200


def test_a_limit_is_logged_once_a_minute():
    traffic = Traffic()
    with capture_logs() as logs:
        traffic.run(90, cost=0.004)
    assert [line["event"] for line in logs] == ["explain_limited", "explain_limited"]
    assert 0 < logs[0]["share"] < 1


def test_a_process_that_reports_after_a_long_silence_is_counted_over_that_time():
    traffic = Traffic()
    for _ in range(100):
        traffic.share.admits(TOKENS, lambda: 0)
    # 100 requests of a minute at 4 ms: less than a fifth of a core.
    traffic.pass_time(60.0, 0.4, 100 * TOKENS)
    assert traffic.share.admitted == 1.0
