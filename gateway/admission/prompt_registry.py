"""The registered prompts: finds the version that a request names, and fills its texts in. Pure.

A request names a prompt in the body (``template``, with ``variables``), and the gateway makes its messages; or in the
headers ``x-prompt-id`` and ``x-prompt-version``, and brings messages of its own. Both are requests of the same
application: they share its prefix spaces, rules and lifetimes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.config.prompts_settings import Prompts, PromptSettings, PromptVersionSettings
from gateway.core.application import Application
from gateway.core.errors import BadRequest, NotFound
from gateway.core.tenant import Caller, Tenant, is_name, shown
from gateway.prompts.rendering import Renderer, filled_in

PROMPT_ID, PROMPT_VERSION = b"x-prompt-id", b"x-prompt-version"
"""Request headers that name the application of a request with messages of its own."""

_NAME_FORM = "1 to 64 characters out of A-Z a-z 0-9 . _ : -"
_LISTED = 20
"""Names of prompts and versions that an error lists."""


class UsedPrompt(NamedTuple):
    """The application of a request.

    Attributes:
        application: What the request names.
        version: Its registered version; None if it is not registered.
        caller: The caller with the application, and with its rules and lifetimes.
    """

    application: Application
    version: PromptVersionSettings | None
    caller: Caller


class PromptChanges(NamedTuple):
    """What another configuration changes in prompts that there were before.

    Attributes:
        current: The former and the new current version of each prompt whose current version is another one.
        edited: Versions (``id@version``) with other texts or other defaults than before, sorted.
        to_warm: Current versions that are to be warmed and are new, or are filled in to another text than before.
    """

    current: Mapping[str, tuple[str, str]]
    edited: Sequence[str]
    to_warm: Sequence[str]


class PromptRegistry:
    """The prompts in force. Synchronous, without I/O.

    Args:
        prompts: By id. They were checked before: texts are valid, and what they include exists.
    """

    def __init__(self, prompts: Prompts | None = None) -> None:
        self._prompts: Prompts = {}
        self._renderer = Renderer({})
        self.replace(prompts or {})

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def replace(self, prompts: Prompts) -> PromptChanges:
        """Put other prompts in force, for the requests that follow."""
        before = self._prompts
        warmed_before = self._warmed_texts()
        self._prompts = dict(prompts)
        self._renderer = Renderer(
            {
                f"{name}@{number}": version.messages[0].content
                for name, prompt in prompts.items()
                for number, version in prompt.versions.items()
                if len(version.messages) == 1
            }
        )
        current = {
            name: (before[name].current, prompt.current)
            for name, prompt in prompts.items()
            if name in before and before[name].current != prompt.current
        }
        edited = [
            f"{name}@{number}"
            for name, prompt in prompts.items()
            if name in before
            for number, version in prompt.versions.items()
            if (then := before[name].versions.get(number)) is not None
            and (list(then.messages), then.variables) != (list(version.messages), version.variables)
        ]
        to_warm = [f"{name}@{after}" for name, (_, after) in current.items()]
        for name, messages in self._warmed_texts().items():
            # An edited text also changes those that include it.
            if name not in to_warm and warmed_before.get(name, messages) != messages:
                to_warm.append(name)
        return PromptChanges(current, sorted(edited), to_warm)

    def named(self, prompt_id: bytes | None, version: bytes | None, caller: Caller) -> UsedPrompt:
        """The application that the headers of a request name.

        Args:
            prompt_id: Value of ``x-prompt-id``; None without it.
            version: Value of ``x-prompt-version``; None without it.
            caller: The caller of the request.

        Raises:
            BadRequest: a header is malformed, or there is a version without an id.
            NotFound: the prompt is registered, and has no such version.
        """
        if not prompt_id:
            raise BadRequest(
                "The header x-prompt-version says of which version, and x-prompt-id of which prompt. Send both, or"
                " x-prompt-id alone.",
                param="x-prompt-id",
                code="missing_required_parameter",
            )
        name = _name(prompt_id, "x-prompt-id")
        number = _name(version, "x-prompt-version") if version else ""
        prompt = self._prompts.get(name)
        if prompt is None or not _may_use(caller, prompt):
            application = Application(name, number, hidden=prompt is not None)
            return UsedPrompt(application, None, replace(caller, application=application))
        return self._used(name, prompt, number, caller, "x-prompt-version")

    def template(self, template: object, caller: Caller) -> UsedPrompt:
        """The application that the member ``template`` of a body names: ``id@version``, or ``id`` for the current one.

        Raises:
            BadRequest: it is malformed, or the version has no messages.
            NotFound: there is no such prompt, or no such version.
        """
        if not isinstance(template, str):
            raise BadRequest(
                "`template` must be a string: the id of a prompt, such as support, or id and version, such as"
                " support@v3.",
                param="template",
                code="invalid_type",
            )
        name, at, number = template.partition("@")
        if at and not number:
            raise BadRequest(
                f"`template` is {shown(template)}, without a version behind the @. Add one, such as support@v3, or"
                " leave the @ out for the current version.",
                param="template",
                code="invalid_value",
            )
        prompt = self._prompts.get(name)
        if prompt is None or not _may_use(caller, prompt):
            known = some_of(name for name, each in self._prompts.items() if _may_use(caller, each))
            raise NotFound(
                f"There is no prompt {shown(name)} (`template`). Known prompts: {known}.",
                param="template",
                code="prompt_not_found",
            )
        used = self._used(name, prompt, number, caller, "template")
        if used.version is None or not used.version.messages:
            raise BadRequest(
                f"The prompt {used.application.name} has no messages here. Send yours, and name the prompt in the"
                " headers x-prompt-id and x-prompt-version.",
                param="template",
                code="prompt_without_messages",
            )
        return used

    def messages(self, used: UsedPrompt, variables: object) -> list[dict[str, str]]:
        """The messages of a prompt, filled in.

        Args:
            used: A result of ``template``.
            variables: The member ``variables`` of the body; None without it.

        Raises:
            BadRequest: the variables do not fit the prompt.
        """
        name, version = used.application.name, used.version
        if version is None:
            return []
        if variables is not None and not isinstance(variables, dict):
            raise BadRequest(
                "`variables` must be an object with a value for each variable of the prompt.",
                param="variables",
                code="invalid_type",
            )
        return self._filled(name, version, variables or {})

    def warmed(self) -> Iterator[tuple[Application, PromptSettings, PromptVersionSettings]]:
        """The current versions that are to be warmed."""
        for name, prompt in self._prompts.items():
            version = prompt.versions[prompt.current]
            if version.warm:
                yield Application(name, prompt.current, registered=True), prompt, version

    def default_messages(self, application: Application, version: PromptVersionSettings) -> list[dict[str, str]]:
        """The messages of a version, filled in with the defaults of its variables.

        Raises:
            BadRequest: a variable has no default, or the text cannot be filled in with the defaults.
        """
        return self._filled(application.name, version, {})

    def _warmed_texts(self) -> dict[str, list[dict[str, str]] | None]:
        """The messages of the versions that are to be warmed, by ``id@version``; None if they cannot be filled in."""
        found: dict[str, list[dict[str, str]] | None] = {}
        for application, _, version in self.warmed():
            try:
                found[application.name] = self.default_messages(application, version)
            except BadRequest:
                found[application.name] = None
        return found

    def _filled(self, name: str, version: PromptVersionSettings, variables: Mapping[str, Any]) -> list[dict[str, str]]:
        values = filled_in(name, version.variables, variables)
        texts = self._renderer.rendered(name, [message.content for message in version.messages], values)
        return [{"role": message.role, "content": text} for message, text in zip(version.messages, texts, strict=True)]

    def _used(self, name: str, prompt: PromptSettings, number: str, caller: Caller, param: str) -> UsedPrompt:
        version = prompt.versions.get(number or prompt.current)
        if version is None:
            raise NotFound(
                f"The prompt {name} has no version {shown(number)} (`{param}`). Its versions:"
                f" {some_of(prompt.versions)}; current: {prompt.current}.",
                param=param,
                code="prompt_version_not_found",
            )
        application = Application(
            name,
            number or prompt.current,
            registered=True,
            idle_ttl_seconds=version.idle_ttl_seconds,
            max_age_seconds=version.max_age_seconds,
        )
        tenant = _of_version(caller.tenant, version)
        return UsedPrompt(application, version, replace(caller, tenant=tenant, application=application))


def check_model(used: UsedPrompt, model: object) -> None:
    """Refuse a request for another model than the prompt is for.

    Raises:
        BadRequest: the prompt names a model, and the request another one.
    """
    version = used.version
    if version is not None and version.model is not None and model != version.model:
        raise BadRequest(
            f"The prompt {used.application.name} is for the model {version.model!r}, and `model` names another. Leave"
            f" `model` out, or name {version.model!r}.",
            param="model",
            code="prompt_of_another_model",
        )


def same_application(template: UsedPrompt, headers: UsedPrompt) -> None:
    """Refuse a request whose headers name another application than its body.

    Raises:
        BadRequest: they differ.
    """
    if template.application.name != headers.application.name:
        raise BadRequest(
            f"`template` names {template.application.name}, and the headers x-prompt-id and x-prompt-version name"
            f" {headers.application.name}. Leave the headers out.",
            param="template",
            code="conflicting_prompts",
        )


def _of_version(tenant: Tenant, version: PromptVersionSettings) -> Tenant:
    """A tenant for the requests of a prompt: the prompt's rules go before its own; of two lifetimes the shorter holds,
    because a tenant's is a limit of how long its data may be reused."""
    if not (version.canon or version.idle_ttl_seconds or version.max_age_seconds):
        return tenant
    return replace(
        tenant,
        canon=tuple(sorted({**dict(tenant.canon), **version.canon}.items())),
        idle_ttl_seconds=_shorter(tenant.idle_ttl_seconds, version.idle_ttl_seconds),
        max_age_seconds=_shorter(tenant.max_age_seconds, version.max_age_seconds),
    )


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _may_use(caller: Caller, prompt: PromptSettings) -> bool:
    return prompt.tenants is None or caller.tenant.id in prompt.tenants


def _name(value: bytes, header: str) -> str:
    text = value.decode("latin-1").strip()
    if not is_name(text):
        raise BadRequest(
            f"The header {header} holds {shown(text)}; expected {_NAME_FORM}.", param=header, code="invalid_header"
        )
    return text


def some_of(names: Iterable[str]) -> str:
    """Names as a list to read, sorted; the first ones if there are many."""
    known = sorted(names)
    further = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return ", ".join(known[:_LISTED]) + further or "none"
