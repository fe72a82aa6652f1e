"""Derives the options of components from the settings: prefix spaces, audit log, explain worker and others."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.admission import Limits
from gateway.config.server_settings import AdminTokenSettings
from gateway.config.settings import Settings
from gateway.config.telemetry_settings import AuditSettings
from gateway.core.canonical import RuleModes
from gateway.core.ports import ExplainObserver
from gateway.core.tenant import PersonalDataMode
from gateway.core.worker_place import WorkerPlace
from gateway.explain.worker import ExplainClient
from gateway.explain.worker.explain_client import COMMAND
from gateway.explain.worker.explain_messages import CanonOptions, ModelOptions
from gateway.spaces import EpochFile, SpaceRules
from gateway.stats.prices import TokenPrices


def space_rules(settings: Settings) -> SpaceRules:
    """Isolation and lifetime of prefix spaces."""
    spaces = settings.spaces
    idle_ttl_seconds, max_age_seconds = spaces.lifetimes(isolated=settings.isolation != "none")
    return SpaceRules(
        isolation=settings.isolation,
        secret=spaces.secret.get_secret_value().encode() if spaces.secret else b"",
        idle_ttl_seconds=idle_ttl_seconds,
        max_age_seconds=max_age_seconds,
        max_spaces=spaces.max_spaces,
        prompts_expire=any(
            version.idle_ttl_seconds is not None or version.max_age_seconds is not None
            for prompt in settings.prompts.values()
            for version in prompt.versions.values()
        ),
    )


def admin_tokens(settings: Settings) -> tuple[str | None, Sequence[AdminTokenSettings]]:
    """Credentials of the admin port: ``server.admin_token``, and the tokens with roles."""
    server = settings.server
    return server.admin_token.get_secret_value() if server.admin_token else None, server.admin_tokens


def audit_settings(settings: Settings, place: WorkerPlace | None) -> AuditSettings:
    """Audit settings with the file of this process: each worker writes its own."""
    file = settings.audit.file
    if place is None or file is None or file == "stdout":
        return settings.audit
    return settings.audit.model_copy(update={"file": str(place.own(Path(file)))})


def spaces_file(settings: Settings, place: WorkerPlace | None) -> EpochFile | None:
    """The file in which this process keeps the epochs of spaces; None: they are not kept."""
    file = settings.spaces.file
    if place is not None:
        # Without a configured file, a reset still has to survive the restart of a worker.
        file = place.own(file) if file else place.spaces_file
    return EpochFile(file) if file else None


def canon_modes(settings: Settings) -> dict[str, RuleModes]:
    """Modes of canonicalization rules, by model that overrides them."""
    return {model.id: model.canon for model in settings.models if model.canon}


def application_limits(settings: Settings) -> dict[str, Limits]:
    """Limits of the registered prompts that have any, by id."""
    limits = {name: Limits.of(prompt) for name, prompt in settings.prompts.items()}
    return {name: each for name, each in limits.items() if each != Limits()}


def personal_data_mode(settings: Settings) -> PersonalDataMode:
    """The personal data mode of tenants without a mode of their own."""
    return PersonalDataMode(settings.personal_data.mode)


def explain_front(
    settings: Settings,
    observer: ExplainObserver,
    *,
    at: Path | None = None,
    listen_fd: int | None = None,
    receives_seen: bool = True,
) -> ExplainClient:
    """The client of the explain worker. Reads the chat templates.

    Args:
        settings: The configuration.
        observer: Counts the results.
        at: Address of an explain worker that another process started.
        listen_fd: Descriptor of the socket at which it listens, if it is started here for several gateways.
        receives_seen: Whether messages of other gateways are passed on to it.
    """
    gpus, canon = _gpus(settings), _canon_options(settings)
    publishes_seen = settings.state is not None
    return ExplainClient(
        settings.explain,
        observer,
        gpus,
        canon,
        experiment=_experiment_options(settings),
        token_prices=_token_prices(settings),
        command=COMMAND,
        socket_path=at,
        listen_fd=listen_fd,
        publishes_seen=publishes_seen,
        receives_seen=receives_seen,
    )


async def configure_explain(front: ExplainClient, settings: Settings) -> None:
    """Apply changed settings to the explain worker."""
    await front.configure(
        settings.explain,
        _gpus(settings),
        _canon_options(settings),
        experiment=_experiment_options(settings),
        token_prices=_token_prices(settings),
    )


def _gpus(settings: Settings) -> dict[str, float]:
    return {model.id: model.gpus_per_replica for model in settings.models}


def _token_prices(settings: Settings) -> dict[str, TokenPrices]:
    """Prices by model; those of an empty name are the default."""
    by_model = {"": settings.cost} | {model.id: model.cost for model in settings.models if model.cost is not None}
    return {
        model: TokenPrices(cost.prompt_per_million, cost.cached_per_million, cost.completion_per_million)
        for model, cost in by_model.items()
    }


def _experiment_options(settings: Settings) -> dict[str, float | str] | None:
    """Settings of the experiment, and when they were applied: samples of requests before that are left out."""
    if not settings.experiment.cold_share:
        return None
    return settings.experiment.model_dump() | {"since": time.time()}


def _canon_options(settings: Settings) -> CanonOptions:
    """What the explain worker needs to evaluate canonicalization rules. Reads the chat templates."""
    models = {}
    for model in settings.models:
        if model.tokenizer == "engine":
            continue  # the explain worker has no tokenizer for it
        template = model.chat_template.read_text(encoding="utf-8") if model.chat_template else None
        content_format = None if model.content_format == "auto" else model.content_format
        arguments = json.dumps(model.chat_template_kwargs).encode()
        models[model.id] = ModelOptions(model.tokenizer, template, arguments, content_format)
    return CanonOptions(settings.canon.model_dump_json().encode(), models)
