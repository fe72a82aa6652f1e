"""Counters over time: rings of buckets, each with a row of columns for every key.

Rows are packed: only non-zero columns, each number in the smallest type that holds it. They are added up by array
operations: one by one, the tens of thousands of rows of a window would take a second.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.stats.columns import SECTIONS, SERIES, WIDTH, Row
from gateway.stats.label_limiter import OTHER, StatsKey
from gateway.stats.query_arguments import Part, Selection
from gateway.stats.time_buckets import COUNTS, Resolution, TimeBuckets, covering_buckets
from gateway.stats.totals import Totals, add_to

HOURS = 2
"""Index in ``COUNTS`` of the ring of hours."""

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
    """Rows by time and key.

    The rows of one bucket of the finest ring are summed first. The sums are added to the rings when a row of another
    bucket comes or when something is read, because adding every row to every ring would be most of the work.
    """

    def __init__(self) -> None:
        self._rings = tuple(_CountRing(resolution) for resolution in COUNTS)
        # Apart, because shorter windows are summed from hours as well, and begin with this process.
        self._earlier = _CountRing(COUNTS[HOURS])
        self._present: dict[StatsKey, Row] = {}
        self._present_start = 0

    @property
    def nbytes(self) -> int:
        """Memory of the packed rows, which are all except those of open buckets."""
        self._add_present()
        return sum(ring.nbytes for ring in self._rings)

    def add(self, key: StatsKey, at: float, row: Row) -> None:
        """Add the row of a request that ended at ``at``."""
        start = self._rings[0].ring.start_of(at)
        if start != self._present_start:
            self._add_present()
            self._present_start = start
        _add_row(self._present, key, row)

    def hours(self) -> Iterator[tuple[int, Mapping[StatsKey, Row]]]:
        """Start and rows of every hour that is kept, in no order; of one hour maybe twice."""
        self._add_present()
        yield from self._rings[HOURS].rows()
        yield from self._earlier.rows()

    def restore(self, key: StatsKey, start: int, row: Row) -> None:
        """Add the row of a whole hour of an earlier process; windows of a day and less do not include it."""
        self._earlier.add(key, start, row)

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
        self._add_present()
        rings = [each.ring for each in self._rings[selection.window.ring :]]
        buckets = covering_buckets(rings, now, selection.window.seconds)
        if selection.window.ring >= HOURS:
            earlier = self._earlier.ring.between(now, selection.window.seconds)
            buckets = chain(buckets, (bucket for _, bucket in earlier))
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
        self._add_present()
        window = selection.window
        buckets = list(self._rings[window.ring].ring.between(now, window.seconds))
        if window.ring >= HOURS:
            buckets += self._earlier.ring.between(now, window.seconds)
        starts = sorted({start for start, _ in buckets})
        rows = {start: number * len(names) for number, start in enumerate(starts)}
        numbers = {name: number for number, name in enumerate(names)}
        grouping = _Grouping(lambda key: numbers[name_of(key)] if selection.takes(*key) else -1)
        table = RowTable(len(starts) * len(names), sections=1)
        for start, bucket in buckets:
            for frame in bucket.frames(sections=1):
                groups = grouping.groups(frame)
                table.add(frame, np.where(groups < 0, groups, groups + rows[start]))
        return starts, table.sums().reshape(len(starts), len(names), SERIES)

    def _add_present(self) -> None:
        rows, self._present = self._present, {}
        for key, row in rows.items():
            for ring in self._rings:
                ring.add(key, self._present_start, row)


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

    def groups(self, frame: "PackedRows") -> NDArray[np.int64]:
        """The group number of each row."""
        keys = frame.keys
        if id(keys) not in self._done:
            self._done[id(keys)] = keys, np.array([self._number_of(key) for key in keys], np.int64)
        return self._done[id(keys)][1]


def _add_row(rows: dict[StatsKey, Row], key: StatsKey, row: Row) -> None:
    total = rows.get(key)
    if total is None:
        rows[key] = row.copy()
    else:
        add_to(total, row)


class _Bucket:
    """The rows of one time bucket: a packed frame, and the rows added since."""

    __slots__ = ("frame", "rows")

    def __init__(self) -> None:
        self.frame: PackedRows | None = None
        self.rows: dict[StatsKey, Row] = {}

    def frames(self, sections: int) -> "Iterator[PackedRows]":
        if self.frame is not None:
            yield self.frame
        if self.rows:
            yield PackedRows(self.rows, sections=sections)

    def add(self, key: StatsKey, row: Row) -> None:
        _add_row(self.rows, key, row)

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

    def rows(self) -> Iterator[tuple[int, Mapping[StatsKey, Row]]]:
        for start, bucket in self.ring.started():
            rows = bucket.frame.rows() if bucket.frame is not None else {}
            for key, row in bucket.rows.items():
                add_to(rows.setdefault(key, {}), row)
            yield start, rows

    def _pack(self) -> None:
        for bucket in self._open:
            bucket.pack(self._keys)
            if bucket.frame is not None:
                self._keys = bucket.frame.keys
        self._open = []


_BATCH_VALUES = 1 << 19
"""Values added up per batch; bounds the temporary memory."""

_Numbers = NDArray[np.int64]
_Figures = NDArray[np.float64]


class _Section(NamedTuple):
    """The values of a section of columns, column by column.

    Attributes:
        columns: Columns that hold any value.
        counts: Number of values per column.
        places: Row number of each value.
        figures: The values.
    """

    columns: NDArray[np.uint16]
    counts: NDArray[np.uint16]
    places: NDArray[Any]
    figures: NDArray[Any]


class PackedRows:
    """Packed rows.

    Args:
        rows: The rows.
        known: Keys of another frame; the same object is shared if these rows have the same keys.
        sections: Number of sections taken, from the first on.

    Attributes:
        keys: The keys of the rows, in order.
    """

    __slots__ = ("_sections", "keys")

    def __init__(
        self, rows: Mapping[StatsKey, Row], known: Sequence[StatsKey] = (), sections: int = len(SECTIONS)
    ) -> None:
        keys = tuple(sorted(rows))
        self.keys: Sequence[StatsKey] = known if keys == known else keys
        ordered = [rows[key] for key in keys]
        columns = np.fromiter(chain.from_iterable(ordered), np.uint16)
        figures = np.fromiter(chain.from_iterable(row.values() for row in ordered), np.float64)
        places = np.repeat(np.arange(len(keys), dtype=_smallest(0, len(keys))), [len(row) for row in ordered])
        used = (figures != 0) & (columns < SECTIONS[sections - 1][1])
        columns, figures, places = columns[used], figures[used], places[used]
        order = np.argsort(columns, kind="stable")
        columns, figures, places = columns[order], figures[order], places[order]
        bounds = np.searchsorted(columns, [begin for begin, _ in SECTIONS] + [WIDTH])
        self._sections = [
            _section(columns[begin:end], places[begin:end], figures[begin:end]) for begin, end in pairwise(bounds)
        ]

    @property
    def nbytes(self) -> int:
        """Memory of the values."""
        return sum(part.nbytes for section in self._sections for part in section)

    def rows(self) -> dict[StatsKey, Row]:
        """The rows, unpacked."""
        rows: dict[StatsKey, Row] = {key: {} for key in self.keys}
        for section in self._sections:
            columns = np.repeat(section.columns, section.counts).tolist()
            for column, place, figure in zip(columns, section.places.tolist(), section.figures.tolist(), strict=True):
                rows[self.keys[place]][column] = figure
        return rows

    def codes(self, section: int, groups: _Numbers, width: int) -> tuple[_Numbers, _Figures]:
        """The values of a section, and for each its index in the sums: group number times ``width``, plus its column.

        Args:
            section: Number of the section.
            groups: Group number of each row; negative to leave a row out.
            width: Columns per group.
        """
        part = self._sections[section]
        of_figures = groups[part.places]
        codes = of_figures * width + np.repeat(part.columns, part.counts)
        if groups.size and groups.min() < 0:
            taken = of_figures >= 0
            return codes[taken], part.figures[taken]
        return codes, part.figures


class RowTable:
    """Sums of packed rows by group.

    Args:
        groups: Number of groups.
        sections: Number of sections, from the first on.
    """

    def __init__(self, groups: int, sections: int = len(SECTIONS)) -> None:
        self._groups = groups
        self._sections = sections
        self._width = SECTIONS[sections - 1][1]
        self._sums = np.zeros(groups * self._width)
        self._waiting: list[tuple[_Numbers, _Figures]] = []
        self._count = 0

    def add(self, frame: PackedRows, groups: _Numbers) -> None:
        """Add a frame; ``groups`` as in ``PackedRows.codes``."""
        for section in range(self._sections):
            codes, figures = frame.codes(section, groups, self._width)
            self._waiting.append((codes, figures))
            self._count += codes.size
        if self._count >= _BATCH_VALUES:
            self._add_up()

    def sums(self) -> _Figures:
        """The sums, of shape (groups, columns)."""
        self._add_up()
        return self._sums.reshape(self._groups, self._width)

    def _add_up(self) -> None:
        if not self._waiting:
            return
        codes = np.concatenate([codes for codes, _ in self._waiting])
        figures = np.concatenate([figures for _, figures in self._waiting], dtype=np.float64)
        self._sums += np.bincount(codes, figures, self._sums.size)
        self._waiting, self._count = [], 0


def _section(columns: NDArray[np.uint16], places: NDArray[Any], figures: _Figures) -> _Section:
    names, counts = np.unique(columns, return_counts=True)
    whole = figures.size and not (figures % 1).any()
    kind = _smallest(figures.min(), figures.max()) if whole else np.dtype(np.float64)
    return _Section(names, counts.astype(np.uint16), places.copy(), figures.astype(kind))


def _smallest(least: float, most: float) -> np.dtype[Any]:
    """The smallest integer type that holds a range."""
    return np.result_type(np.min_scalar_type(int(least)), np.min_scalar_type(int(most)))
