"""Results as lines on the terminal and as a Markdown table."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.hostile.attacks import CATALOG
from benchmarks.hostile.measure import NOTHING, Result

COLUMNS = (
    *("attack", "freeze ms", "CPU", "public", "admin", "control", "p50 ms", "p99 ms", "40 KB ms", "errors"),
    *("MiB before", "peak", "after", "calls", "other", "rest s", "attackers got", "logged"),
)
_WIDTHS = (24, 9, 6, 7, 7, 7, 7, 7, 8, 6, 10, 6, 6, 6, 6, 6, 0, 0)


def cells(result: Result) -> list[str]:
    """A result as text, by column."""
    times = (
        result.freeze,
        result.cpu,
        result.public,
        result.admin,
        result.control,
        result.median,
        result.p99,
        result.large,
    )
    numbers = [f"{milliseconds:.0f}" for milliseconds in times[:5]] + [
        f"{milliseconds:.1f}" for milliseconds in times[5:]
    ]
    memory = [f"{mib:.0f}" for mib in result.memory]
    state = "gateway died; " if result.died else "still busy; " if result.stuck else ""
    errors = f"{result.errors.total()}" + (f" ({_listed(result.errors)})" if result.errors else "")
    calls = [str(many) for many in result.calls]
    return [
        *(result.name, *numbers, errors, *memory, *calls, f"{result.rest:.1f}"),
        *(state + _listed(result.ends), _listed(result.problems)),
    ]


def line(row: Iterable[str]) -> str:
    """A row for the terminal."""
    first, *rest = zip(row, _WIDTHS, strict=True)
    return " ".join((f"{first[0]:{first[1]}}", *(f"{cell:>{width}}" for cell, width in rest)))


def conclusion(floor: Sequence[Result], results: Sequence[Result]) -> str:
    """The noise floor, and the worst of all attacks."""
    noise = max((result.freeze for result in floor), default=float("nan"))
    control = max((result.control for result in floor), default=float("nan"))
    said = (
        f"without an attack: longest /healthz {noise:.0f} ms beyond the control's, whose longest was {control:.0f} ms\n"
    )
    if not results:
        return said
    worst = max(results, key=lambda result: (result.died, result.freeze))
    failed = sum(result.errors.total() for result in results)
    return (
        f"{said}worst of all: {worst.name}, {worst.freeze:.0f} ms{' (the gateway died)' if worst.died else ''};"
        f" errors of the normal client in all attacks: {failed}"
    )


def write_markdown(file: Path, rows: Sequence[Sequence[str]], last: str) -> None:
    """All rows, with what each attack is."""
    header = [COLUMNS[0], "what", *COLUMNS[1:]]
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join(['---', '---', *['---:'] * 15, '---', '---'])} |"]
    for name, *rest in rows:
        what = "the noise floor" if name == NOTHING else CATALOG[name].what
        lines.append(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in (name, what, *rest))} |")
    file.write_text("\n".join((*lines, "", last.replace("\n", "\n\n"), "")))


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())
