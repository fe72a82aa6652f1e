"""What a part of the benchmark returns: a table, and the plot drawn from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, log10

from benchmarks.growth.plot import Plot


@dataclass(frozen=True)
class Result:
    """The figures of one part.

    Attributes:
        columns: Titles of the table; the first one is that of the quantity that grows.
        rows: A value for each column.
        plot: The plot.
        notes: What a reader needs to judge the figures, such as a limit of this machine.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[float]]
    plot: Plot
    notes: Sequence[str] = field(default=())

    def markdown(self) -> str:
        """The table and the notes."""
        lines = [f"| {' | '.join(self.columns)} |", "| " + " | ".join("---:" for _ in self.columns) + " |"]
        lines += [f"| {' | '.join(map(rounded, row))} |" for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])


def rounded(value: float) -> str:
    """A number with three significant digits, and all of its digits before the point."""
    if value == 0 or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.{max(2 - floor(log10(abs(value))), 0)}f}"
