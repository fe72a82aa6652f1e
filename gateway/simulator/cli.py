"""``prefix-gateway engine``: one simulated engine from the command line."""

import argparse
import asyncio
import sys

import uvloop

from gateway.simulator.config import EngineConfig
from gateway.simulator.faults import Fault
from gateway.simulator.server import ListenError, SimulatedEngine, serve_engines

DESCRIPTION = "Run one simulated engine: vLLM's API, prefix cache and timing, without a model."
EPILOG = f"""\
example:
  prefix-gateway engine --port 8100 --blocks 2000 --prefill-rate 4000 --decode-ms 20

faults (--fault, or POST /simulator/fault {{"spec": "..."}} while it runs; an empty spec ends it):
  {", ".join(Fault)}
  slow=SECONDS and die_mid_stream=EVENTS take a value
  options follow a colon: 500:times=3, hang:every=5, 500:path=/metrics
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser of its own."""
    defaults = EngineConfig()
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, required=True, help="port to listen on; 0 takes a free one")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--model", default=defaults.model, metavar="ID", help="model id (default: %(default)s)")
    parser.add_argument(
        "--block-size",
        type=int,
        default=defaults.block_size,
        metavar="N",
        help="tokens per block (default: %(default)s)",
    )
    parser.add_argument(
        "--blocks", type=int, default=defaults.blocks, metavar="N", help="blocks of the cache (default: %(default)s)"
    )
    parser.add_argument(
        "--prefill-rate",
        type=float,
        default=defaults.prefill_rate,
        metavar="TOKENS_PER_S",
        help="prompt tokens computed per second (default: %(default)s)",
    )
    parser.add_argument(
        "--decode-ms",
        type=float,
        default=defaults.decode_ms,
        metavar="MS",
        help="milliseconds per generated token (default: %(default)s)",
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=defaults.slots,
        metavar="N",
        help="sequences at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        default=None,
        metavar="N",
        help="context limit in tokens (default: what the cache holds, at most 32768)",
    )
    parser.add_argument("--fault", default="", metavar="SPEC", help="fault to show from the start; see below")


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C. Returns the exit code: 0, or 2 for options that cannot be used."""
    try:
        config = EngineConfig(
            host=args.host,
            port=args.port,
            model=args.model,
            block_size=args.block_size,
            blocks=args.blocks,
            prefill_rate=args.prefill_rate,
            decode_ms=args.decode_ms,
            slots=args.slots,
            max_model_len=args.max_model_len,
            fault=args.fault,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_engines([config], _announce))
    except (ValueError, ListenError) as error:
        sys.stderr.write(f"prefix-gateway engine: {error}\n")
        return 2
    return 0


def _announce(engines: list[SimulatedEngine]) -> None:
    for engine in engines:
        sys.stdout.write(f"simulated engine {engine.config.model} on {engine.url}\n")
    sys.stdout.flush()
