"""Packed rows: only non-zero columns, each number in the smallest type that holds it.

Rows are added up by array operations: one by one, the tens of thousands of rows of a window would take a second.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.stats.columns import SECTIONS, WIDTH, Row
from gateway.stats.label_limiter import StatsKey

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
            _section(columns[begin:end], places[begin:end], figures[begin:end], whole=number < len(SECTIONS) - 1)
            for number, (begin, end) in enumerate(pairwise(bounds))
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


def _section(columns: NDArray[np.uint16], places: NDArray[Any], figures: _Figures, *, whole: bool) -> _Section:
    names, counts = np.unique(columns, return_counts=True)
    kind = _smallest(figures.min(), figures.max()) if whole and figures.size else np.dtype(np.float64)
    return _Section(names, counts.astype(np.uint16), places.copy(), figures.astype(kind))


def _smallest(least: float, most: float) -> np.dtype[Any]:
    """The smallest integer type that holds a range."""
    return np.result_type(np.min_scalar_type(int(least)), np.min_scalar_type(int(most)))
