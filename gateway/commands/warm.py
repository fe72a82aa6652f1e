"""``prefix-gateway warm FILE``: has a running gateway send declared prefixes to the engines."""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.commands.admin_client import (
    AdminClient,
    AdminNotReachable,
    AdminProblem,
    AdminRefused,
    add_admin_arguments,
)
from gateway.config.warmup_settings import SLOWEST
from gateway.core.errors import ConfigInvalid
from gateway.warmup.document import PrefixFile, read_prefixes

_ALL_SENT = 0
_SOME_FAILED = 1
_UNUSABLE = 2
_INTERRUPTED = 130

_LOOK_SECONDS = 0.5
_LINE_SECONDS = 5.0
"""Seconds between two lines of progress without a terminal."""

_LOST_LOOKS = 3
"""Consecutive failed polls after which the gateway counts as gone."""

_IN_PREFIX = re.compile(r"prefixes\[(\d+)\](.*)", re.DOTALL)
_PART = re.compile(r"\[(\d+)\]|\.([^.\[]+)")

DESCRIPTION = """\
Have a running gateway send declared prefixes to its replicas, one token of output each, so that their caches hold them
before the first user comes. FILE is a list of prefixes in YAML or JSON, or JSON lines; config/prefixes.yaml shows one.
It is checked first; the requests are sent by the gateway, at a bounded rate, and go on when this command is ended."""

EPILOG = """\
example:
  prefix-gateway warm config/prefixes.yaml
  prefix-gateway warm prefixes.jsonl --replica vllm-0 --replica vllm-1 --rate 10 --json

exit code: 0 everything was sent, 1 some requests failed, 2 a mistake in the file, or the gateway cannot be reached or
refuses"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", type=Path, help="the declared prefixes")
    parser.add_argument(
        "--replica", action="append", metavar="ID", help="only this replica; may be repeated (default: all)"
    )
    parser.add_argument(
        "--rate",
        type=_rate,
        metavar="R",
        help="requests a second over all replicas (default: warm.requests_per_second of the gateway)",
    )
    add_admin_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        file = read_prefixes(args.file)
    except ConfigInvalid as invalid:
        return _refused("\n".join(invalid.problems))
    order: dict[str, Any] = {"prefixes": file.values}
    if args.replica:
        order["replicas"] = args.replica
    if args.rate is not None:
        order["requests_per_second"] = args.rate
    try:
        with AdminClient.from_arguments(args) as admin:
            job = admin.post("warm", order)
            return _Watch(admin, file, job, as_json=args.json).run()
    except AdminRefused as refused:
        return _refused(_worded(refused, file))
    except AdminProblem as problem:
        return _refused(f"prefix-gateway warm: {problem.message}")


class _Watch:
    """Follows a job until it ends."""

    def __init__(self, admin: AdminClient, file: PrefixFile, job: Mapping[str, Any], *, as_json: bool) -> None:
        self._admin = admin
        self._file = file
        self._job = job
        self._as_json = as_json
        self._terminal = sys.stderr.isatty()
        self._shown: str | None = None
        self._shown_at = -math.inf

    def run(self) -> int:
        """Returns the exit code."""
        try:
            while self._job["state"] == "running":
                self._tell_progress()
                time.sleep(_LOOK_SECONDS)
                self._job = self._look()
        except KeyboardInterrupt:
            self._finish(f"Not watched any more; the job goes on: {self._where()}")
            return _INTERRUPTED
        except AdminRefused as refused:
            reason = (
                "the gateway does not know the job any more: it was restarted"
                if refused.status == 404
                else str(refused)
            )
            self._finish(f"{reason}. Not everything may have been sent.")
            return _SOME_FAILED
        except AdminNotReachable as problem:
            self._finish(f"{problem.message} The job went on as long as the gateway did: {self._where()}")
            return _UNUSABLE
        return self._report()

    def _look(self) -> Mapping[str, Any]:
        for _ in range(_LOST_LOOKS):
            try:
                return self._admin.get(f"warm/{self._job['id']}")
            except AdminNotReachable:
                time.sleep(_LOOK_SECONDS)
        return self._admin.get(f"warm/{self._job['id']}")

    def _report(self) -> int:
        job = self._job
        lines = []
        for failure in job["failures"]:
            target = failure["replica"] + (f", rank {failure['rank']}" if failure["rank"] else "")
            status = "" if failure["status"] is None else f"{failure['status']}: "
            lines.append(self._file.problem((failure["index"],), f"at {target}: {status}{failure['message']}"))
        if job["failed"] > len(lines):
            lines.append(f"and {job['failed'] - len(lines)} more")
        if job["down"]:
            lines.append(f"left out, because they are down or drain: {', '.join(job['down'])}")
        if job["state"] != "done":
            lines.append(f"cancelled: {job['reason']}")
        self._finish("\n".join(lines))
        if not self._as_json:
            failed = f", {job['failed']} failed" if job["failed"] else ""
            print(f"{job['done']} of {job['total']} requests answered{failed}, in {job['seconds']:.1f} s")
        return _ALL_SENT if job["state"] == "done" and not job["failed"] else _SOME_FAILED

    def _tell_progress(self) -> None:
        job = self._job
        failed = f", {job['failed']} failed" if job["failed"] else ""
        line = f"{job['done'] + job['failed']} of {job['total']}{failed}"
        now = time.monotonic()
        if line == self._shown or not (self._terminal or now >= self._shown_at + _LINE_SECONDS):
            return
        self._shown, self._shown_at = line, now
        print(
            *(("\r", line, "\x1b[K") if self._terminal else (line, "\n")), sep="", end="", file=sys.stderr, flush=True
        )

    def _finish(self, message: str) -> None:
        """End the progress, print the message, and print the job if requested."""
        if self._terminal and self._shown is not None:
            print("\r\x1b[K", end="", file=sys.stderr)
        if message:
            print(message, file=sys.stderr)
        if self._as_json:
            print(json.dumps(dict(self._job)))

    def _where(self) -> str:
        return f"GET {self._admin.url}/admin/api/warm/{self._job['id']}"


def _refused(message: str) -> int:
    print(message, file=sys.stderr)
    return _UNUSABLE


def _worded(refused: AdminRefused, file: PrefixFile) -> str:
    """The gateway's error, with its line in the file if it is there."""
    message = refused.message.removeprefix(f"{refused.param}: ")
    found = _IN_PREFIX.fullmatch(refused.param or "")
    if found is None:
        return f"prefix-gateway warm: {message}"
    inner = [int(index) if index else key for index, key in _PART.findall(found[2])]
    return file.problem((int(found[1]), *inner), message.removeprefix(f"`{refused.param}`: "))


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not SLOWEST <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of requests a second, at least {SLOWEST}, not {text!r}")
    return rate
