"""``prefix-gateway measure URL…``: what warm prefixes, the gateway, a rule or another model bring, with intervals."""

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.commands.argument_types import above_zero, whole_number
from gateway.commands.measure_report import as_json, as_markdown, as_text
from gateway.commands.printing import printed
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.measurement.measure_plan import MeasuredVariant, Pass, pairs, rule_pass, trace_passes
from gateway.evaluation.measurement.measure_result import MeasureResult, measure_result
from gateway.evaluation.measurement.measure_run import BodyOptions, MeasuredRequest, MeasureRun, SendingLoad
from gateway.evaluation.measurement.measure_target import (
    KEY_VARIABLE,
    base_url,
    check_warm_up,
    chosen_model,
    read_key,
    served_models,
)
from gateway.evaluation.measurement.measured_prompts import (
    BuiltInPrompts,
    FilePrompts,
    PromptBody,
    PromptSource,
    TracePrompts,
)
from gateway.evaluation.measurement.stream_timing import StreamTimer

_DONE, _SOME_FAILED, _BAD_USAGE = 0, 1, 2
_CONNECT_SECONDS = 10.0
_RULES_OFF = (b"x-gateway-canonical", b"off")
_MOST_REQUESTS = 100_000
_MOST_CONCURRENCY = 1000

DESCRIPTION = """\
Send prompts to a running gateway or engine, and compare: with a cold cache and a warm one, the
gateway with an engine behind it, canonicalization off and on, one model with another. Shows TTFT
and total latency (p50, p95, p99), hit rate, errors, prefill tokens and GPU seconds, each with a
95 % confidence interval, and says which differences are noise.

Every prompt gets a beginning of its own, so that nothing of it is in a cache; sent again as it is,
it is warm. The requests carry `x-client: prefix-gateway-measure`: a gateway counts them in its
metrics, and leaves them out of its miss reports."""

EPILOG = f"""\
examples:
  prefix-gateway measure http://localhost:8080
  prefix-gateway measure direct=http://vllm-0:8000 gateway=http://localhost:8080 --requests 100
  prefix-gateway measure http://localhost:8080 --models small,large --prompt-tokens 4000
  prefix-gateway measure http://localhost:8080 --canonical
  prefix-gateway measure http://localhost:8080 --prompts bodies.jsonl --rate 5 --markdown
  {KEY_VARIABLE}=… prefix-gateway measure https://gateway.example --trace trace.jsonl --speed 2

exit code: 0 measured, 1 measured and some requests failed, 2 bad usage, nothing answers at the URL,
or it refuses the requests"""


def add_measure_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    # Or `--key SECRET` would be taken for `--key-file`, and the secret would be shown as a file that is not there.
    parser.allow_abbrev = False
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="[NAME=]URL",
        help="where requests are sent; several are compared with each other, the first one is the baseline",
    )
    _add_comparisons(parser)
    _add_prompts(parser)
    _add_load(parser)
    _add_output(parser)


def _add_comparisons(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared, besides cold and warm")
    group.add_argument("--model", metavar="ID", help="the model (default: the only one that is served)")
    group.add_argument(
        "--models", metavar="A,B", type=_names, help="models to compare, the first one is the baseline; one URL"
    )
    group.add_argument(
        "--canonical",
        action="store_true",
        help="compare canonicalization off (x-gateway-canonical: off) with on; the built-in prompts then begin with the"
        " time, those of a file are sent as they are; one URL",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument("--prompts", metavar="FILE", type=Path, help="JSON lines, each the body of a request")
    group.add_argument(
        "--trace", metavar="FILE", type=Path, help="a workload trace: text is made from its block ids, in its order"
    )
    group.add_argument(
        "--prompt-tokens",
        metavar="N",
        type=whole_number(1, 1_000_000),
        default=1000,
        help="length of the built-in prompts (default: %(default)s)",
    )
    group.add_argument(
        "--output-tokens",
        metavar="N",
        type=whole_number(1, 100_000),
        help="length of every answer (default: 16 for built-in prompts, else what the file or the trace says)",
    )
    group.add_argument(
        "--unique",
        choices=["beginning", "salt"],
        default="beginning",
        help="what keeps prompts apart: words at their beginning, or the field cache_salt (default: %(default)s)",
    )
    group.add_argument("--plain", action="store_true", help="send no ignore_eos, which is not part of OpenAI's API")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--requests",
        metavar="N",
        type=whole_number(1, _MOST_REQUESTS),
        default=40,
        help="prompts, each sent once in every group (default: %(default)s; a p95 needs 72, a p99 368)",
    )
    group.add_argument(
        "--concurrency", metavar="N", type=whole_number(1, _MOST_CONCURRENCY), help="requests at a time (default: 1)"
    )
    group.add_argument(
        "--rate",
        metavar="R",
        type=above_zero,
        help="instead: requests a second, at random times; latencies count from these",
    )
    group.add_argument(
        "--speed", metavar="X", type=above_zero, help="instead, with --trace: at the trace's times, X times as fast"
    )
    group.add_argument(
        "--seconds",
        metavar="S",
        type=above_zero,
        default=600.0,
        help="send nothing more after this time (default: %(default)g)",
    )
    group.add_argument(
        "--timeout", metavar="S", type=above_zero, default=120.0, help="limit of one answer (default: %(default)g)"
    )
    group.add_argument(
        "--warm-up",
        metavar="N",
        type=whole_number(0, 1000),
        default=2,
        help="requests before, which are not measured, for each of what is compared (default: %(default)s)",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="of the order, the arrivals and the built-in texts (default: 0)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("key, GPU seconds and output")
    group.add_argument(
        "--key-file", metavar="FILE", type=Path, help=f"file with the API key (default: the variable {KEY_VARIABLE})"
    )
    group.add_argument("--gpus", metavar="N", type=above_zero, default=1.0, help="GPUs of a replica (default: 1)")
    group.add_argument(
        "--prefill-rate",
        metavar="R",
        type=above_zero,
        help="prompt tokens a replica computes a second, for GPU seconds (default: from how TTFT grows with them)",
    )
    shape = group.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print the result as one JSON object")
    shape.add_argument("--markdown", action="store_true", help="print the result as Markdown")


def check_together(args: argparse.Namespace) -> None:
    """Check that the arguments go together.

    Raises:
        BadInput: they do not.
    """
    compared = [len(args.urls) > 1, args.models is not None, args.canonical]
    if sum(compared) > 1:
        raise BadInput("compare one thing at a time: several URLs, or --models, or --canonical")
    if args.model is not None and args.models is not None:
        raise BadInput("--model and --models cannot both be given")
    if args.prompts is not None and args.trace is not None:
        raise BadInput("--prompts and --trace cannot both be given")
    if args.trace is not None and args.canonical:
        raise BadInput("--canonical needs prompts with text for the rules: leave --trace out, or give --prompts")
    if sum(each is not None for each in (args.concurrency, args.rate, args.speed)) > 1:
        raise BadInput("give one of --concurrency, --rate and --speed")
    if args.speed is not None and args.trace is None:
        raise BadInput("--speed needs a trace (--trace), whose times it follows")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected different model ids with commas between them, not {text!r}")
    return names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    add_measure_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        check_together(args)
        key = read_key(args.key_file)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result, settings = runner.run(_measured(args, key))
    except BadInput as problem:
        print(f"prefix-gateway measure: {problem}", file=sys.stderr)
        return _BAD_USAGE
    if args.json:
        text = json.dumps(as_json(result, settings)) + "\n"
    else:
        text = (as_markdown if args.markdown else as_text)(result, settings)
    printed(text)
    return _SOME_FAILED if result.failed else _DONE


@dataclass(frozen=True, slots=True)
class _Prompts:
    """The prompts, how they are sent, and how that is called."""

    source: PromptSource
    name: str
    times: Sequence[float] | None = None


async def _measured(args: argparse.Namespace, key: str) -> tuple[MeasureResult, Mapping[str, Any]]:
    prompts = _prompts(args)
    timer = StreamTimer(_CONNECT_SECONDS, args.timeout, key)
    try:
        variants = await _variants(args, timer, key)
        load = SendingLoad(args.concurrency or 1, args.rate, args.speed or 1.0, args.seconds, args.seed)
        passes = _passes(args, prompts, len(variants))
        options = BodyOptions(_output_tokens(args), plain=args.plain, salt=args.unique == "salt")
        with _progress(sum(len(each.requests) for each in passes)) as advance:
            job = MeasureRun(timer, variants, prompts.source, options=options, load=load, on_progress=advance)
            await _warm_up(args, job, variants, prompts.source, with_key=bool(key))
            record = await job.run(passes)
    finally:
        timer.close()
    result = measure_result(
        variants,
        record,
        gpus=args.gpus,
        prefill_rate=args.prefill_rate,
        is_paired=args.trace is None and not args.canonical,
    )
    return result, _settings(args, prompts)


def _prompts(args: argparse.Namespace) -> _Prompts:
    if args.prompts is not None:
        bodies = FilePrompts(args.prompts, args.requests, needs_text=args.unique == "beginning")
        return _Prompts(bodies, f"from {args.prompts} ({len(bodies)} different)")
    if args.trace is not None:
        trace = TracePrompts(args.trace, args.requests)
        return _Prompts(trace, f"from {args.trace} (its first {len(trace)})", trace.times if args.speed else None)
    clock = time() if args.canonical else None
    built_in = BuiltInPrompts(args.prompt_tokens, args.requests, args.seed, clock)
    return _Prompts(built_in, f"built in (about {args.prompt_tokens:,} tokens)")


def _passes(args: argparse.Namespace, prompts: _Prompts, variants: int) -> list[Pass]:
    nonce = secrets.token_hex(8)
    if args.canonical:
        return rule_pass(args.requests, variants, args.seed, nonce)
    if args.trace is not None:
        return trace_passes(len(prompts.source), variants, args.seed, nonce, prompts.times)
    return pairs(args.requests, variants, args.seed, nonce)


def _output_tokens(args: argparse.Namespace) -> int | None:
    if args.output_tokens is not None or args.prompts is not None or args.trace is not None:
        return args.output_tokens  # type: ignore[no-any-return]
    return 16


async def _variants(args: argparse.Namespace, timer: StreamTimer, key: str) -> list[MeasuredVariant]:
    places = [_named(text) for text in args.urls]
    wanted = args.models or [args.model]
    several = len(places) > 1
    found: list[MeasuredVariant] = []
    for name, url in places:
        served = await served_models(timer, url, key)
        for model in wanted:
            chosen = chosen_model(url, served, model)
            found.append(MeasuredVariant(chosen if args.models else name if several else "", url, chosen))
    if args.canonical:
        (one,) = found
        return [
            MeasuredVariant("rules off", one.url, one.model, (_RULES_OFF,)),
            MeasuredVariant("rules on", one.url, one.model),
        ]
    if len({variant.name for variant in found}) < len(found):
        raise BadInput("two of the URLs have the same name: name each, as in gateway=http://127.0.0.1:8080")
    return found


def _named(text: str) -> tuple[str, str]:
    """Name and URL of an argument: ``NAME=URL``, or a URL, whose host and port are its name."""
    name, separator, url = text.partition("=")
    if not separator or "/" in name:
        url = base_url(text)
        return urlsplit(url).netloc + urlsplit(url).path, url
    return name, base_url(url)


async def _warm_up(
    args: argparse.Namespace,
    job: MeasureRun,
    variants: Sequence[MeasuredVariant],
    source: PromptSource,
    *,
    with_key: bool,
) -> None:
    """Requests that are not measured: connections are made, and the first one shows how long words are in tokens."""
    for number in range(args.warm_up):
        for index, variant in enumerate(variants):
            timing = await job.warm_up(index, number, secrets.token_hex(8))
            if timing.error:
                check_warm_up(variant.url, timing.status, timing.error, with_key=with_key, is_plain=args.plain)
            elif not number and not index and timing.usage and isinstance(source, BuiltInPrompts | TracePrompts):
                source.tokens_per_word = max(0.1, timing.usage.prompt_tokens / _words(source.body(number)))


def _words(body: PromptBody) -> int:
    return sum(len(message["content"].split()) for message in body.fields["messages"])


def _settings(args: argparse.Namespace, prompts: _Prompts) -> dict[str, Any]:
    if args.rate is not None:
        load = f"{args.rate:g} a second (open loop)"
    elif args.speed is not None:
        load = f"at the trace's times{'' if args.speed == 1 else f', {args.speed:g} times as fast'} (open loop)"
    else:
        load = f"{args.concurrency or 1} at a time (closed loop)"
    named = ("requests", "warm_up", "seed", "output_tokens", "unique", "plain", "timeout", "seconds", "gpus")
    return {"load": load, "prompts": prompts.name, **{name: getattr(args, name) for name in named}}


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[MeasuredRequest], None]]:
    """A progress bar on standard error, if that is a terminal. Yields what is to be called after each request."""
    console = Console(stderr=True)
    shown = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *shown, TextColumn("{task.fields[failed]}"), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total, failed="")
        failed = 0

        def advance(measured: MeasuredRequest) -> None:
            nonlocal failed
            failed += bool(measured.timing.error)
            progress.update(task, advance=1, failed=f"{failed:,} failed" if failed else "")

        yield advance
