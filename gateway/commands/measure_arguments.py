"""The arguments of ``prefix-gateway measure``, and which of them go together."""

import argparse
from pathlib import Path

from gateway.commands.argument_types import above_zero, whole_number
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.measurement.measure_target import KEY_VARIABLE

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
