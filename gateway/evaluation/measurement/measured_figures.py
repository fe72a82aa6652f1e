"""Figures of a measurement, and what the differences between its groups are worth. Pure.

A group is what was sent in one variant at one temperature. GPU seconds are the prompt tokens that a group computed
times the seconds that one of them takes. This is the slope of TTFT over computed tokens, taken from all requests to the
same URL and model, times the GPUs of a replica. At one request at a time that is what the replicas spent; with more,
TTFT includes waiting for other prompts, and the figure is an upper bound.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.evaluation.measurement import statistics
from gateway.evaluation.measurement.measure_plan import MeasuredVariant, Temperature
from gateway.evaluation.measurement.measure_run import MeasuredRequest
from gateway.evaluation.measurement.statistics import Estimate

QUANTILES = (0.5, 0.95, 0.99)
_SHOWN_ERRORS = 3
"""Different error messages of a group that are shown."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What one group showed.

    Attributes:
        variant: Name of its variant; empty if there is only one.
        temperature: None where that is what is compared.
        requests: Number of requests sent.
        error_rate: Share of them that failed.
        errors: The first different messages, each with its number of requests.
        ttft_seconds: By quantile, of the requests that did not fail.
        total_seconds: The same for the whole answer.
        prompt_tokens: Mean of a request; None if no server reported it.
        output_tokens: Mean of a request; None likewise.
        hit_rate: Cached prompt tokens over prompt tokens; None if the engine does not report them.
        prefill_tokens: Prompt tokens computed, over all requests; None likewise.
        gpu_seconds: For these; None if that or the prefill rate is not known.
        late_seconds: p99 of how late requests were sent; 0 in the closed loop.
    """

    variant: str
    temperature: Temperature | None
    requests: int
    error_rate: Estimate
    errors: Sequence[tuple[str, int]]
    ttft_seconds: dict[float, Estimate]
    total_seconds: dict[float, Estimate]
    prompt_tokens: float | None
    output_tokens: float | None
    hit_rate: Estimate | None
    prefill_tokens: int | None
    gpu_seconds: Estimate | None
    late_seconds: float

    @property
    def name(self) -> str:
        """As shown: the variant and the temperature, as far as there are several."""
        return " ".join(part for part in (self.variant, self.temperature or "") if part) or "all"


@dataclass(frozen=True, slots=True)
class QuantileDifference:
    """The difference of one quantile between two groups: the second minus the first.

    Attributes:
        quantile: Which one.
        seconds: The difference.
        share: Of the first group's quantile; None if that is not known.
        needed: Requests of each group with which it would be more than noise, if it is as large as it looks; the number
            measured if it is; None if that would be more than ``statistics.MOST_NEEDED``.
    """

    quantile: float
    seconds: Estimate
    share: float | None
    needed: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two groups of requests with the same prompts.

    Attributes:
        first: Name of the group that is the baseline.
        second: Name of the other one.
        ttft: Differences by quantile.
        total: The same for the whole answer.
        hit_rate: Difference; None if one is not known.
        error_rate: Difference.
    """

    first: str
    second: str
    ttft: Sequence[QuantileDifference]
    total: Sequence[QuantileDifference]
    hit_rate: Estimate | None
    error_rate: Estimate


def prefill_seconds_per_token(requests: Sequence[MeasuredRequest]) -> Estimate:
    """Seconds of TTFT for each computed prompt token. Unknown unless the interval is above 0.

    Args:
        requests: To one URL and model.
    """
    points = [
        (usage.prompt_tokens - usage.cached_tokens, ttft)
        for each in requests
        if (usage := each.timing.usage) and usage.cached_tokens is not None and (ttft := each.ttft_seconds) is not None
    ]
    found = statistics.slope([tokens for tokens, _ in points], [ttft for _, ttft in points])
    return found if found.low > 0 else Estimate.unknown(len(points))


def group_figures(
    variant: MeasuredVariant, temperature: Temperature | None, requests: Sequence[MeasuredRequest], per_token: Estimate
) -> GroupFigures:
    """The figures of one group.

    Args:
        variant: Its variant.
        temperature: Its temperature.
        requests: Its requests.
        per_token: GPU seconds for each computed prompt token.
    """
    errors = Counter(each.timing.error for each in requests if each.timing.error)
    good = [each for each in requests if not each.timing.error]
    usages = [each.timing.usage for each in good if each.timing.usage is not None]
    known = [(usage.cached_tokens, usage.prompt_tokens) for usage in usages if usage.cached_tokens is not None]
    hit_rate = prefill = gpu = None
    if known:
        cached, prompts = [cached for cached, _ in known], [prompt for _, prompt in known]
        hit_rate = statistics.ratio(cached, prompts)
        prefill = sum(prompts) - sum(cached)
        gpu = per_token.scaled(prefill) if per_token.known else None
    late = statistics.quantile([max(0.0, each.timing.sent_at - each.due_at) for each in requests], 0.99)
    return GroupFigures(
        variant=variant.name,
        temperature=temperature,
        requests=len(requests),
        error_rate=statistics.share(errors.total(), len(requests)),
        errors=list(errors.items())[:_SHOWN_ERRORS],
        ttft_seconds=_quantiles([each.ttft_seconds for each in good]),
        total_seconds=_quantiles([each.total_seconds for each in good]),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages) / len(usages) if usages else None,
        output_tokens=sum(usage.completion_tokens for usage in usages) / len(usages) if usages else None,
        hit_rate=hit_rate,
        prefill_tokens=prefill,
        gpu_seconds=gpu,
        late_seconds=late.value if requests else 0.0,
    )


def compare(
    first: GroupFigures,
    second: GroupFigures,
    first_requests: Sequence[MeasuredRequest],
    second_requests: Sequence[MeasuredRequest],
) -> Comparison:
    """The difference of two groups, from the prompts that succeeded in both.

    Args:
        first: The baseline.
        second: The other one.
        first_requests: The baseline's requests.
        second_requests: The other one's.
    """
    by_prompt = {each.planned.prompt: each for each in second_requests if not each.timing.error}
    both = [
        (each, by_prompt[each.planned.prompt])
        for each in first_requests
        if not each.timing.error and each.planned.prompt in by_prompt
    ]
    hits = None
    if first.hit_rate is not None and second.hit_rate is not None:
        hits = statistics.difference(second.hit_rate, first.hit_rate)
    return Comparison(
        first=first.name,
        second=second.name,
        ttft=[_difference([(a.ttft_seconds, b.ttft_seconds) for a, b in both], p) for p in QUANTILES],
        total=[_difference([(a.total_seconds, b.total_seconds) for a, b in both], p) for p in QUANTILES],
        hit_rate=hits,
        error_rate=statistics.difference(second.error_rate, first.error_rate),
    )


def _quantiles(values: Sequence[float | None]) -> dict[float, Estimate]:
    known = [value for value in values if value is not None]
    return {p: statistics.quantile(known, p) for p in QUANTILES}


def _difference(pairs: Sequence[tuple[float | None, float | None]], p: float) -> QuantileDifference:
    before = [a for a, b in pairs if a is not None and b is not None]
    after = [b for a, b in pairs if a is not None and b is not None]
    found = statistics.quantile_difference(after, before, p, paired=True)
    baseline = statistics.quantile(before, p).value
    share = found.value / baseline if before and baseline > 0 else None
    return QuantileDifference(p, found, share, statistics.samples_needed(found, p) if before else None)
