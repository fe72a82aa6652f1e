"""``prefix-gateway canon FILE``: what canonicalization does to a request, rule by rule."""

import argparse
import json
import sys
import time

from gateway.canon.rulebook import BY_DEFAULT, RULES, rulebook
from gateway.commands.argument_types import whole_number
from gateway.commands.canon_report import Tried, as_json, as_lines
from gateway.commands.canon_trial import Trial
from gateway.commands.printing import coloured, printed
from gateway.commands.request_file import read_requests
from gateway.commands.trial_setup import (
    NO_MODEL,
    add_setup_arguments,
    request_of,
    time_argument,
    trial_encoder,
    trial_setup,
)
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.errors import ConfigInvalid
from gateway.evaluation.bad_input import BadInput

_DONE = 0
_BAD_USAGE = 2

DESCRIPTION = """\
Show what canonicalization does to a request: every rule's changes in their order, the tokens of
the prompt before and after, and the prompt as it would go on. FILE is the JSON that is sent to
/v1/chat/completions (or /v1/completions); or JSON lines, one request a line: the turns of one
conversation, in which context blocks are put back as a running gateway does it. Nothing is sent
anywhere. Rules that are only observed are shown as if they were applied."""

EPILOG = """\
examples:
  prefix-gateway canon request.json
  prefix-gateway canon turns.jsonl --config config/gateway.yaml --tenant acme
  prefix-gateway canon - --rule dynamic-suffix --now 2026-11-21T10:02:00Z --json < request.json

exit code: 0 shown, 2 bad usage, or FILE is no request"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", help="the request, or the turns; - reads standard input")
    add_setup_arguments(parser)
    parser.add_argument(
        "--rule",
        action="append",
        metavar="NAME",
        choices=[str(rule) for rule in RULES],
        help=f"only this rule, also if it is off; may be repeated: {', '.join(RULES)}",
    )
    parser.add_argument(
        "--now", metavar="TIME", type=time_argument, help="the time it is, such as 2026-11-21T10:02:00Z (default: now)"
    )
    parser.add_argument(
        "--context-limit",
        metavar="N",
        type=whole_number(),
        default=0,
        help="tokens that the model takes, which a gateway learns from the engine; history-trim goes by it",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        tried = _tried(args)
    except (BadInput, ConfigInvalid) as problem:
        print(problem, file=sys.stderr)
        return _BAD_USAGE
    printed(json.dumps(as_json(tried)) + "\n" if args.json else coloured(as_lines(tried)))
    return _DONE


def _tried(args: argparse.Namespace) -> Tried:
    bodies = read_requests(args.file)
    rules = trial_setup(args, bodies[0].fields)
    requests = [request_of(each.place, each.fields, rules, args.model) for each in bodies]
    names = [RuleName(name) for name in args.rule or BY_DEFAULT]
    if rules.modes is not None and not args.rule:
        names = [name for name, mode in zip(RULES, rules.modes, strict=True) if mode is not RuleMode.OFF]
    encoder, tokenizer, notes = trial_encoder(rules.model)
    if RuleName.HISTORY_TRIM in names and not args.context_limit:
        names.remove(RuleName.HISTORY_TRIM)
        notes.append("history-trim goes by how many tokens the model takes: say so with --context-limit to try it.")
    trial = Trial(
        rulebook(rules.settings),
        names,
        rules.settings,
        encoder=encoder,
        now=time.time() if args.now is None else args.now,
        context_limit=args.context_limit,
    )
    turns = [trial.turn(request) for request in requests]
    if trial.uncounted:
        notes.append(f"Not all tokens could be counted: {trial.uncounted}.")
    return Tried(
        file="standard input" if args.file == "-" else args.file,
        model="" if requests[0].model == NO_MODEL else requests[0].model,
        tenant=rules.caller.tenant.id,
        tokenizer=tokenizer,
        modes=None if rules.modes is None else dict(zip(RULES, rules.modes, strict=True)),
        rules=names,
        notes=notes,
        turns=turns,
    )
