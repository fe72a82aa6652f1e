"""Parts of a report, which terminal, Markdown and HTML print each in their own form."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Figures:
    """A table.

    Attributes:
        heads: Heads of the columns.
        rows: Cells as text.
        texts: Number of leading columns that are text; the others are numbers, aligned at the right.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart of shares.

    Attributes:
        title: What is shown.
        bars: Label and share of each bar, 0 to 1.
    """

    title: str
    bars: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Listing:
    """Text that is shown as it is, such as YAML."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A section of a report."""

    title: str
    parts: Sequence[Paragraph | Figures | Bars | Listing]


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A report.

    Attributes:
        title: Its title.
        verdict: The sentence that comes first.
        sections: The sections.
    """

    title: str
    verdict: str
    sections: Sequence[ReportSection]
