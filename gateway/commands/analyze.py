"""``prefix-gateway analyze LOGS``: would a prefix cache help this traffic, what stands in its way, where to start."""

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from gateway.commands.argument_types import whole_number
from gateway.commands.printing import printed
from gateway.config.settings import load_settings
from gateway.core.errors import ConfigInvalid
from gateway.evaluation.analysis.analysis_options import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LONG_TOKENS,
    AnalysisOptions,
    configured_options,
    default_options,
)
from gateway.evaluation.analysis.analysis_report import report_of
from gateway.evaluation.analysis.log_analysis import LogAnalysis
from gateway.evaluation.analysis.log_pipeline import Progress as OnProgress
from gateway.evaluation.analysis.log_pipeline import SimulatedFleets, analyze_logs
from gateway.evaluation.analysis.report_html import as_html
from gateway.evaluation.analysis.report_parts import ReportDocument
from gateway.evaluation.analysis.report_text import as_markdown, print_report
from gateway.evaluation.bad_input import BadInput

_DONE = 0
_BAD_INPUT = 2
_REPLICAS = "2,4,8"
_CACHE_TOKENS = "100000,400000,1600000"
_MOST_VALUES = 12
_MOST_REPLICAS = 1024
_MOST_TOKENS = 10**10
_WIDTH = 110
"""Columns of the report where the output is no terminal."""

DESCRIPTION = """\
Read recorded requests, and report what of their prompts repeats: the ideal hit rate, the hit rate
to expect from a number of replicas with a cache size, why the rest is computed again, which
applications to start with, what canonicalization would gain, personal data in shared prefixes, and
a configuration to start with. Nothing is sent anywhere, and no engine is needed.

LOGS are files, plain or packed with gzip or zstd; - reads standard input. Formats, found by their
first lines: bodies of OpenAI or Anthropic requests as JSON lines, also as {"request": ...,
"response": ..., "timestamp": ...}; litellm's JSON log; vLLM's log with --enable-log-requests and
VLLM_LOGGING_LEVEL=DEBUG; OpenAI Batch input; JSON access logs of nginx or Envoy with request
bodies; HAR. Lines that cannot be read are counted and named."""

EPILOG = """\
examples:
  prefix-gateway analyze requests.jsonl
  prefix-gateway analyze gateway-*.log.gz --config config/gateway.yaml --html report.html
  prefix-gateway analyze vllm.log --tokenizer /models/llama --replicas 4,8 --cache-tokens 400000
  kubectl logs deploy/vllm | prefix-gateway analyze - --json | jq .verdict
  prefix-gateway analyze requests.jsonl --anonymize trace.jsonl

exit code: 0 reported, 2 bad usage, or LOGS hold no requests that can be read"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("logs", metavar="LOGS", nargs="+", help="log files; - reads standard input")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="configuration with tokenizers, rules, isolation and times to live"
    )
    parser.add_argument("--model", metavar="ID", help="with --config: the model that others are taken for")
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="folder or hub id of a tokenizer (default: a small built-in one)"
    )
    parser.add_argument(
        "--block-size",
        metavar="N",
        type=whole_number(1, _MOST_TOKENS),
        default=DEFAULT_BLOCK_SIZE,
        help=f"tokens per cache block of the engine (default {DEFAULT_BLOCK_SIZE})",
    )
    parser.add_argument(
        "--long",
        metavar="N",
        type=whole_number(1, _MOST_TOKENS),
        default=DEFAULT_LONG_TOKENS,
        help=f"tokens from which a shared prefix counts as long (default {DEFAULT_LONG_TOKENS})",
    )
    parser.add_argument(
        "--replicas",
        metavar="N,...",
        type=_replicas,
        default=_REPLICAS,
        help=f"numbers of replicas to simulate, 0 for none (default {_REPLICAS})",
    )
    parser.add_argument(
        "--cache-tokens",
        metavar="N,...",
        type=_cache_tokens,
        default=_CACHE_TOKENS,
        help=f"tokens that the cache of each replica holds (default {_CACHE_TOKENS})",
    )
    parser.add_argument("--no-rules", action="store_true", help="leave out what canonicalization would gain: faster")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="also write the report as Markdown")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the report as one HTML file with plots")
    parser.add_argument(
        "--anonymize", metavar="OUT", type=Path, help="also write a trace without text, for prefix-gateway simulate"
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        analysis = _analysis(args)
        document = report_of(analysis)
        for path, text in ((args.markdown, as_markdown), (args.html, as_html)):
            if path is not None:
                _write(path, text(document))
    except (BadInput, ConfigInvalid) as problem:
        print(f"prefix-gateway analyze: {problem}", file=sys.stderr)
        return _BAD_INPUT
    printed(msgspec.json.encode(analysis).decode() + "\n" if args.json else _text(document))
    return _DONE


def _text(document: ReportDocument) -> str:
    """The report for the terminal, coloured on one."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    with console.capture() as report:
        print_report(document, console)
    text = report.get()
    return text if sys.stdout.isatty() else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _analysis(args: argparse.Namespace) -> LogAnalysis:
    options = msgspec.structs.replace(
        _options(args), block_size=args.block_size, long_tokens=args.long, with_rules=not args.no_rules
    )
    fleets = SimulatedFleets(args.replicas, args.cache_tokens)
    with contextlib.ExitStack() as stack:
        anonymized: BinaryIO | None = None
        if args.anonymize is not None:
            try:
                anonymized = stack.enter_context(args.anonymize.open("wb"))
            except OSError as error:
                raise BadInput(f"{args.anonymize}: cannot be written: {error.strerror}") from None
        on_progress = stack.enter_context(_progress())
        return analyze_logs(args.logs, options, fleets=fleets, anonymized=anonymized, on_progress=on_progress)


def _options(args: argparse.Namespace) -> AnalysisOptions:
    if args.config is None:
        if args.model is not None:
            raise BadInput("--model names a model of a configuration: give one with --config")
        return default_options(args.tokenizer)
    return configured_options(load_settings(args.config), tokenizer=args.tokenizer, model=args.model)


@contextlib.contextmanager
def _progress() -> Iterator[OnProgress]:
    """Shows the progress on a terminal's standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("reading", total=1.0)

        def show(what: str, share: float) -> None:
            if math.isnan(share):
                shown.update(task, description=what, total=None)
            else:
                shown.update(task, description=what, total=1.0, completed=share)

        yield show


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from None


def _replicas(text: str) -> list[int]:
    return [] if text == "0" else _numbers(text, _MOST_REPLICAS)


def _cache_tokens(text: str) -> list[int]:
    return _numbers(text, _MOST_TOKENS)


def _numbers(text: str, most: int) -> list[int]:
    found = sorted({whole_number(1, most)(each.strip()) for each in text.split(",")})
    if len(found) > _MOST_VALUES:
        raise argparse.ArgumentTypeError(f"at most {_MOST_VALUES} numbers, not {len(found)}")
    return found
