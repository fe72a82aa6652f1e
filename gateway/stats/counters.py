"""Counters over time: rings of buckets, each with a row of columns for every key."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from gateway.stats.columns import SECTIONS, SERIES, Row
from gateway.stats.frames import PackedRows, RowTable
from gateway.stats.label_limiter import OTHER, StatsKey
from gateway.stats.query_arguments import Part, Selection
from gateway.stats.time_buckets import COUNTS, Resolution, TimeBuckets, covering_buckets
from gateway.stats.totals import Totals, add_to

_MAX_KEYS = 1000
"""Maximum number of keys in one sum. More occur only if clients keep changing their names."""


class SelectionTotals:
    """The sums of a selection.

    Args:
        keys: The keys.
        figures: A row of columns for each key.

    Attributes:
        keys: As given.
        figures: As given.
    """

    def __init__(self, keys: Sequence[StatsKey], figures: NDArray[np.float64]) -> None:
        self.keys = keys
        self.figures = figures

    @property
    def total(self) -> Totals:
        """The sum over all keys."""
        return Totals(self.figures.sum(axis=0).tolist())

    def by(self, part: Part) -> dict[str, Totals]:
        """The sums grouped by one label of the keys."""
        numbers: dict[str, int] = {}
        places = [numbers.setdefault(getattr(key, part), len(numbers)) for key in self.keys]
        figures = np.zeros((len(numbers), self.figures.shape[1]))
        np.add.at(figures, np.array(places, np.int64), self.figures)
        return {name: Totals(figures[number].tolist()) for name, number in numbers.items()}

    def combined(self, others: Sequence["SelectionTotals"]) -> "SelectionTotals":
        """These sums together with others."""
        if not others:
            return self
        keys = [key for sums in (self, *others) for key in sums.keys]
        return SelectionTotals(keys, np.concatenate([sums.figures for sums in (self, *others)]))


class Counters:
    """Rows by time and key."""

    def __init__(self) -> None:
        self._rings = tuple(_CountRing(resolution) for resolution in COUNTS)

    @property
    def nbytes(self) -> int:
        """Memory of the packed rows, which are all except those of open buckets."""
        return sum(ring.nbytes for ring in self._rings)

    def add(self, key: StatsKey, at: float, row: Row) -> None:
        """Add the row of a request that ended at ``at``."""
        for ring in self._rings:
            ring.add(key, at, row)

    def step(self, selection: Selection) -> int:
        """Seconds per bucket of the selection's window."""
        return self._rings[selection.window.ring].ring.step

    def first_start(self, selection: Selection, now: float) -> int:
        """Start of the first bucket of the selection's window."""
        return self._rings[selection.window.ring].ring.first_start(now, selection.window.seconds)

    def sums(self, selection: Selection, now: float, sections: int = len(SECTIONS)) -> SelectionTotals:
        """The sums of a selection. Beyond ``_MAX_KEYS``, the rarest keys are summed as ``OTHER``.

        Args:
            selection: Window and filters.
            now: Unix seconds.
            sections: Number of column sections needed, from the first on.
        """
        rings = [each.ring for each in self._rings[selection.window.ring :]]
        buckets = covering_buckets(rings, now, selection.window.seconds)
        frames = [frame for bucket in buckets for frame in bucket.frames(sections)]
        times = Counter(key for frame in frames for key in frame.keys if selection.takes(*key))
        kept = {key for key, _ in times.most_common(_MAX_KEYS)}
        numbers: dict[StatsKey, int] = {}
        for key in times:
            numbers.setdefault(_folded(key, kept), len(numbers))
        grouping = _Grouping(lambda key: numbers[_folded(key, kept)] if key in times else -1)
        table = RowTable(len(numbers), sections)
        for frame in frames:
            table.add(frame, grouping.groups(frame))
        return SelectionTotals(list(numbers), table.sums())

    def series(
        self, selection: Selection, now: float, names: Sequence[str], name_of: Callable[[StatsKey], str]
    ) -> tuple[Sequence[int], NDArray[np.float64]]:
        """The sums of a selection in each bucket; only the columns of series.

        Args:
            selection: Window and filters.
            now: Unix seconds.
            names: The groups.
            name_of: Maps a key to its group.

        Returns:
            Starts of the non-empty buckets, oldest first; and an array of shape (buckets, names, columns).
        """
        ring = self._rings[selection.window.ring].ring
        buckets = list(ring.between(now, selection.window.seconds))
        numbers = {name: number for number, name in enumerate(names)}
        grouping = _Grouping(lambda key: numbers[name_of(key)] if selection.takes(*key) else -1)
        table = RowTable(len(buckets) * len(names), sections=1)
        for number, (_, bucket) in enumerate(buckets):
            for frame in bucket.frames(sections=1):
                groups = grouping.groups(frame)
                table.add(frame, np.where(groups < 0, groups, groups + number * len(names)))
        return [start for start, _ in buckets], table.sums().reshape(len(buckets), len(names), SERIES)


def _folded(key: StatsKey, kept: Set[StatsKey]) -> StatsKey:
    return key if key in kept else key._replace(tenant=OTHER, source=OTHER)


class _Grouping:
    """Maps the rows of frames to groups.

    Args:
        number_of: Group number of a key; -1 to leave it out.
    """

    def __init__(self, number_of: Callable[[StatsKey], int]) -> None:
        self._number_of = number_of
        # Most buckets share one object of keys. The entry keeps it alive, so that its id stays unique.
        self._done: dict[int, tuple[Sequence[StatsKey], NDArray[np.int64]]] = {}

    def groups(self, frame: PackedRows) -> NDArray[np.int64]:
        """The group number of each row."""
        keys = frame.keys
        if id(keys) not in self._done:
            self._done[id(keys)] = keys, np.array([self._number_of(key) for key in keys], np.int64)
        return self._done[id(keys)][1]


class _Bucket:
    """The rows of one time bucket: a packed frame, and the rows added since."""

    __slots__ = ("frame", "rows")

    def __init__(self) -> None:
        self.frame: PackedRows | None = None
        self.rows: dict[StatsKey, Row] = {}

    def frames(self, sections: int) -> Iterator[PackedRows]:
        if self.frame is not None:
            yield self.frame
        if self.rows:
            yield PackedRows(self.rows, sections=sections)

    def add(self, key: StatsKey, row: Row) -> None:
        total = self.rows.get(key)
        if total is None:
            self.rows[key] = row.copy()
        else:
            add_to(total, row)

    def pack(self, known: Sequence[StatsKey]) -> None:
        rows, self.rows = self.rows, {}
        if self.frame is not None:
            for key, row in self.frame.rows().items():
                add_to(rows.setdefault(key, {}), row)
        self.frame = PackedRows(rows, known)


class _CountRing:
    """A ring of buckets of one resolution. Open buckets are packed when a new one begins."""

    def __init__(self, resolution: Resolution) -> None:
        self.ring = TimeBuckets(resolution, _Bucket)
        self._open: list[_Bucket] = []
        self._keys: Sequence[StatsKey] = ()

    @property
    def nbytes(self) -> int:
        return sum(bucket.frame.nbytes for bucket in self.ring.all() if bucket.frame is not None)

    def add(self, key: StatsKey, at: float, row: Row) -> None:
        bucket = self.ring.bucket(at)
        if bucket is None:
            return
        if not bucket.rows:
            if bucket.frame is None:
                self._pack()
            self._open.append(bucket)
        bucket.add(key, row)

    def _pack(self) -> None:
        for bucket in self._open:
            bucket.pack(self._keys)
            if bucket.frame is not None:
                self._keys = bucket.frame.keys
        self._open = []
