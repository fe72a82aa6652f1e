"""What the rule keeps in memory of the texts it has searched."""

import gc
import re
import tracemalloc
import weakref

import pytest

from gateway.canon.rules.dynamic.search import Search
from gateway.config.canon_settings import DynamicSuffixSettings

NOW = 1_772_800_000.0


def search():
    return Search(DynamicSuffixSettings(), re.compile(r"\[context \d+\]"))


def look(used, text):
    return used.pieces(text, NOW, "m", "[context {}]".format, tenant="t")


@pytest.mark.slow
def test_lines_as_long_as_a_request_are_not_remembered():
    used = search()
    look(used, "Current time: 2026-03-06 12:26.\nfirst")
    tracemalloc.start()
    try:
        for number in range(20):
            assert look(used, f"Current time: 2026-03-06 12:26.\n{'alpha beta ' * 10_000}{number}")
        assert tracemalloc.get_traced_memory()[0] < 300_000
    finally:
        tracemalloc.stop()


def test_what_was_remembered_goes_with_the_settings_it_was_found_by():
    gc.collect()
    gc.disable()
    try:
        used = search()
        look(used, "Current time: 2026-03-06 12:26.\nfirst")
        left = weakref.ref(used)
        del used
        assert left() is None
    finally:
        gc.enable()
