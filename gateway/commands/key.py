"""``prefix-gateway key``: makes an API key or an admin token, and its entry for the configuration."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping

from gateway.core.api_keys import hash_key, new_key, parse_expiry, parse_hash, short_id
from gateway.core.tenant import check_name

_DONE = 0
_BAD_USAGE = 2
_ROLES = ("read", "operate")
_ADMIN_PREFIX = "pgw_admin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = (
        "Make a new API key of a tenant, or a new token for the admin port, and print it this once, together with the\n"
        "lines to put into the configuration. Those hold its hash only; nothing is stored or sent."
    )
    parser.epilog = (
        "example:\n"
        "  prefix-gateway key --tenant acme --id ci --expires 2027-01-31\n"
        "  prefix-gateway key --admin --role read --id grafana"
    )
    parser.add_argument("--tenant", type=_argument(check_name), metavar="ID", help="tenant that the key is for")
    parser.add_argument(
        "--id", type=_argument(check_name), metavar="NAME", help="name in the audit log (default: from its hash)"
    )
    parser.add_argument(
        "--expires",
        type=_argument(_future),
        metavar="DATE",
        help="last day (UTC) on which it is valid, or a time such as 2027-01-31T12:00:00Z (default: valid for ever)",
    )
    parser.add_argument("--admin", action="store_true", help="make a token for the admin port")
    parser.add_argument("--role", choices=_ROLES, help="what the admin token may do (with --admin; default: read)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Make a key and print it to standard output. Returns the exit code."""
    if args.admin and args.tenant is not None:
        return _bad_usage("--tenant does not go with --admin: admin tokens belong to no tenant.")
    if args.role is not None and not args.admin:
        return _bad_usage("--role goes with --admin: keys of tenants have no role.")
    key = new_key(_ADMIN_PREFIX) if args.admin else new_key()
    entry = {"hash": hash_key(key)}
    if args.id is not None or args.admin:
        entry["id"] = args.id or short_id(parse_hash(entry["hash"]))
    if args.admin:
        entry["role"] = args.role or _ROLES[0]
    if args.expires is not None:
        entry["expires"] = args.expires
    if args.json:
        tenant = {} if args.tenant is None else {"tenant": args.tenant}
        print(json.dumps({"key": key, **tenant, **entry}))
    elif args.admin:
        _show(key, "admin token", ["server:", "  admin_tokens:", f"    - {_flow(entry)}"])
    else:
        # JSON's quotes are YAML's, too, and keep a tenant called 1 or no from being read as something else.
        tenant_id = json.dumps(args.tenant or "TENANT")
        _show(key, "API key", ["tenants:", f"  - id: {tenant_id}", "    keys:", f"      - {_flow(entry)}"])
    return _DONE


def _show(key: str, kind: str, lines: list[str]) -> None:
    print(f"The {kind}, which is shown only this once (it is sent as `authorization: Bearer ...`):\n\n{key}\n")
    print("What stands for it in the configuration:\n")
    print("\n".join(lines))


def _flow(entry: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in entry.items()) + "}"


def _future(text: str) -> str:
    if parse_expiry(text) <= time.time():
        raise ValueError(f"{text} is over already")
    return text


def _argument(check: Callable[[str], str]) -> Callable[[str], str]:
    """A check as argparse wants it, which shows the message of no other exception."""

    def checked(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _bad_usage(message: str) -> int:
    print(f"prefix-gateway key: {message}", file=sys.stderr)
    return _BAD_USAGE
