"""Reads a few samples out of an engine's Prometheus text; limits of the numbers and documents that engines report.

An engine's page holds thousands of histogram lines and is read every few seconds per replica, so only the lines asked
for are looked at, and only so many of them. Numbers that cannot be right are left out.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

MAX_RANKS = 512
"""Data-parallel ranks of one replica. The largest deployments have about 320. Each is considered for every request."""

MAX_BLOCK_SIZE = 2**16
"""Tokens. Hybrid models have blocks of some thousand."""

MAX_DOCUMENT_BYTES = 2 * 2**20
"""Limit of ``/server_info`` and ``/kv_event_sources``. SGLang's has about 20 KiB for each data-parallel rank."""

_MAX_COUNT = 2**31
_MAX_DIGITS = 10


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a plausible number of tokens, blocks or requests."""
    return type(value) is int and 0 <= value <= _MAX_COUNT


def count_in(text: str) -> int | None:
    """Parse a positive count; None if it is malformed or too large."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        return None
    value = int(text)
    return value if value and is_count(value) else None


def rank_number(text: str) -> int | None:
    """Parse a rank from ASCII digits; None if it is too large."""
    if len(text) > _MAX_DIGITS:
        return None
    rank = int(text)
    return rank if rank < MAX_RANKS else None


_SAMPLE = re.compile(r"(?:\{(.*)\})?[ \t]++(\S+)")
_LABEL = re.compile(r'[ \t]*+(\w++)="((?:[^"\\]++|\\.)*+)"[ \t]*+,?')
_MAX_LABELS = 64
"""Labels of a sample; vLLM's ``cache_config_info`` has about 30."""

_BEHIND_NAME = ("{", " ", "\t")
_MAX_LINE = 16 * 1024
"""Characters of a line. vLLM's longest, ``cache_config_info``, has about 1,500."""

_MAX_SAMPLES = 4 * MAX_RANKS
_MAX_LINES = 2 * _MAX_SAMPLES
"""Samples of one metric, and lines that begin with its name. An engine has one for each data-parallel and
tensor-parallel rank."""

_MAX_CHARACTERS = 2 * 2**20
"""Characters of all the lines together. 512 ranks have 0.8 million."""


class Sample(NamedTuple):
    """One line of the page; its value is finite."""

    labels: dict[str, str]
    value: float


Samples = Mapping[str, list[Sample]]


def read_samples(text: str, names: Collection[str]) -> Samples:
    """Samples of the metrics in ``names``, by name. Lines that cannot be read are left out."""
    found: dict[str, list[Sample]] = {}
    left = _MAX_CHARACTERS
    for name in names:
        samples: list[Sample] = []
        for line in _lines(text, name):
            left -= len(line)
            if left < 0:
                break
            if (sample := _sample(line)) is not None:
                samples.append(sample)
                if len(samples) == _MAX_SAMPLES:
                    break
        if samples:
            found[name] = samples
    return found


def _lines(text: str, name: str) -> Iterator[str]:
    """The lines of a metric, from behind its name on."""
    start = 0 if text.startswith(name) else text.find("\n" + name) + 1
    for _ in range(_MAX_LINES):
        if not start and not text.startswith(name):
            return
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        behind = start + len(name)
        if end - start <= _MAX_LINE and text.startswith(_BEHIND_NAME, behind, end):
            yield text[behind:end]
        # The line feed at the end of this line may be the one in front of the next.
        start = text.find("\n" + name, end) + 1
        if not start:
            return


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.match(line)
    if match is None:
        return None
    try:
        value = float(match[2])
    except ValueError:
        return None
    return Sample(_labels(match[1] or ""), value) if math.isfinite(value) else None


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    end = 0
    for _ in range(_MAX_LABELS):
        if (label := _LABEL.match(text, end)) is None:
            break
        labels[label[1]] = label[2]
        end = label.end()
    return labels


def by_rank(samples: Iterable[Sample] | None, label: str) -> dict[int, float]:
    """The value of each rank, named by a label (rank 0 without it).

    The greatest one where a rank has several: several processes report the same value, or a sum besides its
    parts.
    """
    values: dict[int, float] = {}
    for sample in samples or ():
        if (rank := rank_of(sample, label)) is not None:
            values[rank] = max(sample.value, values.get(rank, sample.value))
    return values


def rank_of(sample: Sample, label: str) -> int | None:
    """The rank that a label names; 0 if it names none, None if there cannot be such a rank."""
    text = sample.labels.get(label, "")
    return rank_number(text) if text.isascii() and text.isdigit() else 0


def whole(value: float | None) -> int | None:
    """A count, which the page writes as ``3.0``; None if it cannot be right."""
    return int(value) if value is not None and value >= 0 and is_count(int(value)) else None


def share(value: float | None) -> float | None:
    """A share of something; None if it is not between 0 and 1."""
    return value if value is not None and 0 <= value <= 1 else None
