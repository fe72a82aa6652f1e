"""Settings of registered prompts: texts with variables, by id and version; and the checks across them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway.config.tenant_checks import Mistake
from gateway.core.canonical import RuleModes, read_modes
from gateway.core.errors import BadRequest
from gateway.core.tenant import is_name
from gateway.prompts.includes import MAX_INCLUDE_DEPTH, include_circles, wholes
from gateway.prompts.rendering import MAX_RENDERED_CHARS, Renderer, is_value
from gateway.prompts.template_language import TemplateFacts, TemplateMistake, template_facts

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_NAME_FORM = "expected a name of 1 to 64 characters out of A-Z a-z 0-9 . _ : -"


class PromptMessageSettings(BaseModel):
    """One message of a registered prompt."""

    model_config = _STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Its role."""

    content: str
    """Its text, a Jinja template: `{{ name }}` prints a variable, `{% if name %}…{% endif %}` and
    `{% for item in list %}…{% endfor %}` decide and repeat, `{% include 'tone@v1' %}` is the text of another prompt
    that has one message. There are filters with constant arguments, and no calls, assignments and loops inside loops. A
    literal `${` is written as `$${`, because the file has variables of its own."""


class PromptVersionSettings(BaseModel):
    """One version of a registered prompt. Clients may rely on a version: change a text by adding another one."""

    model_config = _STRICT

    messages: tuple[PromptMessageSettings, ...] = ()
    """Its messages, in their order. Messages that a client sends with `template` follow them. Empty: clients send their
    own, and name the prompt in the headers `x-prompt-id` and `x-prompt-version`."""

    variables: dict[str, Any] = {}
    """Its variables with their defaults: text, a number, true or false, or a list of these; each is used by a text.
    A value that a client sends must be of the default's type. Null: there is no default, so every request must give
    it."""

    model: str | None = None
    """Id of the only model it is for; a request may leave `model` out then. Null: any model."""

    canon: Annotated[RuleModes, BeforeValidator(read_modes)] = {}
    """Modes of canonicalization rules for its requests; they go before those of the tenant, the route and the model. A
    rule that is not named is as there."""

    idle_ttl_seconds: float | None = Field(default=None, gt=0)
    """Seconds without a request after which its prefix spaces end. Null: as the tenant's. Where the tenant has a
    value of its own, the shorter one holds. Too small: every pause makes the next prompt cold."""

    max_age_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which its prefix spaces end in any case. Null: as the tenant's. Where the tenant has a value of its
    own, the shorter one holds. Too small: prompts turn cold again and again."""

    warm: bool = False
    """Whether replicas get its messages, filled in with the defaults of the variables, before clients need them: when
    they join, and when a reload makes it the current version. Needs a default for every variable; where spaces are
    isolated `tenants`, whose caches are filled; and with several models `model`. Effective for the current version."""


class PromptSettings(BaseModel):
    """An application's prompt: its versions, and which of them is current. Its key is the id that clients name, 1 to
    64 characters out of `A-Z a-z 0-9 . _ : -`."""

    model_config = _STRICT

    current: str
    """The version of requests that name none. Another one, taken over by a reload, ends the prefix spaces of the
    version before: what is cached for it is not reused any more."""

    tenants: tuple[str, ...] | None = None
    """Ids of the tenants that may use it; for others it does not exist. Null: all."""

    requests_per_second: float | None = Field(default=None, ge=0.0001, le=100_000)
    """Most requests of all its versions and tenants admitted in any second at one gateway, beside the limits of the
    tenants; more are answered with 429. Null: no limit. Too small: bursts are refused; too large: one application's
    flood is felt by the others."""

    concurrent: int | None = Field(default=None, ge=1)
    """Most requests of it that may run at once at one gateway; more are answered with 429. Null: no limit. Too small:
    clients that work in parallel are refused; too large: its long answers take every place in the engines."""

    prompt_tokens_per_minute: int | None = Field(default=None, ge=1)
    """Most prompt tokens in any minute at one gateway, cached ones included; more are answered with 429. Null: no
    limit. A longer prompt is never taken, so too small: long prompts are refused for good; too large: a few very
    long prompts delay all others."""

    versions: dict[str, PromptVersionSettings]
    """All versions that requests may name, by their names: as ids, without an `@`. One at least."""


Prompts = dict[str, PromptSettings]
"""Prompts by id."""


class PromptsFile(BaseModel):
    """A file with registered prompts."""

    model_config = _STRICT

    prompts: Prompts
    """The prompts, as in the configuration."""


class _Include(NamedTuple):
    """An include: where it stands, the prompt that includes, and the included one, both as ``id@version``."""

    place: tuple[str | int, ...]
    by: str
    other: str


def prompt_mistakes(
    prompts: Mapping[str, PromptSettings], models: Collection[str], tenants: Collection[str] | None
) -> Iterator[Mistake]:
    """Mistakes in texts, variables and names of prompts, with their locations below ``prompts``.

    Args:
        prompts: The prompts, each valid on its own.
        models: Ids of all models.
        tenants: Ids of all tenants; None if some are known only when they send a request.
    """
    facts: dict[str, TemplateFacts] = {}
    included: list[_Include] = []
    used: dict[tuple[str, str], set[str]] = {}
    for name, prompt in prompts.items():
        yield from _name_mistakes((name,), name)
        if prompt.current not in prompt.versions:
            yield (name, "current"), f"there is no version {prompt.current!r} ({_known(prompt.versions)})"
        for position, tenant in enumerate(prompt.tenants or ()):
            if tenants is not None and tenant not in tenants:
                yield (name, "tenants", position), f"there is no tenant {tenant!r} ({_known(tenants)})"
        for number, version in prompt.versions.items():
            place: tuple[str | int, ...] = (name, "versions", number)
            yield from _name_mistakes(place, number)
            if version.model is not None and version.model not in models:
                yield (*place, "model"), f"there is no model {version.model!r} ({_known(models)})"
            valid, mentioned = True, set[str]()
            for variable, default in version.variables.items():
                if not variable.isidentifier() or variable in ("loop", "self"):
                    valid = False
                    yield (*place, "variables", variable), "expected a name of letters, digits and _, not loop or self"
                elif default is not None and not is_value(default):
                    valid = False
                    yield (
                        (*place, "variables", variable),
                        "expected text, a finite number, true or false, or a list of these",
                    )
            for position, message in enumerate(version.messages):
                here = (*place, "messages", position, "content")
                try:
                    found = template_facts(message.content)
                except TemplateMistake as mistake:
                    yield here, str(mistake)
                    valid = False
                    continue
                if len(version.messages) == 1:
                    facts[f"{name}@{number}"] = found
                included += [_Include(here, f"{name}@{number}", other) for other in found.includes]
                mentioned |= found.variables
                for variable in sorted(found.variables - version.variables.keys()):
                    valid = False
                    yield here, f"the variable {variable!r} is not declared (add it to variables: {variable}: DEFAULT)"
            used.update({(name, number): mentioned} if valid else {})
    in_includes = list(_include_mistakes(prompts, included, facts))
    yield from in_includes
    if not in_includes:
        yield from _unused(prompts, used, included, facts)
        yield from _not_filled_in(prompts, used)


def _unused(
    prompts: Mapping[str, PromptSettings],
    used: Mapping[tuple[str, str], set[str]],
    included: Sequence[_Include],
    facts: Mapping[str, TemplateFacts],
) -> Iterator[Mistake]:
    """Variables that no text of their version uses, itself or by what it includes.

    Args:
        prompts: The prompts.
        used: The variables in the texts of each version whose texts are valid, by id and version.
        included: Every include.
        facts: What the texts refer to that may be included; without circles.
    """
    whole = wholes(facts, dict.fromkeys(facts, 0))
    for each in included:
        name, _, number = each.by.partition("@")
        if (name, number) in used:
            used[name, number].update(whole[each.other].variables)
    for (name, number), variables in used.items():
        for variable in prompts[name].versions[number].variables:
            if variable not in variables:
                place = (name, "versions", number, "variables", variable)
                yield place, "declared, but no text uses it (use it in a message, or take it out)"


def _not_filled_in(prompts: Mapping[str, PromptSettings], valid: Collection[tuple[str, str]]) -> Iterator[Mistake]:
    """Versions whose variables all have defaults, and whose texts cannot be filled in with these."""
    renderer = Renderer(
        {
            f"{name}@{number}": version.messages[0].content
            for name, prompt in prompts.items()
            for number, version in prompt.versions.items()
            if len(version.messages) == 1
        }
    )
    for name, number in valid:
        version = prompts[name].versions[number]
        if None in version.variables.values():
            continue
        try:
            renderer.rendered(name, [message.content for message in version.messages], version.variables)
        except BadRequest as error:
            yield (name, "versions", number, "variables"), f"with these defaults: {error.message}"


def warm_mistakes(
    prompts: Mapping[str, PromptSettings], models: Collection[str], *, isolated: bool
) -> Iterator[Mistake]:
    """Versions that are to be warmed, and do not say with what or for whom; with their locations below ``prompts``.

    Args:
        prompts: The prompts, each valid on its own.
        models: Ids of all models.
        isolated: Whether tenants have prefix spaces of their own.
    """
    for name, prompt in prompts.items():
        for number, version in prompt.versions.items():
            place = (name, "versions", number, "warm")
            if not version.warm:
                continue
            missing = [variable for variable, default in version.variables.items() if default is None]
            if missing:
                yield place, f"needs a default for the variable {missing[0]!r}: it is filled in with the defaults"
            if not version.messages:
                yield place, "there is nothing to send (add messages, or declare the prefix in warm.file)"
            if version.model is None and len(models) > 1:
                yield place, f"needs model, because there are several (add model, {_known(models)})"
            if isolated and prompt.tenants is None:
                yield (
                    place,
                    f"needs prompts.{name}.tenants, because spaces are isolated (say whose caches to fill)",
                )


def _include_mistakes(
    prompts: Mapping[str, PromptSettings], included: Sequence[_Include], facts: Mapping[str, TemplateFacts]
) -> Iterator[Mistake]:
    """Includes of what does not exist, in circles, with undeclared variables, or of too much text.

    Args:
        prompts: The prompts.
        included: Every include.
        facts: What the texts refer to that may be included.
    """
    circles = include_circles(facts)
    whole = {} if circles else wholes(facts, {name: _length(prompts, name) for name in facts})
    for place, by, other in included:
        if other not in facts:
            yield place, _not_included(prompts, other)
        elif (by, other) in circles:
            yield place, f"includes go in a circle: {' > '.join(circles[by, other])} (take one of them out)"
        elif other in whole:
            declared = _version(prompts, by).variables
            for variable in sorted(whole[other].variables - declared.keys()):
                yield (
                    place,
                    f"{other} uses the variable {variable!r}, which {by} does not declare (add it to variables)",
                )
            if whole[other].characters > MAX_RENDERED_CHARS:
                yield place, f"{other} holds more than {MAX_RENDERED_CHARS} characters with all that it includes"
            if whole[other].depth > MAX_INCLUDE_DEPTH:
                yield place, f"{other} includes others more than {MAX_INCLUDE_DEPTH} deep (write the texts together)"


def _not_included(prompts: Mapping[str, PromptSettings], other: str) -> str:
    name, at, number = other.partition("@")
    if not at:
        return f"include names {other!r} without a version (write {other}@VERSION, so that the text stays the same)"
    prompt = prompts.get(name)
    if prompt is None:
        return f"there is no prompt {name!r} to include ({_known(prompts)})"
    if number not in prompt.versions:
        return f"the prompt {name!r} has no version {number!r} to include ({_known(prompt.versions)})"
    return f"{other} cannot be included: it must have one message with a valid text"


def _length(prompts: Mapping[str, PromptSettings], name: str) -> int:
    return len(_version(prompts, name).messages[0].content)


def _version(prompts: Mapping[str, PromptSettings], name: str) -> PromptVersionSettings:
    prompt_id, _, number = name.partition("@")
    return prompts[prompt_id].versions[number]


def _name_mistakes(place: tuple[str | int, ...], name: str) -> Iterator[Mistake]:
    if not is_name(name):
        yield place, _NAME_FORM


def _known(names: Collection[str]) -> str:
    return f"there is {', '.join(sorted(names)[:20])}" if names else "there is none"
