"""The application that a request names; a body with ``template`` gets the messages of the registered prompt."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.admission.prompt_registry import PROMPT_ID, PROMPT_VERSION, PromptRegistry, check_model, same_application
from gateway.canon.rewrite import rewritten
from gateway.core.errors import BadRequest, NotFound
from gateway.core.request import Endpoint
from gateway.core.tenant import Caller

_MAX_BYTES = 4 * 1024 * 1024
"""Largest body with ``template``: writing a larger one again blocks other requests for more than 20 ms."""

_OWN = ("template", "variables")
"""Members of the body that engines do not get."""


class Asked(NamedTuple):
    """A request, before or after its prompt was found.

    Attributes:
        body: The body.
        fields: The body parsed.
        caller: The caller; afterwards with the application.
    """

    body: bytes
    fields: dict[str, Any]
    caller: Caller


def asked_prompt(prompts: PromptRegistry, headers: Mapping[bytes, bytes], endpoint: Endpoint, request: Asked) -> Asked:
    """Find the application that headers or body name, and fill in the messages of a ``template``.

    Args:
        prompts: The registered prompts.
        headers: The last header of each name.
        endpoint: Which API was called.
        request: The request as it came; its ``messages`` are valid if they are not empty.

    Raises:
        BadRequest: the prompt, its variables or its model do not fit.
        NotFound: there is no such prompt or version.
    """
    body, fields, caller = request
    given = headers.get(PROMPT_ID), headers.get(PROMPT_VERSION)
    named = prompts.named(*given, caller) if any(given) else None
    if prompts:
        _check_own(fields, endpoint)
    if "template" not in fields or endpoint is not Endpoint.CHAT or (not prompts and "messages" in fields):
        if named is None:
            return request  # an engine may know a member of this name
        if named.version is not None and fields.get("model") is not None:
            check_model(named, fields["model"])
        return Asked(body, fields, named.caller)
    if not prompts:
        raise NotFound(
            "There are no registered prompts here (`template`). Send `messages`, or have `prompts` configured.",
            param="template",
            code="prompt_not_found",
        )
    used = prompts.template(fields["template"], caller)
    if named is not None:
        same_application(used, named)
    if len(body) > _MAX_BYTES:
        raise BadRequest(
            f"A body with `template` may have {_MAX_BYTES} bytes. Send what is longer as messages of your own, with"
            " the header x-prompt-id.",
            param="template",
            code="template_body_too_large",
        )
    filled = {name: value for name, value in fields.items() if name not in _OWN}
    if used.version is not None and used.version.model is not None:
        if filled.get("model") is None:
            filled["model"] = used.version.model
        check_model(used, filled["model"])
    filled["messages"] = [*prompts.messages(used, fields.get("variables")), *_own_messages(fields)]
    return Asked(rewritten(body, fields, filled), filled, used.caller)


def _check_own(fields: Mapping[str, Any], endpoint: Endpoint) -> None:
    """Refuse ``template`` and ``variables`` where they would be ignored.

    Raises:
        BadRequest: they are.
    """
    if "template" in fields and endpoint is not Endpoint.CHAT:
        raise BadRequest(
            "`template` is for /v1/chat/completions. Send `prompt` alone here, and name its prompt in the header"
            " x-prompt-id.",
            param="template",
            code="unsupported_parameter",
        )
    if "template" not in fields and fields.get("variables") is not None:
        raise BadRequest(
            "`variables` needs `template`, the prompt that they are for. Add it, such as support@v3, or leave"
            " `variables` out.",
            param="variables",
            code="missing_required_parameter",
        )


def _own_messages(fields: Mapping[str, Any]) -> list[Any]:
    """The client's own messages, which follow those of the prompt."""
    messages = fields.get("messages")
    if messages is None:
        return []
    if not isinstance(messages, list):
        raise BadRequest("`messages` must be a list of messages.", param="messages", code="invalid_type")
    return messages
