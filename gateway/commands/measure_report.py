"""The report of ``prefix-gateway measure``: as tables for the terminal, as Markdown, as JSON."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.evaluation.measurement import statistics
from gateway.evaluation.measurement.measure_result import MeasureResult, difference_sentence, in_unit, time_unit
from gateway.evaluation.measurement.measured_figures import QUANTILES, Comparison, GroupFigures, QuantileDifference
from gateway.evaluation.measurement.statistics import Estimate

_UNKNOWN = "?"
_FILE_WIDTH = 240
"""Columns of a table that is not written to a terminal."""

Row = Sequence[str]


def as_text(result: MeasureResult, settings: Mapping[str, Any]) -> str:
    """The report for a terminal, coloured if standard output is one."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    with console.capture() as report:
        for part in _parts(result, settings):
            console.print(part, soft_wrap=isinstance(part, Text))
    return report.get()


def as_markdown(result: MeasureResult, settings: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = [_head(result, settings), ""]
    for rows in (_group_rows(result), _difference_rows(result)):
        if len(rows) > 1:
            lines += [_markdown_row(rows[0]), _markdown_row(["---"] * len(rows[0]))]
            lines += [*map(_markdown_row, rows[1:]), ""]
    lines += [f"- {sentence}" for sentence in [*sentences(result), *_errors(result), *result.notes]]
    return "\n".join(lines) + "\n"


def as_json(result: MeasureResult, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The report as one JSON object; what is not known is null."""
    return {
        "settings": dict(settings),
        "seconds": round(result.seconds, 3),
        "failed": result.failed,
        "variants": [
            {
                "name": variant.name,
                "url": variant.url,
                "model": variant.model,
                "prefill_tokens_per_second": _inverse(per_token),
            }
            for variant, per_token in zip(result.variants, result.seconds_per_token, strict=True)
        ],
        "groups": list(map(_group_json, result.groups)),
        "comparisons": list(map(_comparison_json, result.comparisons)),
        "client": {"late_seconds_p99": round(result.client_late_seconds, 6)},
        "sentences": sentences(result),
        "notes": list(result.notes),
    }


def sentences(result: MeasureResult) -> list[str]:
    """What the measurement says: a sentence for each comparison and quantile of TTFT, and the median of the total."""
    said = []
    for comparison in result.comparisons:
        said += [difference_sentence(comparison, "TTFT", found) for found in comparison.ttft]
        said.append(difference_sentence(comparison, "Total latency", comparison.total[0]))
    return [sentence for sentence in said if sentence]


def _parts(result: MeasureResult, settings: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield Text(_head(result, settings))
    for rows in (_group_rows(result), _difference_rows(result)):
        if len(rows) > 1:
            table = Table(*rows[0][:1], box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for name in rows[0][1:]:
                table.add_column(name, justify="right", overflow="fold")
            for row in rows[1:]:
                table.add_row(*row)
            yield Text()
            yield table
    yield Text()
    for sentence in sentences(result):
        yield Text(sentence)
    for line in [*_errors(result), *result.notes]:
        yield Text(line, "yellow")


def _head(result: MeasureResult, settings: Mapping[str, Any]) -> str:
    sent = sum(group.requests for group in result.groups)
    return (
        f"{sent:,} requests in {result.seconds:.1f} s, {settings['load']}, prompts {settings['prompts']};"
        f" {statistics.CONFIDENCE:.0%} intervals in parentheses."
    )


def _group_rows(result: MeasureResult) -> list[Row]:
    groups = result.groups
    rows: list[Row] = [["", *(group.name for group in groups)]]
    rows.append(["requests (failed)", *map(_requests, groups)])
    if result.failed:
        rows.append(["error rate", *(_percent(group.error_rate) for group in groups)])
    rows.append(["hit rate", *(_percent(group.hit_rate) for group in groups)])
    rows += [[f"TTFT {_name(p)}", *(_time(group.ttft_seconds[p]) for group in groups)] for p in QUANTILES]
    rows += [[f"total {_name(p)}", *(_time(group.total_seconds[p]) for group in groups)] for p in QUANTILES]
    rows.append(["prompt tokens, mean", *(_count(group.prompt_tokens) for group in groups)])
    rows.append(["output tokens, mean", *(_count(group.output_tokens) for group in groups)])
    rows.append(["prefill tokens", *(_count(group.prefill_tokens) for group in groups)])
    rows.append(["GPU seconds of prefill", *(_gpu_seconds(group.gpu_seconds) for group in groups)])
    return rows


def _difference_rows(result: MeasureResult) -> list[Row]:
    """The table of differences; without the quantiles of which nothing is known anywhere."""
    several = result.comparisons
    rows: list[Row] = [["difference", *(f"{each.second} − {each.first}" for each in several)]]
    by_name = {"TTFT": [each.ttft for each in several], "total": [each.total for each in several]}
    for name, differences in by_name.items():
        rows += [
            [f"{name} {_name(found[0].quantile)}", *map(_difference, found)] for found in zip(*differences, strict=True)
        ]
    rows.append(["hit rate", *(_points(each.hit_rate) for each in several)])
    return [row for row in rows if set(row[1:]) - {_UNKNOWN}]


def _errors(result: MeasureResult) -> Iterable[str]:
    for group in result.groups:
        for message, count in group.errors:
            yield f"{group.name}: {count} failed: {message}"


def _requests(group: GroupFigures) -> str:
    failed = round(group.error_rate.value * group.requests) if group.requests else 0
    return f"{group.requests:,} ({failed:,})"


def _interval(estimate: Estimate, shown: Callable[[float], str], unit: str = "") -> str:
    low = shown(estimate.low) if math.isfinite(estimate.low) else _UNKNOWN
    high = shown(estimate.high) if math.isfinite(estimate.high) else _UNKNOWN
    return f"{shown(estimate.value)}{unit} ({low} to {high})"


def _time(estimate: Estimate) -> str:
    if not estimate.samples:
        return _UNKNOWN
    value = estimate.value
    return _interval(estimate, lambda seconds: in_unit(seconds, value), f" {time_unit(value)}")


def _percent(estimate: Estimate | None) -> str:
    if estimate is None or not estimate.samples:
        return _UNKNOWN
    return _interval(estimate, lambda share: f"{share * 100:.1f}", " %")


def _points(estimate: Estimate | None) -> str:
    if estimate is None or not estimate.known:
        return _UNKNOWN
    return f"{estimate.value * 100:+.1f} points" + (" (noise)" if estimate.is_noise else "")


def _gpu_seconds(estimate: Estimate | None) -> str:
    if estimate is None:
        return _UNKNOWN
    return _interval(estimate, lambda seconds: f"{seconds:.3g}")


def _count(number: float | None) -> str:
    if number is None:
        return _UNKNOWN
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def _difference(found: QuantileDifference) -> str:
    if not found.seconds.known:
        return _UNKNOWN
    if found.seconds.is_noise:
        return "noise"
    value = found.seconds.value
    part = "" if found.share is None else f", {found.share:+.0%}"
    return _interval(found.seconds, lambda seconds: in_unit(seconds, value), f" {time_unit(value)}") + part


def _markdown_row(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _estimate_json(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None or not estimate.samples or math.isnan(estimate.value):
        return None
    return {
        "value": estimate.value,
        "low": estimate.low if math.isfinite(estimate.low) else None,
        "high": estimate.high if math.isfinite(estimate.high) else None,
    }


def _inverse(per_token: Estimate) -> float | None:
    return 1 / per_token.value if per_token.known else None


def _name(quantile: float) -> str:
    return f"p{quantile * 100:g}"


def _group_json(group: GroupFigures) -> dict[str, Any]:
    return {
        "name": group.name,
        "variant": group.variant,
        "temperature": group.temperature,
        "requests": group.requests,
        "error_rate": _estimate_json(group.error_rate),
        "errors": [{"message": message, "requests": count} for message, count in group.errors],
        "ttft_seconds": {_name(p): _estimate_json(found) for p, found in group.ttft_seconds.items()},
        "total_seconds": {_name(p): _estimate_json(found) for p, found in group.total_seconds.items()},
        "prompt_tokens": group.prompt_tokens,
        "output_tokens": group.output_tokens,
        "hit_rate": _estimate_json(group.hit_rate),
        "prefill_tokens": group.prefill_tokens,
        "gpu_seconds": _estimate_json(group.gpu_seconds),
        "late_seconds_p99": group.late_seconds,
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "first": comparison.first,
        "second": comparison.second,
        "ttft_seconds": {_name(each.quantile): _difference_json(each) for each in comparison.ttft},
        "total_seconds": {_name(each.quantile): _difference_json(each) for each in comparison.total},
        "hit_rate": _estimate_json(comparison.hit_rate),
        "error_rate": _estimate_json(comparison.error_rate),
    }


def _difference_json(found: QuantileDifference) -> dict[str, Any]:
    return {
        "difference": _estimate_json(found.seconds),
        "share": found.share,
        "is_noise": found.seconds.is_noise,
        "requests_needed": found.needed,
    }
