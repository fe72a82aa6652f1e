"""The result of a measurement: figures, comparisons, notes on what limits them, and sentences. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from gateway.evaluation.measurement import statistics
from gateway.evaluation.measurement.measure_plan import MeasuredVariant, Temperature
from gateway.evaluation.measurement.measure_run import MeasuredRequest, RunRecord
from gateway.evaluation.measurement.measured_figures import (
    Comparison,
    GroupFigures,
    QuantileDifference,
    compare,
    group_figures,
    prefill_seconds_per_token,
)
from gateway.evaluation.measurement.statistics import Estimate

_COLD_HITS = 0.05
_WARM_HITS = 0.5
_OTHER_LENGTH = 0.02
_LATE_SHARE, _LATE_SECONDS = 0.05, 0.002
"""The client's own delay that is mentioned: this share of the shortest TTFT, and no less than this."""

_Key = tuple[int, Temperature | None]


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """What a measurement found.

    Attributes:
        variants: What was compared.
        groups: Figures of each group.
        comparisons: Of groups: warm with cold, and each variant with the first one.
        seconds_per_token: Prefill seconds of a replica for each token, by variant; unknown where noise hides it.
        gpus: GPUs of a replica.
        client_late_seconds: p99 of how late the client's own timers were.
        seconds: Length of the run, without warm-up.
        notes: What limits the figures; a sentence each.
    """

    variants: Sequence[MeasuredVariant]
    groups: Sequence[GroupFigures]
    comparisons: Sequence[Comparison]
    seconds_per_token: Sequence[Estimate]
    gpus: float
    client_late_seconds: float
    seconds: float
    notes: Sequence[str]

    @property
    def failed(self) -> int:
        """Number of requests that failed."""
        return sum(round(group.error_rate.value * group.requests) for group in self.groups if group.requests)


def measure_result(
    variants: Sequence[MeasuredVariant],
    record: RunRecord,
    *,
    gpus: float = 1.0,
    prefill_rate: float | None = None,
    is_paired: bool,
) -> MeasureResult:
    """Make the figures of a run.

    Args:
        variants: What was compared.
        record: What the run brought.
        gpus: GPUs of a replica.
        prefill_rate: Tokens a second that a replica computes, if it is known; None takes it from the run.
        is_paired: Whether every warm request was the repetition of a cold one.
    """
    by_key: dict[_Key, list[MeasuredRequest]] = {}
    for each in sorted(record.requests, key=lambda each: each.planned.number):
        by_key.setdefault((each.planned.variant, each.planned.temperature), []).append(each)
    rates = _rates(variants, record.requests, prefill_rate)
    keys = [key for key in product(range(len(variants)), (Temperature.COLD, Temperature.WARM, None)) if key in by_key]
    groups = {key: group_figures(variants[key[0]], key[1], by_key[key], rates[key[0]].scaled(gpus)) for key in keys}
    late = statistics.quantile(record.loop_late_seconds, 0.99).value if record.loop_late_seconds else 0.0
    notes = [
        *_hit_notes(groups.values(), is_paired=is_paired),
        *_length_notes(groups),
        *_run_notes(record, groups.values(), late),
    ]
    comparisons = [compare(groups[one], groups[other], by_key[one], by_key[other]) for one, other in _compared(keys)]
    return MeasureResult(
        variants=variants,
        groups=list(groups.values()),
        comparisons=comparisons,
        seconds_per_token=rates,
        gpus=gpus,
        client_late_seconds=late,
        seconds=record.seconds,
        notes=[*notes, *_few_notes(comparisons)],
    )


def _rates(
    variants: Sequence[MeasuredVariant], requests: Sequence[MeasuredRequest], given: float | None
) -> list[Estimate]:
    if given is not None:
        return [Estimate(1 / given, 1 / given, 1 / given, 1)] * len(variants)
    places = [(variant.url, variant.model) for variant in variants]
    found = {
        place: prefill_seconds_per_token([each for each in requests if places[each.planned.variant] == place])
        for place in set(places)
    }
    return [found[place] for place in places]


def _compared(keys: Sequence[_Key]) -> Iterable[tuple[_Key, _Key]]:
    for variant, temperature in keys:
        if temperature is Temperature.COLD and (variant, Temperature.WARM) in keys:
            yield (variant, Temperature.COLD), (variant, Temperature.WARM)
    for variant, temperature in keys:
        if variant and (0, temperature) in keys:
            yield (0, temperature), (variant, temperature)


def difference_sentence(comparison: Comparison, what: str, found: QuantileDifference) -> str:
    """What a difference of latencies is worth, in words; empty if there are too few requests to know.

    Args:
        comparison: Of which groups.
        what: Name of the latency.
        found: The difference.
    """
    seconds = found.seconds
    if not seconds.known:
        return ""
    name = f"{what} p{found.quantile * 100:g}"
    reach = f"{in_time(seconds.low)} to {in_time(seconds.high)}"
    if seconds.is_noise:
        between = f"{comparison.first} and {comparison.second}"
        return f"{name}: the difference between {between} is noise ({reach}); {more_needed(found)}."
    direction = "sooner" if seconds.value < 0 else "later"
    part = "" if found.share is None else f", {found.share:+.0%}"
    by = f"{in_time(abs(seconds.value))} {direction} than {comparison.first} ({reach}{part})"
    return f"{name}: {comparison.second} is {by}."


def more_needed(found: QuantileDifference) -> str:
    """How many requests a difference that is noise would need."""
    if found.needed is None:
        return f"more than {statistics.MOST_NEEDED:,} requests of each would be needed to show one as small as this"
    more = found.needed - found.seconds.samples
    return f"about {more:,} more requests of each would show one as large as this"


def in_time(seconds: float) -> str:
    """Seconds for people: ``28.4 ms``, ``1.23 s``."""
    return f"{in_unit(seconds, seconds)} {time_unit(seconds)}"


def time_unit(seconds: float) -> str:
    """The unit in which a time is shown."""
    return "s" if abs(seconds) >= 1 else "ms"


def in_unit(seconds: float, as_for: float) -> str:
    """A time without its unit, in the unit and with the decimals of another time."""
    if abs(as_for) >= 1:
        return f"{seconds:.2f}"
    return f"{seconds * 1000:.0f}" if abs(as_for) >= 0.09995 else f"{seconds * 1000:.1f}"


def _hit_notes(groups: Iterable[GroupFigures], *, is_paired: bool) -> Iterable[str]:
    groups = list(groups)
    silent = sorted({group.variant for group in groups if group.hit_rate is None and group.error_rate.value < 1})
    if silent:
        where = f" of {', '.join(silent)}" if silent != [""] else ""
        yield (
            f"Hit rate, prefill tokens and GPU seconds{where} are not known: the engine reports no cached tokens"
            " (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)."
        )
    for group in groups:
        if group.hit_rate is None:
            continue
        hits = group.hit_rate.value
        if group.temperature is Temperature.COLD and hits > _COLD_HITS:
            yield (
                f"{group.name}: {hits:.0%} of the prompt tokens came from a cache although no other prompt begins"
                " alike: something stands in front of the mark, such as tools. Try --unique salt."
            )
        if is_paired and group.temperature is Temperature.WARM and hits < _WARM_HITS:
            yield (
                f"{group.name}: only {hits:.0%} of the prompt tokens of repeated prompts came from a cache: prefix"
                " caching is off, the cache is too small for what is between, or repetitions reach another replica."
            )


def _length_notes(groups: dict[_Key, GroupFigures]) -> Iterable[str]:
    outputs = [group.output_tokens for group in groups.values() if group.output_tokens]
    if outputs and max(outputs) > (1 + _OTHER_LENGTH) * min(outputs):
        yield (
            f"Answers are not equally long ({min(outputs):.1f} to {max(outputs):.1f} tokens on average): total"
            " latencies differ for that reason, too."
        )
    prompts = [group.prompt_tokens for group in groups.values() if group.prompt_tokens]
    if prompts and max(prompts) > (1 + _OTHER_LENGTH) * min(prompts):
        yield (
            f"Prompts have {min(prompts):,.0f} to {max(prompts):,.0f} tokens on average: tokenizers divide the same"
            " text differently."
        )


def _few_notes(comparisons: Sequence[Comparison]) -> Iterable[str]:
    """What could not be compared for want of requests."""
    few = {
        found.quantile: min(found.seconds.samples, statistics.least_samples(found.quantile))
        for comparison in comparisons
        for found in comparison.ttft
        if found.seconds.samples < statistics.least_samples(found.quantile)
    }
    if few:
        wanted = ", ".join(f"p{p * 100:g} needs {statistics.least_samples(p)}" for p in few)
        yield (
            f"Not every quantile has an interval: {wanted} requests in each group that succeed (--requests), and the"
            f" smallest has {min(few.values())}."
        )


def _run_notes(record: RunRecord, groups: Iterable[GroupFigures], late: float) -> Iterable[str]:
    groups = list(groups)
    if record.left_out:
        yield f"{record.left_out} warm requests were not sent, because the same prompt had failed before."
    if record.unsent:
        yield f"The time was over before {record.unsent} more requests could be sent."
    shortest = min((group.ttft_seconds[0.5].value for group in groups if group.ttft_seconds[0.5].samples), default=0.0)
    if late > max(_LATE_SECONDS, _LATE_SHARE * shortest):
        yield (
            f"The client itself was late by up to {in_time(late)} (p99), which is part of all latencies: its machine is"
            " busy."
        )
    behind = max((group.late_seconds for group in groups), default=0.0)
    if behind > max(_LATE_SECONDS, _LATE_SHARE * shortest):
        yield f"Requests were sent up to {in_time(behind)} (p99) after they were due, which is part of their latencies."
