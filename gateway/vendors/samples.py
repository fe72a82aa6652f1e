"""Read a few samples out of an engine's Prometheus text.

An engine's page holds thousands of histogram lines and is read every few seconds per replica, so only the lines asked
for are looked at. Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

import re
from collections.abc import Collection

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = dict[str, list[tuple[dict[str, str], float]]]


def read_samples(text: str, names: Collection[str]) -> Samples:
    """Samples of the metrics in ``names``: labels and value of each. Lines that cannot be read are left out."""
    found: Samples = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None or match[1] not in names:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    return found


def process_started_at(text: str) -> float | None:
    """Start time of the process that serves the page, as every Prometheus client library exports it."""
    samples = read_samples(text, {"process_start_time_seconds"}).get("process_start_time_seconds")
    return samples[0][1] if samples else None
