"""``prefix-gateway canon FILE``: what canonicalization does to a request, rule by rule."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from gateway.admission.callers import TenantKeys
from gateway.api.parse import parse_request
from gateway.canon.rulebook import RULES, Modes, ModeTable, rulebook
from gateway.commands.broken_pipe import printed
from gateway.commands.canon_report import Tried, as_json, as_lines
from gateway.commands.canon_trial import Trial
from gateway.commands.request_file import read_requests
from gateway.config.canon_settings import CanonSettings
from gateway.config.server_settings import ServerSettings
from gateway.config.settings import ModelSettings, Settings, load_settings
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.errors import ConfigInvalid, GatewayError, TokenizerUnavailable
from gateway.core.ids import RequestId, TenantId
from gateway.core.json_portions import JsonLimits
from gateway.core.portions import finished
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import EVERYBODY, Caller, PersonalDataMode, Tenant, is_name
from gateway.evaluation.bad_input import BadInput
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

_DONE = 0
_BAD_USAGE = 2
_BUILT_IN = "builtin:demo"
_NO_MODEL = "any"
"""The model of a body that names none."""

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


class _Unusable(Exception):
    """A problem that prevents the trial; the message says how to fix it."""


class _Rules(NamedTuple):
    """The rules and the encoder of a trial."""

    settings: CanonSettings
    caller: Caller
    modes: Modes | None
    model: ModelSettings | None
    limits: JsonLimits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", help="the request, or the turns; - reads standard input")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration with rules and tokenizer (default: all rules, with a small built-in tokenizer)",
    )
    parser.add_argument("--model", metavar="ID", help="the model's rules and tokenizer (default: the request's own)")
    parser.add_argument("--tenant", metavar="ID", help="the tenant's rules")
    parser.add_argument(
        "--rule",
        action="append",
        metavar="NAME",
        choices=[str(rule) for rule in RULES],
        help=f"only this rule, also if it is off; may be repeated: {', '.join(RULES)}",
    )
    parser.add_argument(
        "--now", metavar="TIME", type=_time, help="the time it is, such as 2026-11-21T10:02:00Z (default: now)"
    )
    parser.add_argument(
        "--context-limit",
        metavar="N",
        type=_tokens,
        default=0,
        help="tokens that the model takes, which a gateway learns from the engine; history-trim goes by it",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        tried = _tried(args)
    except _Unusable as problem:
        print(problem, file=sys.stderr)
        return _BAD_USAGE
    text = json.dumps(as_json(tried)) + "\n" if args.json else _report(tried)
    printed(text)
    return _DONE


def _report(tried: Tried) -> str:
    """The text report, coloured on a terminal."""
    console = Console(highlight=False)
    with console.capture() as report:
        for line, style in as_lines(tried):
            console.print(Text(line, style), soft_wrap=True)
    return report.get()


def _tried(args: argparse.Namespace) -> Tried:
    bodies = _bodies(args.file)
    rules = _rules(args, bodies[0][1])
    requests = [_request(place, body, rules, args.model) for place, body in bodies]
    names = [RuleName(name) for name in args.rule or RULES]
    if rules.modes is not None and not args.rule:
        names = [name for name, mode in zip(RULES, rules.modes, strict=True) if mode is not RuleMode.OFF]
    encoder, tokenizer, notes = _encoder(rules.model)
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
        model="" if requests[0].model == _NO_MODEL else requests[0].model,
        tenant=rules.caller.tenant.id,
        tokenizer=tokenizer,
        modes=None if rules.modes is None else dict(zip(RULES, rules.modes, strict=True)),
        rules=names,
        notes=notes,
        turns=turns,
    )


def _bodies(file: str) -> list[tuple[str, dict[str, Any]]]:
    """The requests of a file, each with its place."""
    try:
        return [(each.place, dict(each.fields)) for each in read_requests(file)]
    except BadInput as problem:
        raise _Unusable(str(problem)) from None


def _rules(args: argparse.Namespace, body: Mapping[str, Any]) -> _Rules:
    if args.config is None:
        caller = EVERYBODY if args.tenant is None else Caller(Tenant(TenantId(args.tenant)))
        return _Rules(CanonSettings(), caller, None, None, ServerSettings().json_limits)
    try:
        settings = load_settings(args.config)
    except ConfigInvalid as invalid:
        raise _Unusable("\n".join(invalid.problems)) from None
    model = _model(settings, args.model or body.get("model"))
    caller = _caller(settings, args.tenant)
    table = ModeTable(
        settings.canon.rules,
        {each.id: each.canon for each in settings.models},
        {str(route): modes for route, modes in settings.canon.routes.items()},
    )
    modes = table.modes(model.id, _endpoint(body), caller.tenant.canon)
    return _Rules(settings.canon, caller, modes, model, settings.server.json_limits)


def _model(settings: Settings, wanted: Any) -> ModelSettings:
    if wanted is None and len(settings.models) == 1:
        return settings.models[0]
    found = next((model for model in settings.models if model.id == wanted), None)
    if found is None:
        problem = "the request names no model" if wanted is None else f"the configuration has no model {wanted!r}"
        known = ", ".join(model.id for model in settings.models)
        raise _Unusable(f"prefix-gateway canon: {problem}: choose with --model one of {known}")
    return found


def _caller(settings: Settings, wanted: str | None) -> Caller:
    tenants = TenantKeys(settings.tenants, PersonalDataMode(settings.personal_data.mode))
    if wanted is None:
        return tenants.default_caller
    found = tenants.named(wanted) if is_name(wanted) else None
    if found is None:
        known = ", ".join(tenant.id for tenant in settings.tenants) or "none"
        raise _Unusable(f"prefix-gateway canon: the configuration has no tenant {wanted!r}; its tenants: {known}")
    return found


def _endpoint(body: Mapping[str, Any]) -> Endpoint:
    return Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS


def _request(place: str, body: dict[str, Any], rules: _Rules, model: str | None) -> ChatRequest:
    """A body as the gateway reads it."""
    named = model or (rules.model.id if rules.model else None) or body.get("model")
    named = _NO_MODEL if named is None else named
    asked = json.dumps(body | {"model": named}).encode()
    try:
        work = parse_request(
            _endpoint(body),
            b"",
            asked,
            (),
            models=[named],
            limits=rules.limits,
            hold=lambda _: None,
            request_id=RequestId(""),
            session=None,
            received_at=0.0,
            caller=rules.caller,
            peer="",
        )
        return finished(work)
    except GatewayError as refused:
        raise _Unusable(f"{place}: not a request that a gateway takes: {refused.message}") from None


def _encoder(model: ModelSettings | None) -> tuple[LocalEncoder | None, str, list[str]]:
    """The encoder that counts tokens, its name, and notes for the report."""
    if model is None:
        note = (
            f"Tokens are counted with the built-in tokenizer ({_BUILT_IN}), and all rules have their default settings;"
            " --config takes yours."
        )
        return load_local(_BUILT_IN), _BUILT_IN, [note]
    if model.tokenizer == "engine":
        note = f"No tokens are counted: the tokenizer of {model.id} is only in its engine (models[].tokenizer)."
        return None, "", [note]
    try:
        template = model.chat_template.read_text(encoding="utf-8") if model.chat_template else None
        encoder = load_local(
            model.tokenizer,
            chat_template=template,
            template_arguments=model.chat_template_kwargs,
            content_format=None if model.content_format == "auto" else model.content_format,
        )
    except (TokenizerUnavailable, OSError, ValueError) as error:
        return None, "", [f"No tokens are counted: {error}"]
    return encoder, model.tokenizer, [f"Tokens are counted with {model.tokenizer}."]


def _time(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-11-21T10:02:00Z, not {text!r}") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _tokens(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number of tokens, not {text!r}")
    return int(text)
