"""Derives the options of the explain worker from the settings."""

import json
from pathlib import Path

from gateway.config.settings import Settings
from gateway.core.ports import ExplainObserver
from gateway.explain.worker import ExplainClient
from gateway.explain.worker.explain_messages import CanonOptions, ModelOptions
from gateway.explain.worker.front import COMMAND, SHARED_COMMAND


def explain_front(
    settings: Settings,
    observer: ExplainObserver,
    *,
    at: Path | None = None,
    door: int | None = None,
    hears: bool = True,
) -> ExplainClient:
    """The client of the explain worker. Reads the chat templates.

    Args:
        settings: The configuration.
        observer: Counts the results.
        at: Address of an explain worker that another process started.
        door: Descriptor of the socket at which it listens, if it is started here for several gateways.
        hears: Whether messages of other gateways are passed on to it.
    """
    command = COMMAND if door is None else SHARED_COMMAND
    gpus, canon = _gpus(settings), _canon_terms(settings)
    tells = settings.state is not None
    return ExplainClient(
        settings.explain, observer, gpus, canon, command=command, at=at, door=door, tells=tells, hears=hears
    )


async def configure_explain(front: ExplainClient, settings: Settings) -> None:
    """Apply changed settings."""
    await front.configure(settings.explain, _gpus(settings), _canon_terms(settings))


def _gpus(settings: Settings) -> dict[str, float]:
    return {model.id: model.gpus_per_replica for model in settings.models}


def _canon_terms(settings: Settings) -> CanonOptions:
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
