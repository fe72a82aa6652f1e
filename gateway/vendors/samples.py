"""Read a few samples out of an engine's Prometheus text.

An engine's page holds thousands of histogram lines and is read every few seconds per replica, so only the lines asked
for are looked at. Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line of the page; its value is finite."""

    labels: dict[str, str]
    value: float


Samples = Mapping[str, list[Sample]]


def read_samples(text: str, names: Collection[str]) -> Samples:
    """Samples of the metrics in ``names``, by name. Lines that cannot be read are left out."""
    wanted, prefixes = frozenset(names), tuple(names)
    found: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        # The cheapest test first: nearly every line fails it.
        if not line.startswith(prefixes) or (match := _SAMPLE.match(line)) is None or match[1] not in wanted:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            found.setdefault(match[1], []).append(Sample(dict(_LABEL.findall(match[2] or "")), value))
    return found


def by_rank(samples: Iterable[Sample] | None, label: str) -> dict[int, float]:
    """The value of each rank, named by a label (rank 0 without it).

    The greatest one where a rank has several: they are the same thing seen by several processes, or a sum beside its
    parts.
    """
    values: dict[int, float] = {}
    for sample in samples or ():
        rank = rank_of(sample, label)
        values[rank] = max(sample.value, values.get(rank, sample.value))
    return values


def rank_of(sample: Sample, label: str) -> int:
    """The rank that a label names; 0 if it names none."""
    text = sample.labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def whole(value: float | None) -> int | None:
    """A count, which the page writes as ``3.0``."""
    return None if value is None else int(value)
