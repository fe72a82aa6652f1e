"""Settings of canonicalization, and the checks across their entries."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from gateway.config.document_order_settings import DocumentOrderSettings
from gateway.config.operator_patterns import OwnRegex
from gateway.core.canonical import RuleModes, read_modes
from gateway.core.request import Endpoint

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_NUMBER = "{number}"
_ROUTES = tuple(str(endpoint) for endpoint in Endpoint)


def _read_routes(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping of paths to modes, such as {{{_ROUTES[0]}: {{dynamic-suffix: apply}}}}")
    for route in value:
        if route not in _ROUTES:
            raise ValueError(f"expected as a path {' or '.join(_ROUTES)}, got {str(route)[:60]!r}")
    return {route: read_modes(modes) for route, modes in value.items()}


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "expected up to 40 lower-case letters, digits, dashes and underscores, beginning with a letter"
        )
    return name


def _usable(regex: str) -> str:
    pattern = OwnRegex(regex)
    if any(pattern.find("")) or any(pattern.find("a")):
        # What matches nothing, or everything, would be moved out of every prompt.
        raise ValueError("it matches the empty text or any letter (say more of what stands around the value)")
    return regex


_Modes = Annotated[RuleModes, BeforeValidator(read_modes)]
_Routes = Annotated[dict[str, RuleModes], BeforeValidator(_read_routes)]
_Name = Annotated[str, AfterValidator(_named)]
_Regex = Annotated[str, AfterValidator(_usable)]


class OwnPatternSettings(BaseModel):
    """A pattern of your own: what it finds is replaced, or taken out. What should be moved and kept is a slot of
    `dynamic_suffix`."""

    model_config = _STRICT

    name: _Name
    """What it is called on the dashboard and in reports: up to 40 lower-case letters, digits, dashes and underscores,
    beginning with a letter."""

    regex: _Regex
    r"""Regular expression in [RE2's syntax](../canonicalization.md#regular-expressions), such as `'^Build: \S+\n'`;
    `^` and `$` match at every line. A text in which it takes too long is left as it is."""

    replacement: str = ""
    """The literal replacement; empty removes the match. Unlike all other rules this one loses text: the model does not
    see the match any more."""

    roles: tuple[Literal["system", "developer", "user", "tool"], ...] = ("system", "developer")
    """In whose messages it is searched."""


class SlotSettings(BaseModel):
    """A place in the leading messages where every request has another value."""

    model_config = _STRICT

    name: _Name
    """What it is called in reports: up to 40 lower-case letters, digits, dashes and underscores, beginning with a
    letter."""

    regex: _Regex
    r"""Regular expression in [RE2's syntax](../canonicalization.md#regular-expressions) that finds it; `^` and `$`
    match at every line. The first group is the value, such as `'^Customer: (.+)$'`; without a group, all that is found.
    In a text in which it takes too long, nothing is found."""

    varies: Literal["conversation", "request"] = "conversation"
    """Whether it is the same in all turns of a conversation (a customer's name) or another one in every request (a
    ticket number that counts up). A value of a conversation is restored only where it is the same, so that no
    earlier turn gets another customer's name."""

    models: tuple[str, ...] = ()
    """For which models; empty for all."""


class RoleOrderSettings(BaseModel):
    """How `role-order` brings messages into order."""

    model_config = _STRICT

    merge: Literal["none", "same_role", "all"] = "none"
    """Whether the leading messages become one: `same_role` joins neighbours of one role, `all` joins all under the
    role of the first. Only messages that are plain text are joined, with an empty line between them."""

    later: bool = False
    """Whether messages of the system behind the first answer are moved to the front, too. They were sent in the middle
    of a conversation: moved, they are read as if they had always been there, and what was computed before them is
    computed again."""


class DynamicSuffixSettings(BaseModel):
    """How `dynamic-suffix` moves what varies out of the leading messages."""

    model_config = _STRICT

    built_in: tuple[Literal["time", "id"], ...] = ("time", "id")
    """What is found by itself. `time`: the current date and time, where a line or sentence says that it is the current
    one. `id`: UUIDs, and ids of a request, session, trace, run and the like, where a label says so. What stands in
    quotations, code, tables, examples and documents stays where it is."""

    slots: tuple[SlotSettings, ...] = ()
    """Places of your own. The admin port suggests some that it saw varying."""

    pointer: str = "[context {number}]"
    """Mark that replaces a value in the prompt and precedes it in the block; `{number}` is the number of the value."""

    opening: str = "[Current context: what the marks above stand for]"
    """First line of the block that is put behind the last message of the user or a tool."""

    closing: str = "[End of context]"
    """Its last line."""

    @field_validator("pointer")
    @classmethod
    def _has_a_number(cls, pointer: str) -> str:
        if pointer.count(_NUMBER) != 1 or "\n" in pointer or len(pointer) < len(_NUMBER) + 2:
            raise ValueError("expected one line with {number} and something around it, such as [context {number}]")
        return pointer

    @field_validator("opening", "closing")
    @classmethod
    def _is_a_line(cls, line: str) -> str:
        if not line.strip() or "\n" in line:
            raise ValueError("expected one line that is not empty")
        return line


class HistoryTrimSettings(BaseModel):
    """When and how `history-trim` shortens a conversation."""

    model_config = _STRICT

    start: float = Field(default=0.9, gt=0.1, le=1)
    """Share of the model's context (less what the answer may take) from which on messages are left out. Too small:
    answers use less of the history than they could; too large: the count is off by a few tokens, and the engine refuses
    the request."""

    step: float = Field(default=0.3, ge=0.05, le=0.8)
    """Share of it that goes at a time: the front stays where it is until as much has come again. Too small: every few
    turns the whole prompt is computed again; too large: more is forgotten than needs be."""


class CanonSettings(BaseModel):
    """Changes to prompts that put repeated text in front of varying text. Each rule is `off`, `observe` (nothing is
    changed; what it would save is computed by the explain worker and shown) or `apply`. A tenant's modes
    (`tenants[].canon`) go before a route's, those before a model's (`models[].canon`), and those before `rules`."""

    model_config = _STRICT

    rules: _Modes = {}
    """Mode by rule; [what each rule does](../canonicalization.md#rules). A rule that is not named is observed;
    `inner-spaces`, `dash-style`, `json-text` and `system-order` are off then, and `inline-system` is applied to
    requests of the Messages API."""

    routes: _Routes = {}
    """The same for one path of the API. Prompts of `/v1/completions` have no messages: there only `unicode`,
    `whitespace`, `inner-spaces`, `dash-style`, `pattern` and `document-order` find anything."""

    document_order: DocumentOrderSettings = DocumentOrderSettings()
    """Which documents `document-order` sorts."""

    role_order: RoleOrderSettings = RoleOrderSettings()
    """How `role-order` brings messages into order."""

    dynamic_suffix: DynamicSuffixSettings = DynamicSuffixSettings()
    """How `dynamic-suffix` moves what varies."""

    history_trim: HistoryTrimSettings = HistoryTrimSettings()
    """When and how `history-trim` shortens a conversation."""

    patterns: tuple[OwnPatternSettings, ...] = ()
    """Patterns of your own: the rule `pattern`."""

    prompt_cache_key: Literal["pass", "strip"] = "pass"
    """The use of OpenAI's `prompt_cache_key`. Requests with the same one go to the same replica where nothing else
    decides, as with a session's id. `pass`: the engine gets it, too; `strip`: it does not."""

    cache_control: Literal["pass", "strip"] = "pass"
    """The treatment of Anthropic's `cache_control` in messages, content parts and tools. `strip` takes it out: some
    chat templates print tools as they come, and a mark that moves from turn to turn is then a difference."""

    billing_header: Literal["auto", "pass", "strip"] = "auto"
    """The treatment of lines such as `x-anthropic-billing-header: ...` that coding assistants put in front of the
    system prompt, with another value in every session or request. `strip` takes them out; where they pass,
    `dynamic-suffix` moves them. `auto`: they are taken out of requests of the Messages API, as vLLM does, and pass in
    others."""

    memory_mib: int = Field(default=64, ge=1, le=65536)
    """Memory for the context blocks of conversations, each about 200 bytes a turn. Too small: blocks of conversations
    that are still going on are forgotten, which costs each of them one miss."""

    memory_ttl_seconds: float = Field(default=86400, ge=60)
    """How long a conversation's blocks are remembered after its last turn."""


Mistake = tuple[tuple[str | int, ...], str]
"""Location from the top of the file, and the problem with its fix."""


def canon_mistakes(canon: CanonSettings, models: Collection[str]) -> Iterator[Mistake]:
    """Mistakes in the combination of entries, or with other parts of the file.

    Args:
        canon: The settings, each entry valid on its own.
        models: Ids of all models.
    """
    suffix = canon.dynamic_suffix
    yield from _repeated(("canon", "dynamic_suffix", "slots"), [slot.name for slot in suffix.slots])
    yield from _repeated(("canon", "patterns"), [pattern.name for pattern in canon.patterns])
    places = ("canon", "document_order", "documents")
    yield from _repeated(places, [place.name for place in canon.document_order.documents])
    for s, slot in enumerate(suffix.slots):
        for m, model in enumerate(slot.models):
            if model not in models:
                place = ("canon", "dynamic_suffix", "slots", s, "models", m)
                yield place, f"there is no model {model[:60]!r} (there are: {', '.join(sorted(models))})"
    if suffix.opening.strip() == suffix.closing.strip():
        yield (
            ("canon", "dynamic_suffix", "closing"),
            "the same line as `opening`: the model could not tell where the block ends",
        )


def _repeated(place: tuple[str, ...], names: Sequence[str]) -> Iterator[Mistake]:
    first: dict[str, int] = {}
    for n, name in enumerate(names):
        if first.setdefault(name, n) != n:
            there = f"{'.'.join(place)}[{first[name]}]"
            yield (*place, n, "name"), f"{there} has this name already (reports could not tell the two apart)"
