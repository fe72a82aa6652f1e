"""Freed memory goes back to the system, also when later blocks are still in use."""

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


SMALL_BLOCKS = """
import resource
from pathlib import Path
from gateway import heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20

blocks = [b"x" * 20_000 for _ in range(3000)]
last = blocks[-1]
held = resident()
del blocks
kept = resident()
assert heap.return_free_memory()
print(held - kept, kept - resident())
"""


@pytest.mark.skipif(not heap.return_large_blocks(), reason="the C library has no such setting")
def test_freed_small_blocks_are_returned_when_asked():
    done = subprocess.run([sys.executable, "-c", SMALL_BLOCKS], capture_output=True, text=True, check=True)
    by_themselves, when_asked = map(int, done.stdout.split())
    assert by_themselves < 10
    assert when_asked > 40
