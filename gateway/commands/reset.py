"""``prefix-gateway reset``: ends the epochs of prefix spaces, so that their cached blocks become unreachable."""

import argparse
import json
import sys
from typing import Any

from gateway.commands.admin_client import (
    AdminClient,
    AdminNotReachable,
    AdminProblem,
    AdminRefused,
    add_admin_arguments,
)
from gateway.core.tenant import APPLICATION_FORM, is_application

_DONE = 0
_NOT_DONE = 1
_USAGE = 2
_MAX_SHOWN = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = (
        "End the epochs of prefix spaces of a running gateway: what engines have cached for them cannot be reached\n"
        "any more, at once and on every replica. Options narrow the selection; --all takes every space."
    )
    parser.epilog = (
        "Exit code: 0 done, 1 refused or nothing matched, 2 bad usage or the gateway cannot be reached.\n\n"
        "examples:\n"
        "  prefix-gateway reset --tenant acme\n"
        "  prefix-gateway reset --model smollm2 --template-version support-v3 --token-file /run/secrets/admin\n"
        "  prefix-gateway reset --all"
    )
    parser.add_argument("--model", metavar="ID", help="spaces of this model")
    parser.add_argument("--tenant", metavar="ID", help="spaces of this tenant (its group's, where groups share)")
    parser.add_argument(
        "--template-version", metavar="V", help="spaces of this version: as the admin API shows it, or the label alone"
    )
    parser.add_argument("--scope", metavar="S", help='spaces of this scope; "" for those without one')
    parser.add_argument(
        "--prompt", metavar="P", help='spaces of this application: ID, or ID@VERSION; "" for those without one'
    )
    parser.add_argument("--all", action="store_true", help="every space")
    add_admin_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    selection = {
        name: value
        for name in ("model", "tenant", "template_version", "scope", "prompt")
        if (value := getattr(args, name)) is not None
    }
    if args.all and selection:
        return _failed(args, "--all is every space: leave the other options out", _USAGE)
    if not args.all and not selection:
        return _failed(args, "say which: --model, --tenant, --template-version, --scope, --prompt, or --all", _USAGE)
    if args.prompt and not is_application(args.prompt):
        return _failed(args, f"--prompt must be {APPLICATION_FORM}", _USAGE)
    try:
        with AdminClient.from_arguments(args) as admin:
            answer = admin.post("spaces/reset", {"all": True} if args.all else selection)
            ended = _spaces(answer)
    except AdminRefused as refused:
        return _failed(args, f"refused: {refused.message}", refused.exit_code, refused.code)
    except AdminProblem as problem:
        return _failed(args, problem.message, problem.exit_code)
    if not ended:
        return _failed(
            args, "nothing matched: no prefix space of this selection is alive", _NOT_DONE, "nothing_matched"
        )
    if args.json:
        print(json.dumps({"reset": len(ended), "spaces": ended}))
        return _DONE
    print(f"{len(ended)} prefix {'space' if len(ended) == 1 else 'spaces'} reset")
    for space in ended[:_MAX_SHOWN]:
        print("  " + "  ".join(f"{name}={_plain(value)}" for name, value in space.items() if value))
    if len(ended) > _MAX_SHOWN:
        print(f"  and {len(ended) - _MAX_SHOWN} more (--json lists all)")
    return _DONE


def _spaces(answer: dict[str, Any]) -> list[dict[str, Any]]:
    spaces = answer.get("spaces")
    if not isinstance(spaces, list) or not all(isinstance(space, dict) for space in spaces):
        raise AdminNotReachable("the answer is not that of a gateway of this release")
    return spaces


def _plain(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() else repr(text)


def _failed(args: argparse.Namespace, message: str, exit_code: int, code: str | None = None) -> int:
    if args.json and exit_code == _NOT_DONE:
        print(json.dumps({"reset": 0, "spaces": [], "code": code, "problem": message}))
    else:
        print(f"prefix-gateway reset: {message}", file=sys.stderr)
    return exit_code
