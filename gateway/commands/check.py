"""``prefix-gateway check FILE``: is this configuration file valid? Reads the file only; no network, no tokenizer."""

import argparse
import json
import sys
from pathlib import Path

from gateway.commands.printing import counted
from gateway.config.settings import load_settings
from gateway.core.errors import ConfigInvalid
from gateway.discovery.file_source import read_replicas
from gateway.warmup.document import read_prefixes

_VALID = 0
_INVALID = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = "Validate a configuration file and list every mistake in it, each with its line and key."
    parser.epilog = (
        "Variables (${NAME}) and secret files (file:PATH) are read as by `serve`; the network is not touched.\n"
        "Exit code: 0 the file is valid, 2 it is not.\n\n"
        "example:\n  prefix-gateway check config/gateway.yaml"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the YAML configuration file")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check ``args.file`` and print the result to standard output. Returns the exit code."""
    file: Path = args.file
    problems: list[str] = []
    models = replicas = 0
    try:
        settings = load_settings(file)
        if settings.warm.file is not None:
            read_prefixes(settings.warm.file)
        for model in settings.models:
            if model.discover is not None and model.discover.file is not None:
                replicas += len(read_replicas(model.discover.file.path))
    except ConfigInvalid as invalid:
        problems = invalid.problems
    else:
        models = len(settings.models)
        replicas += sum(len(model.replicas) for model in settings.models)
    if args.json:
        result = {"file": str(file), "ok": not problems, "models": models, "replicas": replicas, "problems": problems}
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        lines = problems or [f"{file}: ok, {counted(models, 'model')}, {counted(replicas, 'replica')}"]
        sys.stdout.write("\n".join(lines) + "\n")
    return _INVALID if problems else _VALID
