"""The prefixes of registered prompts that are to be warmed: the messages of their current versions."""

from collections.abc import Callable, Iterator, Sequence

import structlog

from gateway.admission.prompt_registry import PromptRegistry
from gateway.core.errors import GatewayError
from gateway.core.tenant import Caller
from gateway.warmup.declared import Declared, Malformed, declare

_log = structlog.get_logger("gateway.warmup")


def registered_prefixes(registry: PromptRegistry, only_model: str | None) -> list[Declared]:
    """The prefixes of all current versions that are to be warmed, one for each tenant that may use them.

    Args:
        registry: The prompts in force.
        only_model: The model of versions that name none; None if there are several.
    """
    return list(_prefixes(registry, only_model))


def in_application(registry: PromptRegistry) -> Callable[[Caller, str], Caller]:
    """A function that returns a caller in an application, named as ``id@version`` or ``id``.

    It raises ``Malformed`` for a malformed name, and for a version that is not registered.
    """

    def named(caller: Caller, application: str) -> Caller:
        prompt_id, _, version = application.partition("@")
        try:
            encoded = prompt_id.encode("latin-1", "replace"), version.encode("latin-1", "replace") or None
            return registry.named(*encoded, caller).caller
        except GatewayError as error:
            raise Malformed(("application",), error.message, error.code or "invalid_value") from None

    return named


def _prefixes(registry: PromptRegistry, only_model: str | None) -> Iterator[Declared]:
    for application, prompt, version in registry.warmed():
        tenants: Sequence[str | None] = sorted(prompt.tenants) if prompt.tenants is not None else (None,)
        for tenant in tenants:
            entry = {"model": version.model or only_model, "tenant": tenant, "application": application.name}
            try:
                yield declare(entry | {"messages": registry.default_messages(application, version)})
            except (GatewayError, Malformed) as error:
                _log.warning("warming_prompt_left_out", prompt=application.name, problem=error.message)
                break
