"""Benchmarks that call parts of the gateway directly run, here at their smallest size, and print their figures."""

import subprocess
import sys

import pytest

# The last column: text that stands in front of a figure.
BENCHMARKS = [
    ("analyze --mib 1", "MiB"),
    pytest.param("canon --rounds 1 --only rules", "parsing", marks=pytest.mark.long),
    pytest.param("explain --only handing,working --requests 100", "new prompt", marks=pytest.mark.long),
    pytest.param("explain_totals --requests 60", "first_seen", marks=pytest.mark.long),
    ("index --blocks 2000", "blocks"),
    ("request_path --requests 5", "files"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), BENCHMARKS)
def test_a_benchmark_runs(command: str, shown: str) -> None:
    arguments = [sys.executable, "-m", *f"benchmarks.{command}".split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
