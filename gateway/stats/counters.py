"""Counters over time: rings of buckets, each with a row of columns for every key.

Rows of a bucket that is over are an array: without the columns that are 0 in all of them, each section in the smallest
type that holds it. Arrays are added up as a whole: one by one, the tens of thousands of rows of a window would take a
second.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.stats.label_limiter import OTHER, StatsKey
from gateway.stats.query_arguments import Part, Selection
from gateway.stats.time_buckets import COUNTS, TimeBuckets
from gateway.stats.totals import BOUNDS, COLUMNS, PLACES, Row, Totals, add_to

HOURS = 2
"""Index in ``COUNTS`` of the ring of hours."""

_MAX_KEYS = 1000
"""Maximum number of keys in one sum. More occur only if clients keep changing their names."""

_Figures = NDArray[np.float64]


def named(figures: _Figures) -> Row:
    """The row of a value for each column; of the first ones, if there are fewer."""
    places = np.flatnonzero(figures)
    return {COLUMNS[place]: figure for place, figure in zip(places.tolist(), figures[places].tolist(), strict=True)}


def _figures(rows: Collection[Row]) -> _Figures:
    """The values of rows by row and column."""
    figures = np.zeros((len(rows), len(COLUMNS)))
    for number, row in enumerate(rows):
        figures[number, [PLACES[column] for column in row]] = list(row.values())
    return figures


class SelectionTotals:
    """The sums of a selection.

    Args:
        keys: The keys.
        figures: A value per column for each key.
    """

    def __init__(self, keys: Sequence[StatsKey], figures: _Figures) -> None:
        self._keys = keys
        self._sums = figures

    def rows(self) -> dict[StatsKey, Row]:
        """The sums as rows."""
        return dict(zip(self._keys, map(named, self._sums), strict=True))

    @property
    def total(self) -> Totals:
        """The sum over all keys."""
        return Totals(named(self._sums.sum(axis=0)))

    def by(self, part: Part) -> dict[str, Totals]:
        """The sums grouped by one label of the keys."""
        numbers: dict[str, int] = {}
        places = [numbers.setdefault(getattr(key, part), len(numbers)) for key in self._keys]
        figures = np.zeros((len(numbers), self._sums.shape[1]))
        np.add.at(figures, np.array(places, np.int64), self._sums)
        return {name: Totals(named(figures[number])) for name, number in numbers.items()}

    def combined(self, others: Iterable[Mapping[StatsKey, Row]]) -> "SelectionTotals":
        """These sums together with others."""
        more = [each for rows in others for each in rows.items()]
        figures = _figures([row for _, row in more])
        return SelectionTotals([*self._keys, *(key for key, _ in more)], np.concatenate([self._sums, figures]))


class Counters:
    """Rows by time and key.

    The rows of one bucket of the finest ring are summed first. The sums are added to the rings when a row of another
    bucket comes or when something is read, because adding every row to every ring would be most of the work.

    Args:
        since: Begin of this process, Unix seconds. Hours of earlier ones count in windows that are read from hours.
    """

    def __init__(self, since: float = 0) -> None:
        self._since = since
        self._buckets = TimeBuckets(COUNTS, _Bucket)
        self._present: dict[StatsKey, Row] = {}
        self._present_start = 0

    def add(self, key: StatsKey, at: float, row: Row) -> None:
        """Add the row of a request that ended at ``at``."""
        start = COUNTS[0].start_of(at)
        if start != self._present_start:
            self._add_present()
            self._present_start = start
        _add_row(self._present, key, row)

    def restore(self, key: StatsKey, start: int, row: Row) -> None:
        """Add the row of a whole hour of an earlier process; windows of a day and less do not include it."""
        for bucket in self._buckets.opened(start, HOURS):
            _add_row(bucket.rows, key, row)

    def hours(self) -> Iterator[tuple[int, Mapping[StatsKey, Row]]]:
        """Start and rows of every hour that is kept, in no order; of one hour maybe twice."""
        self._add_present()
        for start, bucket in self._buckets.all(HOURS):
            yield from ((start, array.rows()) for array in bucket.arrays())

    def sums(self, selection: Selection, sections: int = len(BOUNDS) - 1) -> SelectionTotals:
        """The sums of a selection. Beyond ``_MAX_KEYS``, the rarest keys are summed as ``OTHER``.

        Args:
            selection: Window and filters.
            sections: Number of column sections needed, from the first on.
        """
        self._add_present()
        buckets = self._buckets.covering(selection.window.ring, selection.starts(COUNTS), HOURS, self._since)
        arrays = [array for bucket in buckets for array in bucket.arrays()]
        times = Counter(key for array in arrays for key in array.keys if selection.takes(*key))
        kept = {key for key, _ in times.most_common(_MAX_KEYS)}
        folded = {key: key if key in kept else key._replace(tenant=OTHER, source=OTHER) for key in times}
        keys = list(dict.fromkeys(folded.values()))
        grouping, figures = _Grouping(keys, folded.get), np.zeros((len(keys), BOUNDS[sections]))
        for array in arrays:
            grouping.add(array, figures)
        return SelectionTotals(keys, figures)

    def series(self, selection: Selection, names: Sequence[str], by: Part | None) -> dict[int, _Figures]:
        """The sums of a selection in each bucket that is not empty.

        Args:
            selection: Window and filters.
            names: The groups: values of a label. Other values are in the last one.
            by: The label; None for a single group.

        Returns:
            By the start of the bucket, a value per column of the first section for each group.
        """
        self._add_present()

        def name_of(key: StatsKey) -> str | None:
            name = names[-1] if by is None or getattr(key, by) not in names else getattr(key, by)
            return name if selection.takes(*key) else None

        grouping, found = _Grouping(names, name_of), dict[int, _Figures]()
        for start in selection.starts(COUNTS):
            if (bucket := self._buckets.kept(selection.window.ring, start)) is not None:
                found[start] = np.zeros((len(names), BOUNDS[1]))
                for array in bucket.arrays():
                    grouping.add(array, found[start])
        return found

    def _add_present(self) -> None:
        rows, self._present = self._present, {}
        for bucket in self._buckets.opened(self._present_start) if rows else ():
            for key, row in rows.items():
                _add_row(bucket.rows, key, row)


def _add_row(rows: dict[StatsKey, Row], key: StatsKey, row: Row) -> None:
    if key in rows:
        add_to(rows[key], row)
    else:
        rows[key] = row.copy()


class _Bucket:
    """The rows of one time bucket: an array, and the rows added since."""

    __slots__ = ("array", "rows")

    def __init__(self) -> None:
        self.array: _Array | None = None
        self.rows: dict[StatsKey, Row] = {}

    def arrays(self) -> "Iterator[_Array]":
        if self.array is not None:
            yield self.array
        if self.rows:
            yield _Array(self.rows)

    def close(self) -> None:
        """Make one array of all rows."""
        for key, row in self.array.rows().items() if self.array is not None else ():
            _add_row(self.rows, key, row)
        self.array, self.rows = _Array(self.rows), {}


class _Array:
    """Rows as arrays.

    Args:
        rows: The rows.

    Attributes:
        keys: The keys of the rows, in order.
        sections: For each section, the columns with values, and the values by key and column.
    """

    __slots__ = ("keys", "sections")

    def __init__(self, rows: Mapping[StatsKey, Row]) -> None:
        self.keys = _shared(tuple(sorted(rows)))
        figures = _figures([rows[key] for key in self.keys])
        used = np.flatnonzero(figures.any(axis=0))
        bounds = np.searchsorted(used, BOUNDS)
        self.sections = [_packed(used[begin:end], figures) for begin, end in pairwise(bounds)]

    def rows(self) -> dict[StatsKey, Row]:
        """The rows again, whole numbers as such: floats would make histories five times as large."""
        rows: dict[StatsKey, Row] = {key: {} for key in self.keys}
        for columns, values in self.sections:
            names = [COLUMNS[place] for place in columns]
            for row, figures in zip(rows.values(), values.tolist(), strict=True):
                row.update(each for each in zip(names, figures, strict=True) if each[1])
        return rows


@lru_cache(maxsize=8)
def _shared(keys: tuple[StatsKey, ...]) -> tuple[StatsKey, ...]:
    """The same object for the same keys, which most buckets have in common."""
    return keys


def _packed(columns: NDArray[np.int64], figures: _Figures) -> tuple[NDArray[np.uint16], NDArray[Any]]:
    values = figures[:, columns]
    whole = values.size and values.min() >= 0 and not (values % 1).any()
    return columns.astype(np.uint16), values.astype(np.min_scalar_type(int(values.max())) if whole else np.float64)


class _Grouping:
    """Adds rows up by group.

    Args:
        names: The names of the groups.
        name_of: The name of a key's group; None to leave it out.
    """

    def __init__(self, names: Sequence[object], name_of: Callable[[StatsKey], object]) -> None:
        self._numbers = {name: number for number, name in enumerate(names)} | {None: -1}
        self._name_of = name_of
        # Most buckets share one object of keys. The entry keeps it alive, so that its id stays unique.
        self._done: dict[int, tuple[Sequence[StatsKey], Any, Any, Any]] = {}

    def add(self, array: _Array, figures: _Figures) -> None:
        """Add rows to the figures of their groups, as far as these have the columns."""
        _, order, firsts, groups = self._done.get(id(array.keys)) or self._group(array.keys)
        for columns, values in array.sections if groups.size else ():
            if columns.size and columns[-1] < figures.shape[1]:
                sums = np.add.reduceat(values[order], firsts, axis=0, dtype=np.float64)
                figures[np.ix_(groups, columns)] += sums

    def _group(self, keys: Sequence[StatsKey]) -> tuple[Sequence[StatsKey], Any, Any, Any]:
        """The rows that are taken, in the order of their groups; where each group begins there; the groups."""
        of_rows = np.array([self._numbers[self._name_of(key)] for key in keys], np.int64)
        order = np.argsort(of_rows, kind="stable")[np.count_nonzero(of_rows < 0) :]
        groups, firsts = np.unique(of_rows[order], return_index=True)
        self._done[id(keys)] = keys, order, firsts, groups
        return self._done[id(keys)]
