"""Freed large blocks go back to the system, also when later ones are still in use."""

import subprocess
import sys

import pytest

from gateway import heap

SCRIPT = """
import resource, sys
from pathlib import Path
from gateway import heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20

if "threshold" in sys.argv:
    assert heap.return_large_blocks()
bytes(16 * 2**20)  # glibc's own threshold grows with the first large block that is freed
before = resident()
blocks = [b"x" * (16 * 2**20) for _ in range(20)]
last = blocks[-1]
del blocks
print(resident() - before)
"""


def kept_mib(*arguments: str) -> int:
    """MiB that a process keeps after it has freed 19 of 20 blocks of 16 MiB."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not heap.return_large_blocks(), reason="the C library has no such setting")
def test_freed_large_blocks_are_returned():
    assert kept_mib("threshold") < 40
    assert kept_mib() > 100  # what the setting is for
