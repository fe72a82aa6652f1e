"""What a measurement sends, in which order, and when. Pure: the same seed gives the same plan.

A *variant* is what is compared: a URL, a model, a header. Requests of a variant are *cold* (nothing of their prompt is
in any cache) or *warm*. There are two ways to get both:

- pairs: every prompt is sent cold, and then again as it is, which is warm;
- passes: the prompts of a trace are sent in their order twice, once with a beginning of its own for every request
  (cold), and once with the same beginning for all (warm as far as the trace repeats itself).

Where a rule is compared with its absence, there is one pass for each of the two, warm as far as prompts repeat.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

WINDOW = 4
"""Prompts whose requests are shuffled among each other: enough that no group is always first, and few enough that a
prompt is sent again while it is in the cache."""


class Temperature(StrEnum):
    """What a request is to find in the cache."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class MeasuredVariant:
    """One of the things compared.

    Attributes:
        name: As shown; empty if there is only one.
        url: Base URL, without ``/v1``.
        model: Id of the model.
        headers: Sent with each request.
    """

    name: str
    url: str
    model: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request to send.

    Attributes:
        number: Position in the plan's list.
        variant: Index of its variant.
        temperature: What it is to find; None where that is what is compared.
        prompt: Number of its prompt.
        mark: Seed of its mark.
        after: ``number`` of the request that has to be answered before; None for none.
    """

    number: int
    variant: int
    temperature: Temperature | None
    prompt: int
    mark: str
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """Requests that are sent one behind the other, without any other pass beside them.

    Attributes:
        requests: In their order.
        times: Seconds from the beginning of the pass at which each is due; None where the load decides.
    """

    requests: Sequence[PlannedRequest]
    times: Sequence[float] | None = None


def pairs(prompts: int, variants: int, seed: int, nonce: str) -> list[Pass]:
    """Each prompt cold and warm in every variant, in one pass, in an order that the seed decides.

    Args:
        prompts: Number of prompts.
        variants: Number of variants.
        seed: Of the order.
        nonce: Makes the marks those of this run alone.
    """
    random = Random(seed)  # noqa: S311 - has to be reproducible
    found: list[PlannedRequest] = []
    for start in range(0, prompts, WINDOW):
        window = [
            (variant, prompt) for prompt in range(start, min(start + WINDOW, prompts)) for variant in range(variants)
        ]
        slots = window * 2
        random.shuffle(slots)
        first: dict[tuple[int, int], int] = {}
        for variant, prompt in slots:
            before = first.setdefault((variant, prompt), len(found))
            is_first = before == len(found)
            found.append(
                PlannedRequest(
                    len(found),
                    variant,
                    Temperature.COLD if is_first else Temperature.WARM,
                    prompt,
                    f"{nonce} {variant} {prompt}",
                    None if is_first else before,
                )
            )
    return [Pass(found)]


def trace_passes(
    prompts: int, variants: int, seed: int, nonce: str, times: Sequence[float] | None = None
) -> list[Pass]:
    """All prompts in their order, cold and warm in every variant, a pass each; the seed decides the order of passes.

    Args:
        prompts: Number of prompts.
        variants: Number of variants.
        seed: Of the order.
        nonce: Makes the marks those of this run alone.
        times: When each prompt is due, from the beginning of a pass; None where the load decides.
    """
    kinds = [(variant, temperature) for variant in range(variants) for temperature in Temperature]
    random = Random(seed)  # noqa: S311 - has to be reproducible
    found, number = [], 0
    for variant, temperature in random.sample(kinds, len(kinds)):
        requests = []
        for prompt in range(prompts):
            own = f" {prompt}" if temperature is Temperature.COLD else ""
            mark = f"{nonce} {variant} {temperature}{own}"
            requests.append(PlannedRequest(number, variant, temperature, prompt, mark))
            number += 1
        found.append(Pass(requests, times))
    return found


def rule_pass(prompts: int, variants: int, seed: int, nonce: str) -> list[Pass]:
    """All prompts in their order, once in every variant, in one pass; the seed decides which variant comes first.

    Arguments as for ``pairs``.
    """
    random = Random(seed)  # noqa: S311 - has to be reproducible
    found: list[PlannedRequest] = []
    for prompt in range(prompts):
        for variant in random.sample(range(variants), variants):
            found.append(PlannedRequest(len(found), variant, None, prompt, f"{nonce} {variant}"))
    return [Pass(found)]


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Arrival times in seconds, without end: independent of each other, ``rate`` a second on average."""
    random = Random(f"arrivals {seed}")  # noqa: S311 - has to be reproducible
    at = 0.0
    while True:
        at += random.expovariate(rate)
        yield at


class ReadyRequests:
    """Hands out the requests of a pass in their order, except that one that waits for an answer is overtaken.

    Args:
        requests: In their order; each comes behind the one that it waits for.

    Attributes:
        left_out: Number of requests not handed out because the one before them failed.
    """

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self._left = deque(requests)
        self._answered: dict[int, bool] = {}
        self.left_out = 0

    def __len__(self) -> int:
        """Number of requests that are not handed out yet."""
        return len(self._left)

    def take(self) -> PlannedRequest | None:
        """The next request that can be sent, which is then handed out; None if there is none now.

        The requests that are overtaken wait for one that is under way: their number is bounded by these.
        """
        at = 0
        while at < len(self._left):
            request = self._left[at]
            succeeded = True if request.after is None else self._answered.get(request.after)
            if succeeded is None:
                at += 1
                continue
            del self._left[at]
            if succeeded:
                return request
            self.left_out += 1
        return None

    def answered(self, request: PlannedRequest, *, succeeded: bool) -> None:
        """A request is over."""
        self._answered[request.number] = succeeded
