"""Which cases of a parametrized test ``make test`` runs."""

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest


def slow_except(cases: Iterable[Any], kept: Container[Any], key: Callable[[Any], Any] = lambda case: case) -> list[Any]:
    """The cases of a test, of which those that are not ``kept`` are marked ``slow``.

    Args:
        cases: Values, or the values of several parameters as tuples or ``pytest.param``.
        kept: The keys of the cases that represent their class in ``make test``.
        key: Gives the key of a case.
    """
    return [case if key(case) in kept else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
