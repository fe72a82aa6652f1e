"""``prefix-gateway doctor``: finds mistakes in the set-up of the gateway and its engines."""

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path

import structlog
from rich.console import Console
from rich.text import Text

from gateway.commands.printing import WIDTH, Line, coloured, counted, printed
from gateway.commands.request_file import read_requests
from gateway.config.settings import Settings, load_settings
from gateway.core.errors import ConfigInvalid
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.doctor.doctor_finding import FINDING_NAMES, Diagnosis, DoctorFinding, Severity
from gateway.evaluation.doctor.examination import ExaminationOptions, examine
from gateway.evaluation.doctor.prefix_checks import SharedPrefix

_CLEAN = 0
_FOUND = 1
_BAD_INPUT = 2
_DEFAULT_CONFIG = Path("config/gateway.yaml")
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow"}

DESCRIPTION = """\
Find mistakes in the set-up: connects to every engine, to Redis and to the gateway's own ports as
the configuration names them, and names the flag or line to change for each finding. It can run
beside a gateway that serves. Each replica gets four generation requests of one token with a
prompt of 4,096 tokens, and its cache is cleared before the last one where it is a vLLM in
development mode, or an SGLang with an external cache (--no-generation leaves all this out)."""

EPILOG = """\
examples:
  prefix-gateway doctor --config config/gateway.yaml
  prefix-gateway doctor --request support.jsonl          # do these prompts share at least a block?
  prefix-gateway doctor --ignore events-off --json

exit code: 0 nothing found, 1 a finding, 2 the configuration or a file cannot be used"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument(
        "--config",
        type=Path,
        default=_DEFAULT_CONFIG,
        metavar="FILE",
        help="the YAML configuration (default: %(default)s)",
    )
    parser.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="FILE",
        help="requests of one application as JSON or JSON lines: their common beginning has to fill a block; of a"
        " single one, all but its last message; may be repeated",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        type=_finding_name,
        help="accept findings of this name; may be repeated",
    )
    parser.add_argument("--no-generation", action="store_true", help="send no generation requests to the engines")
    parser.add_argument(
        "--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="limit of each request (default: %(default)g)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        settings = load_settings(args.config)
        requests = [_shared(file, settings) for file in args.request]
    except (BadInput, ConfigInvalid) as problem:
        print(problem, file=sys.stderr)
        return _BAD_INPUT
    # The log of the parts that are used here is that of a gateway.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with _progress(quiet=args.json) as progress:
        options = ExaminationOptions(
            timeout_seconds=args.timeout, generates=not args.no_generation, requests=requests, progress=progress
        )
        diagnosis, _ = asyncio.run(examine(settings, options))
    findings = diagnosis.ordered(args.ignore)
    as_text = _as_json if args.json else _report
    printed(as_text(args.config, diagnosis, findings))
    return _FOUND if findings else _CLEAN


def _shared(file: str, settings: Settings) -> SharedPrefix:
    """The requests of a file as one shared prefix."""
    requests = read_requests(file)
    models = {model.id for model in settings.models}
    named = {each.fields.get("model") for each in requests} - {None}
    if len(named) > 1:
        raise BadInput(f"{file}: its requests name several models; give a file for each")
    model = next(iter(named)) if named else settings.models[0].id
    if model not in models:
        raise BadInput(f"{file}: names the model {model!r}, which the configuration has not ({', '.join(models)})")
    return SharedPrefix(file, str(model), [(each.endpoint, each.fields) for each in requests])


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows what is being done on a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading the configuration") as status:
        yield status.update


def _as_json(config: Path, diagnosis: Diagnosis, findings: list[DoctorFinding]) -> str:
    result = {
        "config": str(config),
        "replicas": diagnosis.replicas,
        "findings": [each.as_json() for each in findings],
        "unchecked": diagnosis.unchecked,
        "shown": diagnosis.shown,
    }
    return json.dumps(result, ensure_ascii=False) + "\n"


def _report(config: Path, diagnosis: Diagnosis, findings: list[DoctorFinding]) -> str:
    return coloured(_lines(config, diagnosis, findings))


def _lines(config: Path, diagnosis: Diagnosis, findings: list[DoctorFinding]) -> Iterator[Line | Text]:
    for finding in findings:
        heading = Text(f"{finding.severity}  {finding.name}", _STYLES[finding.severity])
        yield heading.append(f"  {finding.where}", "default")
        yield from _wrapped(finding.said)
        yield from _wrapped(f"fix: {finding.fix}", "green")
        yield "", ""
    for kind, remarks in (("not checked", diagnosis.unchecked), ("checked", diagnosis.shown)):
        for each in remarks:
            yield from _wrapped(f"{kind}: {each}", "dim", indent="")
    what = counted(len(findings), "finding") if findings else "nothing found"
    yield f"{config}, {counted(diagnosis.replicas, 'replica')}: {what}", "bold"


def _wrapped(text: str, style: str = "", indent: str = "  ") -> Iterator[Line]:
    """Lines that can be copied: names and addresses in them are not broken."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    lines = textwrap.wrap(plain, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    yield from ((indent + line, style) for line in lines)


def _finding_name(text: str) -> str:
    if text not in FINDING_NAMES:
        close = get_close_matches(text, FINDING_NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(sorted(FINDING_NAMES))}"
        raise argparse.ArgumentTypeError(f"no finding is called {text!r} ({hint})")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.1 to 600, not {text!r}")
    return seconds
