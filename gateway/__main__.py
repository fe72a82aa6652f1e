"""The command line: ``prefix-gateway COMMAND``. Exit codes: 0, 1 (found a problem), 2 (bad usage or configuration)."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from gateway import __version__

# Each command is a module with add_arguments(parser) and run(args) -> exit code, imported only when it is called.
_COMMANDS = {
    "serve": ("gateway.commands.serve", "run the gateway"),
    "demo": ("gateway.demo", "see it work: simulated replicas, the gateway, and traffic"),
    "engine": ("gateway.simulator.cli", "run one simulated engine"),
    "check": ("gateway.commands.check", "check a configuration file"),
    "doctor": ("gateway.commands.doctor", "find mistakes in the set-up of the gateway and its engines"),
    "canon": ("gateway.commands.canon", "show what canonicalization does to a request, rule by rule"),
    "analyze": ("gateway.commands.analyze", "find out from recorded requests what a prefix cache would bring"),
    "simulate": ("gateway.commands.simulate", "what policies and cache sizes would bring, on a recorded trace"),
    "diff": ("gateway.commands.diff", "show where two requests first differ, why, and the rule that removes it"),
    "key": ("gateway.commands.key", "make an API key or an admin token"),
    "reset": ("gateway.commands.reset", "make cached prefixes unreachable"),
    "report": ("gateway.commands.report", "show what each tenant used in a month, and its cost"),
    "measure": ("gateway.commands.measure", "compare cold with warm, gateway with engine, and more, with intervals"),
    "warm": ("gateway.commands.warm", "fill the replicas' caches with declared prefixes"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command line."""
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        return 130


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="prefix-gateway",
        description="OpenAI-compatible gateway that sends each request to the replica holding its prompt prefix warm.",
        epilog="example: prefix-gateway serve --config config/gateway.yaml",
    )
    parser.add_argument("--version", action="version", version=f"prefix-gateway {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    called = next((word for word in given if not word.startswith("-")), None)
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == called:
            import_module(module).add_arguments(command)
    args = parser.parse_args(given)
    return int(import_module(_COMMANDS[args.command][0]).run(args))


if __name__ == "__main__":
    sys.exit(main())
