"""Prints a report to a terminal, and as Markdown."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.evaluation.analysis.report_parts import Bars, Figures, Listing, Paragraph, ReportDocument

_BAR_CHARS = 30
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_report(document: ReportDocument, console: Console) -> None:
    """Print a report with rich; plain text where the output is no terminal."""
    console.print(Text(document.verdict, "bold"))
    for section in document.sections:
        console.print()
        console.print(Text(section.title, "bold cyan"))
        for part in section.parts:
            console.print(Padding(_shown(part), (0, 0, 0, 2)))


def _shown(part: Paragraph | Figures | Bars | Listing) -> RenderableType:
    match part:
        case Paragraph():
            return Text(part.text)
        case Listing():
            return Text(part.text.rstrip("\n"))
        case Figures():
            return _table(part)
        case Bars():
            return Group(Text(part.title), _bars(part))


def _table(figures: Figures) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, header_style="dim")
    for number, head in enumerate(figures.heads):
        is_text = number < figures.texts
        table.add_column(head, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in figures.rows:
        table.add_row(*map(Text, row))
    return table


def _bars(bars: Bars) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for label, share in bars.bars:
        eighths = round(min(max(share, 0.0), 1.0) * _BAR_CHARS * 8)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        table.add_row(Text(label), Text(bar, "cyan"), f"{100 * share:.1f} %")
    return table


def as_markdown(document: ReportDocument) -> str:
    """The report as Markdown."""
    return "\n".join(_markdown(document))


def _markdown(document: ReportDocument) -> Iterator[str]:
    yield f"# {document.title}\n"
    yield f"**{_escaped(document.verdict)}**\n"
    for section in document.sections:
        yield f"## {section.title}\n"
        for part in section.parts:
            match part:
                case Paragraph():
                    yield _escaped(part.text) + "\n"
                case Listing():
                    yield f"```yaml\n{part.text.rstrip()}\n```\n"
                case Figures():
                    yield from _markdown_table(part)
                case Bars():
                    rows = [(label, f"{100 * share:.1f} %") for label, share in part.bars]
                    yield from _markdown_table(Figures((part.title, "share"), rows))


def _markdown_table(figures: Figures) -> Iterator[str]:
    yield "| " + " | ".join(map(_escaped, figures.heads)) + " |"
    marks = ["---" if number < figures.texts else "---:" for number in range(len(figures.heads))]
    yield "| " + " | ".join(marks) + " |"
    for row in figures.rows:
        yield "| " + " | ".join(map(_escaped, row)) + " |"
    yield ""


_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|#"} | {"\n": " "})


def _escaped(text: str) -> str:
    return text.translate(_MARKS)
