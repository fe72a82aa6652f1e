"""Rows of figures, packed: only what is not zero, each number in as few bytes as it needs.

They are added up by array operations: one by one, the tens of thousands of rows of a window would take a second.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.stats.columns import SECTIONS, WIDTH, Row
from gateway.stats.label_limiter import StatsKey

_AT_ONCE = 1 << 19
"""Figures that are added up in one go: more would take much memory for a moment."""

_Numbers = NDArray[np.int64]
_Figures = NDArray[np.float64]


class _Section(NamedTuple):
    """The figures of some columns, one column after the other.

    Attributes:
        columns: Those that hold any.
        counts: How many figures each holds.
        places: Of each figure, the number of its row.
        figures: They.
    """

    columns: NDArray[np.uint16]
    counts: NDArray[np.uint16]
    places: NDArray[Any]
    figures: NDArray[Any]


class PackedRows:
    """Packed rows.

    Args:
        rows: The rows.
        known: If these are the rows' keys, they are not kept a second time.
        sections: How many sections are taken, from the first on.

    Attributes:
        keys: Whose rows they are, in their order.
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
        """Memory of the figures."""
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
        """The figures of a section and where each belongs: the number of its group times ``width``, plus its column.

        Args:
            section: Number of the section.
            groups: Of each row, the number of its group; negative for a row that is left out.
            width: Columns of a group.
        """
        part = self._sections[section]
        of_figures = groups[part.places]
        codes = of_figures * width + np.repeat(part.columns, part.counts)
        if groups.size and groups.min() < 0:
            taken = of_figures >= 0
            return codes[taken], part.figures[taken]
        return codes, part.figures


class RowTable:
    """Figures of frames, added up by group.

    Args:
        groups: How many groups.
        sections: How many sections, from the first on.
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
        if self._count >= _AT_ONCE:
            self._add_up()

    def sums(self) -> _Figures:
        """The sums: a row for each group, a figure for each column of the sections."""
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
    """The smallest type that holds whole numbers of a range."""
    return np.result_type(np.min_scalar_type(int(least)), np.min_scalar_type(int(most)))
