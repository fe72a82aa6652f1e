"""What the checks found: the rows of the table."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One row.

    Attributes:
        check: What was looked at.
        measured: What came out.
        limit: What it has to be.
        met: Whether it is.
        exceptions: The single cases behind a number that is not perfect.
        section: Name of the part of the report it belongs to; empty for its main table.
    """

    check: str
    measured: str
    limit: str
    met: bool
    exceptions: list[str] = field(default_factory=list)
    section: str = ""
