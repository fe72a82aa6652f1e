"""``prefix-gateway report``: what each tenant used in a month, and what it costs."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table

from gateway.commands.admin_client import AdminClient, AdminProblem, add_admin_arguments
from gateway.commands.printing import printed

_COLUMNS = (
    "tenant",
    "model",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "confirmed_tokens",
    "completion_tokens",
    "cost",
    "saved",
)

_PIPED_WIDTH = 160

DESCRIPTION = """\
Show what each tenant used in a month: requests, prompt tokens, tokens from the cache, generated tokens, and what they
cost by the prices under `cost` in the configuration; `saved` is what the tokens from the cache would have cost more.
Asks a running gateway. Months are those of UTC. Totals are kept for 400 days where history.file or state is set, else
since the gateway was started."""

EPILOG = """\
examples:
  prefix-gateway report
  prefix-gateway report --month 2026-11 --csv > november.csv
  prefix-gateway report --tenant acme --all-gateways --json

exit code: 0 shown, 1 the gateway refuses, 2 bad usage, or the gateway cannot be reached"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("--month", metavar="YYYY-MM", help="the month (default: the present one)")
    parser.add_argument("--tenant", metavar="ID", help="only this tenant")
    parser.add_argument("--all-gateways", action="store_true", help="of all gateways with the same Redis")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")
    add_admin_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    if args.csv and args.json:
        print("prefix-gateway report: choose one of --csv and --json", file=sys.stderr)
        return 2
    given = {"month": args.month, "tenant": args.tenant, "gateways": "all" if args.all_gateways else None}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    try:
        with AdminClient.from_arguments(args) as admin:
            found = admin.get(f"report?{query}" if query else "report")
    except AdminProblem as problem:
        print(f"prefix-gateway report: {problem.message}", file=sys.stderr)
        return problem.exit_code
    if found.get("gateways", {}).get("missing"):
        print("Not all gateways are included: Redis, or a record in it, cannot be read.", file=sys.stderr)
    printed(json.dumps(found) + "\n" if args.json else _as_csv(found) if args.csv else _as_table(found))
    return 0


def _as_csv(found: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("month", *_COLUMNS, "currency"))
    for row in found["rows"]:
        cells = ("" if row[name] is None else _safe(row[name]) for name in _COLUMNS)
        writer.writerow((found["month"], *cells, found["currency"]))
    return text.getvalue()


def _safe(value: Any) -> Any:
    """Names that a spreadsheet would take for a formula are quoted: trusted proxies choose tenant names."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _as_table(found: Mapping[str, Any]) -> str:
    if not found["rows"]:
        return f"{found['month']}: no request was counted.\n"
    table = Table(title=f"{found['month']}, {found['first_day']} to {found['last_day']}")
    for name in _COLUMNS:
        if name != "confirmed_tokens":
            title = name.replace("_", " ")
            is_money = name in ("cost", "saved")
            table.add_column(
                f"{title} ({found['currency']})" if is_money else title,
                justify="left" if name in ("tenant", "model") else "right",
                no_wrap=True,
            )
    for row in (*found["rows"], {"tenant": "total", "model": "", **found["total"]}):
        table.add_row(*(_cell(row[name]) for name in _COLUMNS if name != "confirmed_tokens"))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    with console.capture() as shown:
        console.print(table)
        if found["total"]["cost"] is None:
            console.print("No prices are set: cost.prompt_per_million, cost.cached_per_million in the configuration.")
    return shown.get()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if not isinstance(value, float) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.2f}" if value >= 1 else f"{value:.6f}"
