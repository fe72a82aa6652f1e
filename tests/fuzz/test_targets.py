"""Every fuzzer with a few examples; ``FUZZ_EXAMPLES=N`` sets how many, ``python -m benchmarks.fuzz`` runs for long."""

import os

import pytest

from benchmarks.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_properties_hold_for_any_input(name):
    TARGETS[name].run(int(os.environ.get("FUZZ_EXAMPLES", "100")))
