"""Rows that were added are in every sum from then on, whenever sums are read."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.stats.counters import Counters
from gateway.stats.label_limiter import StatsKey
from gateway.stats.query_arguments import Selection
from gateway.stats.time_buckets import WINDOWS
from gateway.stats.totals import Row

NOON = 1_790_000_000 // 43_200 * 43_200
KEYS = [StatsKey("m", "acme", source, "v1") for source in ("curl", "openai")]
ADDED = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-100, 7300), st.booleans()))


def sums(counts: Counters, now: float) -> dict[str, dict[StatsKey, Row]]:
    return {name: counts.sums(Selection(window, now)).rows() for name, window in WINDOWS.items()}


@given(ADDED)
def test_reading_between_two_rows_changes_no_sum(added):
    read_often, read_once = Counters(), Counters()
    for key, seconds, is_read in added:
        for counts in (read_often, read_once):
            counts.add(key, NOON + seconds, {"requests": 1, "lost_seconds": 0.25})
        if is_read:
            sums(read_often, NOON + seconds)
    assert sums(read_often, NOON + 7300) == sums(read_once, NOON + 7300)


@given(ADDED)
def test_a_week_holds_every_row_added(added):
    counts = Counters()
    for key, seconds, _ in added:
        counts.add(key, NOON + seconds, {"requests": 1})
    total = sum(row["requests"] for row in sums(counts, NOON + 7300)["7d"].values())
    assert total == len(added)


def test_a_row_that_is_changed_by_its_owner_later_is_counted_as_it_was():
    counts = Counters()
    row: Row = {"requests": 1}
    counts.add(KEYS[0], NOON, row)
    row["requests"] = 7
    assert sums(counts, NOON)["15m"][KEYS[0]]["requests"] == 1
