"""The set-up of a trial of rules on requests from files: the rules, the tenant, the model's tokenizer, the time.

Shared by ``canon`` and ``diff``: options ``--config``, ``--model``, ``--tenant`` and ``--now``.
"""

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from gateway.admission.callers import TenantKeys
from gateway.api.parse import parse_request
from gateway.canon.rulebook import Modes, ModeTable
from gateway.config.canon_settings import CanonSettings
from gateway.config.server_settings import ServerSettings
from gateway.config.settings import ModelSettings, Settings, load_settings
from gateway.core.errors import GatewayError, TokenizerUnavailable
from gateway.core.ids import RequestId, TenantId
from gateway.core.json_portions import JsonLimits
from gateway.core.portions import finished
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import EVERYBODY, Caller, PersonalDataMode, Tenant, is_name
from gateway.evaluation.bad_input import BadInput
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

_BUILT_IN = "builtin:demo"

NO_MODEL = "any"
"""The model of a body that names none."""


class TrialSetup(NamedTuple):
    """The rules of a trial.

    Attributes:
        settings: Settings of the rules.
        caller: The tenant.
        modes: Modes of the rules for this model and tenant; None without a configuration.
        model: The model; None without a configuration.
        limits: Limits of a request's JSON.
    """

    settings: CanonSettings
    caller: Caller
    modes: Modes | None
    model: ModelSettings | None
    limits: JsonLimits


def add_setup_arguments(parser: argparse.ArgumentParser) -> None:
    """The options ``--config``, ``--model`` and ``--tenant``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration with rules and tokenizer (default: all rules, with a small built-in tokenizer)",
    )
    parser.add_argument("--model", metavar="ID", help="the model's rules and tokenizer (default: the request's own)")
    parser.add_argument("--tenant", metavar="ID", help="the tenant's rules")


def trial_setup(args: argparse.Namespace, body: Mapping[str, Any]) -> TrialSetup:
    """The set-up that the options select.

    Args:
        args: The options of ``add_setup_arguments``.
        body: The request, which may name its model.

    Raises:
        ConfigInvalid: the configuration cannot be used.
        BadInput: it has no such model or tenant.
    """
    if args.config is None:
        caller = EVERYBODY if args.tenant is None else Caller(Tenant(TenantId(args.tenant)))
        return TrialSetup(CanonSettings(), caller, None, None, ServerSettings().json_limits)
    settings = load_settings(args.config)
    model = _model(settings, args.model or body.get("model"))
    caller = _caller(settings, args.tenant)
    table = ModeTable(
        settings.canon.rules,
        {each.id: each.canon for each in settings.models},
        {str(route): modes for route, modes in settings.canon.routes.items()},
    )
    modes = table.modes(model.id, _endpoint(body), caller.tenant.canon)
    return TrialSetup(settings.canon, caller, modes, model, settings.server.json_limits)


def _model(settings: Settings, wanted: Any) -> ModelSettings:
    if wanted is None and len(settings.models) == 1:
        return settings.models[0]
    found = next((model for model in settings.models if model.id == wanted), None)
    if found is None:
        problem = "the request names no model" if wanted is None else f"the configuration has no model {wanted!r}"
        known = ", ".join(model.id for model in settings.models)
        raise BadInput(f"{problem}: choose with --model one of {known}")
    return found


def _caller(settings: Settings, wanted: str | None) -> Caller:
    tenants = TenantKeys(settings.tenants, PersonalDataMode(settings.personal_data.mode))
    if wanted is None:
        return tenants.default_caller
    found = tenants.named(wanted) if is_name(wanted) else None
    if found is None:
        known = ", ".join(tenant.id for tenant in settings.tenants) or "none"
        raise BadInput(f"the configuration has no tenant {wanted!r}; its tenants: {known}")
    return found


def _endpoint(body: Mapping[str, Any]) -> Endpoint:
    return Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS


def request_of(place: str, body: Mapping[str, Any], rules: TrialSetup, model: str | None) -> ChatRequest:
    """A body as the gateway reads it.

    Raises:
        BadInput: a gateway would refuse it.
    """
    named = model or (rules.model.id if rules.model else None) or body.get("model")
    named = NO_MODEL if named is None else named
    asked = json.dumps({**body, "model": named}).encode()
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
            received_at=0.0,
            caller=rules.caller,
            peer="",
        )
        return finished(work)
    except GatewayError as refused:
        raise BadInput(f"{place}: not a request that a gateway takes: {refused.message}") from None


def trial_encoder(model: ModelSettings | None) -> tuple[LocalEncoder | None, str, list[str]]:
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


def time_argument(text: str) -> float:
    """A time on the command line, in Unix seconds."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-11-21T10:02:00Z, not {text!r}") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
