"""Miss reasons of the gateway's side, from its admin port."""

from collections.abc import Mapping
from typing import Any

import httpx
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_SHOWN = 6
_FINDINGS = 3
_TIMEOUT_SECONDS = 5.0

Summary = Mapping[str, Any]
"""Answer of ``GET /admin/api/summary``."""


async def asked(admin: str) -> Summary | None:
    """The summary of the run; None if the admin port does not answer.

    Args:
        admin: Base URL of the admin port.
    """
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            answer = await client.get(f"{admin}/admin/api/summary?window=1h")
            answer.raise_for_status()
            found: Summary = answer.json()
            return found
    except (httpx.HTTPError, ValueError):
        return None


def shown(summary: Summary) -> RenderableType:
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


def by_code(summary: Summary) -> dict[str, int]:
    """Tokens per reason."""
    return {reason["code"]: reason["tokens"] for reason in summary["reasons"]}
