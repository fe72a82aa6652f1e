"""Programs that no Python package brings along, and that some tests need."""

import os
import shutil

import pytest

REQUIRE_ALL = "PREFIX_GATEWAY_REQUIRE_ALL"
"""Environment variable: where it is set, a missing program is a failure."""


def program(name: str) -> str:
    """The path of a program. The test that asks for one that is not installed is skipped, or fails."""
    found = shutil.which(name)
    if found is not None:
        return found
    missing = f"{name} is not installed (on Debian: apt-get install {_PACKAGES.get(name, name)})"
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(f"{missing}, and {REQUIRE_ALL} is set", pytrace=False)
    pytest.skip(missing)


_PACKAGES = {"promtool": "prometheus"}
