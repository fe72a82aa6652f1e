"""What a fuzzer is made of."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


@dataclass(frozen=True)
class Target:
    """One component.

    Attributes:
        name: Its name on the command line.
        examples: Generates input.
        check: Runs the component on one input; raises AssertionError if a property does not hold.
    """

    name: str
    examples: st.SearchStrategy[Any]
    check: Callable[[Any], None]

    def run(self, examples: int, number: int | None = None) -> None:
        """Check so many inputs; a failing one is made as small as possible and shown.

        Args:
            examples: How many.
            number: Seed; None generates the same inputs every time.
        """
        test = given(self.examples)(self.check)
        test = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=number is None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )(test)
        if number is not None:
            test = seed(number)(test)
        test()


@st.composite
def pieces(draw: st.DrawFn, text: bytes, most: int = 12) -> Sequence[bytes]:
    """The text, cut at any bytes; also in front of the first byte and behind the last one."""
    return cut(text, draw(st.lists(st.integers(0, len(text)), max_size=most)))


def cut(text: bytes, places: Sequence[int]) -> list[bytes]:
    """The parts of a text between these places; none of them is empty."""
    edges = [0, *sorted(set(places) - {0, len(text)}), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges) if end > start]
