"""``prefix-gateway serve``: runs the gateway."""

import argparse
import gc
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gateway.core.errors import ConfigInvalid
from gateway.server.forced_end import ForcedEnd, end_process

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.settings import Settings

_MAX_WORKERS = 64

_START_ENDS_SECONDS = 1.0
"""Seconds that the end of a gateway that is still starting may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Run the gateway until Ctrl-C or SIGTERM. SIGHUP, or a change of the file or of a file it names, has the"
        " configuration read again; a mistake in it changes nothing."
    )
    parser.epilog = "example:\n  prefix-gateway serve --config config/gateway.yaml"
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the YAML configuration")
    parser.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help="processes that answer on the public port together (default: server.workers of the configuration)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; ends the process once it has served."""
    try:
        code = _run(args)
    except _Ended as ended:
        end_process(ended.code)
    return code or end_process(code)


def _run(args: argparse.Namespace) -> int:
    # Process 1 of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, _end_before_it_serves)
    # Nothing that is imported becomes garbage; the collector starts again when the gateway is ready.
    gc.disable()
    from gateway.config.settings import load_settings
    from gateway.telemetry import configure_logs

    try:
        settings = load_settings(args.config)
        configure_logs(settings.log.format, settings.log.level)
        workers = args.workers or settings.server.workers
        if workers == 1:
            from gateway.server.run import serve

            serve(settings, args.config, beside=partial(_examine, settings))
            return 0
        gc.enable()
        from gateway.server.workers.worker_supervisor import WorkersFailed, supervise

        try:
            supervise(settings, args.config, workers, beside=partial(_examine, settings, None))
        except WorkersFailed:
            return 1
    except ConfigInvalid as error:
        print(error, file=sys.stderr)
        return 2
    return 0


async def _examine(settings: "Settings", gateway: "Gateway | None") -> None:
    """Look for mistakes in the set-up, and log them."""
    from gateway.evaluation.doctor.start_examination import examine_at_start

    # The supervisor of several workers has no tokenizers, and loading them for this would cost more than it shows.
    await examine_at_start(settings, {} if gateway is None else gateway.encoders())


class _Ended(SystemExit):
    """SIGTERM came before the process served."""

    code: int


def _end_before_it_serves(number: int, _frame: FrameType | None) -> None:
    """Exit at once: nothing is served yet. The serving process replaces this handler."""
    ForcedEnd(_START_ENDS_SECONDS, 128 + number)
    raise _Ended(128 + number)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MAX_WORKERS):
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {_MAX_WORKERS}, got {text!r}")
    return int(text)
