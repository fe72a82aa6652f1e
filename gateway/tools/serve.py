"""``prefix-gateway serve``."""

import argparse
import sys
from pathlib import Path

from gateway.values.errors import ConfigInvalid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Run the gateway until Ctrl-C or SIGTERM. SIGHUP, or a change of the file or of a file it names, has the"
        " configuration read again; a mistake in it changes nothing."
    )
    parser.epilog = "example:\n  prefix-gateway serve --config config/gateway.yaml"
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the YAML configuration")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from gateway.server import serve
    from gateway.settings import load_settings
    from gateway.telemetry import configure_logs

    try:
        settings = load_settings(args.config)
        configure_logs(settings.log.format, settings.log.level)
        serve(settings, args.config)
    except ConfigInvalid as error:
        print(error, file=sys.stderr)
        return 2
    return 0
