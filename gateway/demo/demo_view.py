"""The tables of the demo, with rich, and its summary: as JSON, and the gain in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.core.decision import WARM_SHARE
from gateway.demo.applications import APPLICATIONS
from gateway.demo.demo_plan import ENGINE, GATEWAY, MODEL, REPLICAS, ROUND_ROBIN
from gateway.demo.score import Score, Times

_SHOWN = 6
_FINDINGS = 3
_TIMEOUT_SECONDS = 5.0

ReasonSummary = Mapping[str, Any]
"""Answer of ``GET /admin/api/summary``."""


async def fetch_reasons(admin: str) -> ReasonSummary | None:
    """The summary of the run; None if the admin port does not answer.

    Args:
        admin: Base URL of the admin port.
    """
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            answer = await client.get(f"{admin}/admin/api/summary?window=1h")
            answer.raise_for_status()
            found: ReasonSummary = answer.json()
            return found
    except (httpx.HTTPError, ValueError):
        return None


def reasons_table(summary: ReasonSummary) -> RenderableType:
    """The reasons with most tokens, and the places they come from."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("why the gateway's replicas computed", min_width=36)
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    table.add_column("who can change it")
    for reason in summary["reasons"][:_SHOWN]:
        title = f"{reason['title']} ({reason['code']})"
        table.add_row(title, f"{reason['tokens']:,}", f"{reason['share']:.1%}", reason["remedy"])
    rest = summary["reasons"][_SHOWN:]
    if rest:
        share = sum(reason["share"] for reason in rest)
        table.add_row(f"{len(rest)} more", f"{sum(reason['tokens'] for reason in rest):,}", f"{share:.1%}")
    found = [finding["sentence"] for finding in summary["findings"] if finding["remedy"] == "application"]
    return Group(table, *(Text(f" -> {sentence}", style="bold") for sentence in found[:_FINDINGS]))


def tokens_by_reason(summary: ReasonSummary) -> dict[str, int]:
    """Tokens per reason."""
    return {reason["code"]: reason["tokens"] for reason in summary["reasons"]}


_EQUAL_RATIO = 1.05
"""Smaller ratios are not mentioned."""


def as_json(score: Score) -> Mapping[str, Any]:
    """One side as JSON. Times in milliseconds, None where nothing was measured; ``hit_rate`` from 0 to 1."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    times = {name: score.ttft.quantile(share) for name, share in quantiles.items()}
    return {
        "requests": score.requests,
        "errors": score.errors,
        "hit_rate": round(score.tokens.hit_rate, 4),
        "ttft_ms": {name: None if time is None else round(time * 1000, 1) for name, time in times.items()},
        "saved_prefill_tokens": score.tokens.cached,
    }


def gains(gateway: Score, other: Score) -> Iterator[str]:
    """What the gateway gains or loses against the other side, one sentence each."""
    for name, share in (("p50", 0.5), ("p90", 0.9)):
        own, theirs = gateway.ttft.quantile(share), other.ttft.quantile(share)
        if own and theirs:
            yield f"{_ratio(theirs / own, f'{name} TTFT')}: {own * 1000:,.0f} ms instead of {theirs * 1000:,.0f} ms"
    if gateway.tokens.prompt and other.tokens.prompt:
        yield f"hit rate {gateway.tokens.hit_rate:.0%} instead of {other.tokens.hit_rate:.0%}"
        own, theirs = (score.tokens.computed / score.tokens.answers for score in (gateway, other))
        change = _ratio(theirs / max(own, 1.0), "prefill per request")
        yield f"{change}: {own:,.0f} prompt tokens computed instead of {theirs:,.0f}"


def _ratio(ratio: float, what: str) -> str:
    if 1 / _EQUAL_RATIO < ratio < _EQUAL_RATIO:
        return f"about the same {what}"
    return f"{ratio:.1f}x lower {what}" if ratio > 1 else f"{1 / ratio:.1f}x higher {what}"


_GOOD = "bold green"
_NOTHING = "-"
_CURL_BODY = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}'


def introduction(public: str, admin: str) -> str:
    """Addresses and commands to try while it runs."""
    return f"""
{REPLICAS} simulated replicas behind the gateway, {REPLICAS} more behind round robin, and the same traffic to both.

  Dashboard: {admin}/dashboard

  gateway   {public}   model "{MODEL}"; send it your own requests, too:
            OpenAI(base_url="{public}/v1", api_key="none")
            curl -i {public}/v1/chat/completions -H 'content-type: application/json' -d '{_CURL_BODY}'
  admin     {admin}/metrics   {admin}/admin/api/replicas
            {admin}/admin/api/summary: why tokens are computed again
"""


def live(gateway: Score, other: Score, elapsed: float, seconds: float | None) -> RenderableType:
    """The tables at one moment of the run. Times in seconds; ``seconds`` is when it will end, None for Ctrl-C."""
    until = "Ctrl-C ends it with a summary" if seconds is None else f"of {seconds:.0f} s; Ctrl-C ends it earlier"
    return Group(Text(f" {elapsed:4.0f} s   {until}", style="dim"), *_tables(gateway, other))


def summary(gateway: Score, other: Score, elapsed: float, why: RenderableType | None = None) -> RenderableType:
    """The summary: the same tables, the gain in sentences, and ``why``, the miss reasons of the gateway's side."""
    parts: list[RenderableType] = [Text(f" Summary of {elapsed:.0f} s", style="bold"), *_tables(gateway, other)]
    parts += [Text(f" -> {gain}", style="bold") for gain in gains(gateway, other)]
    if why is not None:
        parts.append(why)
    parts += [
        Text(f" first error of the {side.title} side: {score.first_error}", style="red")
        for side, score in ((GATEWAY, gateway), (ROUND_ROBIN, other))
        if score.first_error
    ]
    engine = f"{ENGINE.capacity:,} tokens of cache and computes {ENGINE.prefill_rate:,.0f} prompt tokens/s"
    parts.append(
        Text(
            f"\n Each simulated replica has {engine}. The times compare the policies; they are not those of your GPUs.",
            style="dim",
        )
    )
    return Group(*parts)


def progress_line(gateway: Score, other: Score, elapsed: float) -> str:
    """One moment of the run as a line, for output that is not a terminal."""
    sides = "  |  ".join(
        f"{side.title}: {score.requests} requests, {score.errors} errors, hit rate {score.tokens.hit_rate:.0%}, "
        f"TTFT p50 {_time(score.ttft, 0.5)} p90 {_time(score.ttft, 0.9)}"
        for side, score in ((GATEWAY, gateway), (ROUND_ROBIN, other))
    )
    return f"{elapsed:4.0f} s  {sides}"


def _tables(gateway: Score, other: Score) -> list[RenderableType]:
    notes = (f" {app.name}: {app.note}" for app in APPLICATIONS if app.note)
    return [_sides(gateway, other), _applications(gateway, other), *(Text(note, style="yellow") for note in notes)]


def _sides(gateway: Score, other: Score) -> Table:
    table = _table("")
    both = (gateway, other)
    table.add_row("requests (errors)", *(_requests(score) for score in both))
    table.add_row("hit rate", *(f"{score.tokens.hit_rate:.1%}" for score in both), style=_GOOD)
    table.add_row(
        "TTFT p50 / p90",
        *(f"{_time(score.ttft, 0.5)} / {_time(score.ttft, 0.9)}" for score in both),
        style=_GOOD,
    )
    table.add_row(f"  warm p50 (>= {WARM_SHARE:.0%} cached)", *(_time(score.warm, 0.5) for score in both))
    table.add_row(f"  cold p50 (< {WARM_SHARE:.0%} cached)", *(_time(score.cold, 0.5) for score in both))
    table.add_row("prefill tokens saved", *(f"{score.tokens.cached:,}" for score in both))
    table.add_row("prefill tokens computed", *(f"{score.tokens.computed:,}" for score in both))
    table.add_row("share of each replica", *(_shares(score) for score in both))
    return table


def _applications(gateway: Score, other: Score) -> Table:
    table = _table("hit rate of")
    for app in APPLICATIONS:
        tokens = (score.by_application[app.name] for score in (gateway, other))
        shown = (f"{one.hit_rate:.1%}" if one.answers else _NOTHING for one in tokens)
        table.add_row(f"  {app.name}", *shown, style="yellow" if app.note else None)
    return table


def _table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, min_width=26)
    for side in (GATEWAY, ROUND_ROBIN):
        table.add_column(side.title, justify="right", min_width=20)
    return table


def _requests(score: Score) -> Text:
    return Text(f"{score.requests:,} ({score.errors:,})", style="bold red" if score.errors else "")


def _shares(score: Score) -> str:
    answers = score.tokens.answers
    return " ".join(f"{score.replicas[name] / answers:.0%}" for name in sorted(score.replicas)) or _NOTHING


def _time(times: Times, share: float) -> str:
    seconds = times.quantile(share)
    return _NOTHING if seconds is None else f"{seconds * 1000:,.0f} ms"
